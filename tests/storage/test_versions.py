"""A store that an earlier version of the schema wrote is read as it is, and brought up to date where it is written."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest

from tests.storage.episodes import episode, full_trajectory
from uirl.errors import StorageError
from uirl.storage import TrajectoryStore, database
from uirl.types import Trajectory

WRITTEN_BY_1 = Path(__file__).with_name("version_1.sql")
"""What schema version 1 made of `full_trajectory()` and two episodes: `iterdump`, then its two pragmas."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(WRITTEN_BY_1.read_text())
    return path


def as_of_1(trajectory: Trajectory) -> Trajectory:
    """The trajectory without what version 1 did not record."""
    turns = [dataclasses.replace(turn, pictures=()) for turn in trajectory.turns]
    turns[1] = dataclasses.replace(turns[1], context_images=())
    task = dataclasses.replace(trajectory.task, weight=1.0)
    return dataclasses.replace(trajectory, task=task, turns=turns, sampling=None, level=None)


def check_content(store: TrajectoryStore) -> None:
    assert store.get("t-1") == as_of_1(full_trajectory())
    assert [(one.id, one.success, one.verdict, one.level) for one in store.list()] == [
        ("t-1", True, True, None),
        ("b", False, None, None),
        ("c", None, None, None),
    ]
    assert [store.count(step=1), store.count(split="eval")] == [2, 1]
    assert store.learned("t-1") == {}
    assert store.origin("t-1") is None
    assert store.origins() == []


def version_of(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_an_old_store_is_read_and_left_as_it_is(old: Path) -> None:
    before = old.read_bytes()
    with TrajectoryStore(old, read_only=True) as store:
        check_content(store)
        with pytest.raises(StorageError, match="read-only"):
            store.truncate_after(0)
    assert old.read_bytes() == before


def test_an_old_store_that_is_written_is_one_of_today(old: Path) -> None:
    with TrajectoryStore(old, origin={"uirl": "2"}) as store:
        check_content(store)
        store.add(episode("d"), step=3)
        assert store.origin("d") == {"uirl": "2"}
        assert store.origin("b") is None
        assert store.truncate_after(2) == 1
        check_content_but_origins(store)
    assert version_of(old) == database.SCHEMA_VERSION
    with TrajectoryStore(old, read_only=True) as store:
        check_content_but_origins(store)


def check_content_but_origins(store: TrajectoryStore) -> None:
    assert store.get("t-1") == as_of_1(full_trajectory())
    assert [one.id for one in store.list()] == ["t-1", "b", "c"]


def test_a_reader_of_an_old_store_goes_on_while_it_is_brought_up_to_date(old: Path) -> None:
    with TrajectoryStore(old, read_only=True) as reader:
        check_content(reader)
        with TrajectoryStore(old) as writer:
            writer.add(episode("d"), step=3)
        assert [one.id for one in reader.list()] == ["t-1", "b", "c", "d"]
        assert reader.get("d") == episode("d")
        assert reader.learned("d") == {}


def test_what_fails_on_the_way_leaves_the_old_store(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_FROM_1", (*database._FROM_1, "this is no SQL"))
    with pytest.raises(StorageError, match="cannot open the trajectory store"):
        TrajectoryStore(old)
    assert version_of(old) == 1
    monkeypatch.undo()
    with TrajectoryStore(old) as store:
        check_content(store)


def test_an_updated_store_has_the_columns_and_indexes_of_a_new_one(old: Path, tmp_path: Path) -> None:
    def parts(path: Path) -> tuple[set[str], set[str]]:
        TrajectoryStore(path).close()
        with sqlite3.connect(path) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
            columns = {row[1] for row in connection.execute("PRAGMA table_info(trajectories)")}
        return names, columns

    assert parts(old) == parts(tmp_path / "new.sqlite")
