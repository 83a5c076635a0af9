"""Databases that somebody else made: whatever stands in them, opening and reading them ends, with a `StorageError`."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.viewer.conftest import ADDRESS
from tests.viewer.runs import make_run, trajectory
from uirl.cli.main import main
from uirl.errors import StorageError
from uirl.runtime.patience import Patience
from uirl.storage import TrajectoryStore
from uirl.storage.database import _TABLES
from uirl.storage.labels import FILE, Label, LabelStore
from uirl.verification.memory import JudgeMemory
from uirl.viewer import runs as viewed
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.index import Index
from uirl.viewer.runs import Runs

ENDLESS = "WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n)"


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def view(path: Path, table: str) -> None:
    """Put an endless view in the place of a table."""
    with changing(path) as connection:
        columns = ", ".join(f"x AS {name}" for name in columns_of(connection, table))
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE VIEW {table} AS {ENDLESS} SELECT {columns} FROM n")


def view_that_says_it_is_a_table(path: Path, table: str) -> None:
    view(path, table)
    with changing(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET type = 'table', rootpage = 3 WHERE type = 'view'")


def trigger(path: Path, table: str) -> None:
    with changing(path) as connection:
        connection.execute(
            f"CREATE TRIGGER t AFTER UPDATE ON {table} BEGIN SELECT count(*) FROM (WITH RECURSIVE n(x) AS (VALUES (1) "
            "UNION ALL SELECT x + 1 FROM n) SELECT x FROM n); END"
        )


def virtual(path: Path, table: str) -> None:
    with changing(path) as connection:
        columns = ", ".join(columns_of(connection, table))
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE VIRTUAL TABLE {table} USING fts5({columns})")


def computed(path: Path, table: str) -> None:
    with changing(path) as connection:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN more TEXT AS (hex(zeroblob(900000000))) VIRTUAL")


def another_table(path: Path, table: str) -> None:
    with changing(path) as connection:
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE TABLE {table} (x)")


def link(path: Path, table: str) -> None:
    moved = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(moved)
    path.symlink_to(moved)


def pipe_beside(ending: str) -> Callable[[Path, str], None]:
    def spoil(path: Path, table: str) -> None:
        other = Path(f"{path}{ending}")
        other.unlink(missing_ok=True)
        os.mkfifo(other)

    return spoil


def journal_of_others(path: Path, table: str) -> None:
    Path(f"{path}-journal").write_bytes(b"\0" * 600 + b"/home/x" + struct.pack(">II", 7, 0) + _JOURNAL)


_JOURNAL = bytes.fromhex("d9d505f920a163d7")


SPOILS: dict[str, Callable[[Path, str], None]] = {
    **{"view": view, "view_as_table": view_that_says_it_is_a_table, "trigger": trigger, "virtual": virtual},
    **{"computed": computed, "another": another_table, "link": link, "super_journal": journal_of_others},
    **{ending: pipe_beside(f"-{ending}") for ending in ("wal", "journal", "shm")},
}
OF_TABLES = [name for name in SPOILS if name not in ("link", "super_journal", "wal", "journal", "shm")]
CASES = [(name, "trajectories") for name in SPOILS]
CASES += [(name, table) for name in OF_TABLES for table in ("turns", "images", "origins", "learned")]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "odd", [trajectory("a")])


@pytest.mark.parametrize(("spoil", "table"), CASES)
def test_a_store_that_no_run_wrote_is_refused_by_all_who_open_it(run: Path, spoil: str, table: str) -> None:
    store = run / "trajectories.sqlite"
    SPOILS[spoil](store, table)
    openers: list[Callable[[], Any]] = [
        lambda: TrajectoryStore(store, read_only=True),
        lambda: TrajectoryStore(store),
        lambda: Index(store),
    ]
    for opener in openers:
        with pytest.raises(StorageError):
            opener()
    for command in (["export", str(run), "--to", "sft"], ["judge", str(run)]):
        assert main(command) == 2, command
    make_run(run.parent / "good", [trajectory("b")])
    app = create_app(Runs([str(run.parent)]), Access("127.0.0.1", 8123))
    with TestClient(app, base_url=ADDRESS) as client:
        listed = {one["key"]: one for one in client.get("/api/runs").json()["runs"]}
        assert (listed["good"]["problem"], listed["good"]["trajectories"]) == (None, 1)
        assert listed["odd"]["problem"]
        assert client.get("/api/runs/odd/trajectories").status_code == 404


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_labels_that_nobody_wrote_are_refused(run: Path, spoil: Callable[[Path, str], None]) -> None:
    path = run / FILE
    LabelStore(path).set("a", Label(True))
    spoil(path, "labels")
    for use in (LabelStore.all, lambda labels: labels.set("a", Label(False)), lambda labels: labels.remove("a")):
        with pytest.raises(StorageError):
            use(LabelStore(path))


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_memory_that_no_judge_wrote_is_refused(tmp_path: Path, spoil: Callable[[Path, str], None]) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "judge.sqlite"
    JudgeMemory(path).close()
    spoil(path, "answers")
    with pytest.raises(StorageError):
        JudgeMemory(path)


def in_circles(path: Path) -> None:
    """Make the pages of `trajectories` lead to each other so that there are more ways than anybody can go: the count of
    its rows, one step for SQLite, takes for ever."""
    size, depth = 512, 15
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {size}")
        for table, columns in _TABLES.items():
            names = ", ".join(columns).replace("number,", "number INTEGER PRIMARY KEY,")
            connection.execute(f"CREATE TABLE {table} ({names})")
        connection.execute("PRAGMA application_id = 0x7569726C")
        connection.execute("PRAGMA user_version = 2")
        connection.execute("INSERT INTO trajectories (id) VALUES ('a')")
        connection.commit()
        query = "SELECT rootpage FROM sqlite_schema WHERE name = 'trajectories'"
        root, pages = connection.execute(query).fetchone()[0], connection.execute("PRAGMA page_count").fetchone()[0]
    data = bytearray(path.read_bytes())
    leaf = bytes(data[(root - 1) * size : root * size])

    def inner(child: int) -> bytes:
        count = 60
        places = [size - 5 * (i + 1) for i in range(count)]
        head = struct.pack(">BHHHBI", 5, 0, count, places[-1], 0, child)
        page = bytearray(head + b"".join(struct.pack(">H", place) for place in places)).ljust(size, b"\0")
        for place in places:
            page[place : place + 5] = struct.pack(">IB", child, 1)
        return bytes(page)

    data[(root - 1) * size : root * size] = inner(pages + 1)
    for i in range(depth):
        data += inner(pages + 2 + i)
    data += leaf
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)


def test_a_read_without_end_is_interrupted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_circles(run / "trajectories.sqlite")
    with (
        TrajectoryStore(run / "trajectories.sqlite", read_only=True, patience=Patience(0.5)) as store,
        pytest.raises(StorageError, match="took too long"),
    ):
        store.count()
    monkeypatch.setattr(viewed, "LONGEST_READ", 0.5)
    make_run(run.parent / "good", [trajectory("b")])
    app = create_app(Runs([str(run.parent)]), Access("127.0.0.1", 8123))
    with TestClient(app, base_url=ADDRESS) as client:
        listed = {one["key"]: one for one in client.get("/api/runs").json()["runs"]}
        assert (listed["good"]["problem"], listed["good"]["trajectories"]) == (None, 1)
        assert "took too long" in listed["odd"]["problem"]


def test_what_is_being_read_ends_with_the_process(run: Path) -> None:
    in_circles(run / "trajectories.sqlite")
    patience = Patience(3600)
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True, patience=patience) as store:
        patience.end()  # as a handler of SIGTERM does
        with pytest.raises(StorageError, match="ends"):
            store.count()


def test_a_value_that_fills_the_memory_is_not_read(run: Path) -> None:
    store = run / "trajectories.sqlite"
    with changing(store) as connection:
        connection.execute("INSERT INTO images VALUES ('h', 1, zeroblob(300000000))")
    with TrajectoryStore(store, read_only=True) as opened, pytest.raises(StorageError, match="no value of"):
        opened.image("h")
