"""What became different in a store, to the last column, and nothing that the app writes by itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from uirl.environments.apps import store as stores
from uirl.environments.apps.schema import App
from uirl.environments.apps.store import Difference, Store, difference, filled, read_rows
from uirl.errors import StorageError

APP = App.build(
    {
        "program": "none",
        "own": {"log": [], "item": ["touched"]},
        "entities": {"shop.item": {"table": "item", "fields": {"name": {"kind": "text"}}}},
    }
)
SCHEMA = """
CREATE TABLE item (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, price NUMERIC, touched INTEGER);
CREATE TABLE pair (a INTEGER, b INTEGER);
CREATE TABLE log (line TEXT);
INSERT INTO item VALUES (1, 'oak', 2, 0), (2, 'elm', 3.5, 0);
INSERT INTO pair VALUES (1, 1), (1, 1);
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.sqlite"
    run(path, SCHEMA)
    return path


def run(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def made(file: Path, script: str) -> Difference:
    before = read_rows(APP, file)
    run(file, script)
    return difference(before, read_rows(APP, file))


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("SELECT 1", Difference((), frozenset(), {})),
        ("UPDATE item SET name = 'oak' WHERE id = 1", Difference((), frozenset(), {})),
        ("UPDATE item SET touched = 9; INSERT INTO log VALUES ('x')", Difference((), frozenset(), {})),
        ("UPDATE item SET price = 2.0 WHERE id = 1", Difference((), frozenset(), {})),
        ("UPDATE item SET price = NULL WHERE id = 1", Difference((), frozenset(), {("item", 1): {"price": None}})),
        ("DELETE FROM item WHERE id = 2", Difference((), frozenset({("item", 2)}), {})),
        (
            "INSERT INTO item VALUES (7, 'ash', 1.25, 5)",
            Difference((("item", {"name": "ash", "price": 1.25}),), frozenset(), {}),
        ),
        ("CREATE TABLE more (x); DROP TABLE more", Difference((), frozenset(), {})),
        ("INSERT INTO pair VALUES (1, 1)", Difference((("pair", {"a": 1, "b": 1}),), frozenset(), {})),
    ],
)
def test_the_difference_is_exactly_what_was_done(file: Path, script: str, wanted: Difference) -> None:
    found = made(file, script)
    assert found.equals(wanted)
    assert bool(found) == bool(wanted)


def test_a_record_that_comes_again_with_another_key_is_another_one(file: Path) -> None:
    found = made(file, "DELETE FROM item WHERE id = 1; INSERT INTO item VALUES (9, 'oak', 2, 0)")
    assert found.removed == {("item", 1)}
    assert found.added == (("item", {"name": "oak", "price": 2}),)


@pytest.mark.parametrize(
    ("one", "other"),
    [({"price": "2"}, {"price": 2}), ({"price": 0}, {"price": None}), ({"price": 2}, {"price": 2, "name": "x"})],
)
def test_what_only_looks_alike_is_not_the_same(one: dict, other: dict) -> None:
    assert not Difference((("item", one),), frozenset(), {}).equals(Difference((("item", other),), frozenset(), {}))


def test_what_was_removed_or_changed_beside_what_was_asked_is_a_difference() -> None:
    gone, new = frozenset({("item", 1)}), {("item", 2): {"price": 1}}
    kept = Difference((), gone, new)
    assert kept.equals(Difference((), gone, dict(new)))
    for other in (
        Difference((), frozenset(), new),
        Difference((), gone | {("item", 3)}, new),
        Difference((), gone, {}),
        Difference((), gone, {("item", 2): {"price": 1, "name": "x"}}),
    ):
        assert not kept.equals(other)


def test_the_order_in_which_records_were_added_does_not_matter_and_how_many_does() -> None:
    a, b = ("item", {"name": "a"}), ("item", {"name": "b"})
    assert Difference((a, b), frozenset(), {}).equals(Difference((b, a), frozenset(), {}))
    assert not Difference((a, a), frozenset(), {}).equals(Difference((a,), frozenset(), {}))


def test_rows_that_a_store_begins_with_are_those_that_are_read_of_its_file(file: Path, tmp_path: Path) -> None:
    more = [{"id": key, "name": f"n{key}", "price": key / 4} for key in range(3, 9)]
    stored, rows = filled(APP, file.read_bytes(), {"item": more, "pair": []})
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(stored)
    assert read_rows(APP, copy) == rows
    assert list(rows["item"]) == list(range(1, 9))
    assert "log" not in rows


def test_a_store_is_read_again_only_after_it_was_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, reads = Store(APP, file), []
    monkeypatch.setattr(stores, "read_rows", lambda *args: reads.append(1) or read_rows(*args))
    first = store.rows()
    assert store.rows() is first
    run(file, "UPDATE item SET price = 8 WHERE id = 1")
    assert store.rows()["item"][1]["price"] == 8
    assert len(reads) == 2


def test_a_write_ahead_log_is_seen_before_it_is_in_the_file(file: Path) -> None:
    run(file, "PRAGMA journal_mode = WAL")
    store = Store(APP, file)
    store.rows()
    writer = sqlite3.connect(file)
    writer.execute("UPDATE item SET price = 9 WHERE id = 2")
    writer.commit()
    assert store.rows()["item"][2]["price"] == 9
    writer.close()


def test_a_damaged_or_endless_store_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_ROWS", 1)
    with pytest.raises(StorageError, match="more than 1 rows"):
        read_rows(APP, file)
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:200] + b"\xff" * 5000)
    with pytest.raises(StorageError, match="cannot be read"):
        read_rows(APP, file)
    file.unlink()
    file.symlink_to("/etc/passwd")
    with pytest.raises(StorageError, match="link"):
        read_rows(APP, file)


def test_computed_columns_are_left_out_and_shift_no_other(tmp_path: Path) -> None:
    file = tmp_path / "app.sqlite"
    run(file, "CREATE TABLE item (id INTEGER PRIMARY KEY, loud AS (name || '!'), name TEXT, price INTEGER);"
        "INSERT INTO item VALUES (1, 'oak', 2)")  # fmt: skip
    assert read_rows(APP, file)["item"] == {1: {"name": "oak", "price": 2}}


def test_rows_with_the_same_key_or_none_are_all_seen(tmp_path: Path) -> None:
    file = tmp_path / "app.sqlite"
    run(file, "CREATE TABLE item (id TEXT PRIMARY KEY, name TEXT); INSERT INTO item VALUES (NULL, 'oak'), ('a', 'elm')")
    added = made(file, "INSERT INTO item VALUES (NULL, 'ash'), (NULL, 'oak')").added
    assert sorted(row["name"] for _, row in added) == ["ash", "oak"]


def test_what_the_app_writes_by_itself_is_no_difference_where_there_is_no_key(tmp_path: Path) -> None:
    file = tmp_path / "app.sqlite"
    run(file, "CREATE TABLE item (name TEXT, touched INTEGER); INSERT INTO item VALUES ('oak', 1)")
    app = App.build(APP.to_dict() | {"entities": {"shop.x": {"table": "x", "fields": {"name": {"kind": "text"}}}}})
    before = read_rows(app, file)
    run(file, "UPDATE item SET touched = 2")
    assert not difference(before, read_rows(app, file))
