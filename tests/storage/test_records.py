"""Records that somebody else wrote, and errors of the file under them: which of them says what."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from tests.storage.episodes import full_trajectory
from uirl.errors import StorageError
from uirl.storage import TrajectoryStore
from uirl.storage.database import StoreBusy, database_errors
from uirl.storage.records import decode_header, decode_turn, encode_header, encode_turn, with_verdict
from uirl.types import Verdict

TURN = encode_turn(full_trajectory().turns[0], ("a", "b"), "here")
HEADER = encode_header(full_trajectory(), ("c",))


def changed(text: str, path: str, value: Any) -> str:
    """The JSON with another value at `path`, 'action.text'."""
    record = json.loads(text)
    *way, last = path.split(".")
    place = record
    for name in way:
        place = place[int(name) if isinstance(place, list) else name]
    place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("reward", "1", "Turn.reward is '1', expected float or int"),
        ("reward", 10**400, "Turn.reward is "),
        ("terminated", "yes", "Turn.terminated is 'yes', expected bool or int"),
        ("finish_reason", None, "Turn.finish_reason is None, expected str"),
        ("info", [], r"Turn.info is \[\], expected dict"),
        ("unheard_of", 1, "Turn.unheard_of is 1, expected no such field"),
        ("action", "text", "Action is 'text', expected dict"),
        ("action.parse_error", 3, "Action.parse_error is 3, expected str or NoneType"),
        ("action.tool_calls", 3, "Action.tool_calls is 3, expected tuple or list"),
        ("action.tool_calls.0", "x", "ToolCall is 'x', expected dict"),
        ("tool_results.0.success", "x", "ToolResult.success is 'x', expected bool or int"),
        ("observation", 3, "an observation is 3, expected dict"),
        ("observation.images.0", 3, "the hash of a picture is 3, expected str"),
        ("observation.tool_results.0", 3, "ToolResult is 3, expected dict"),
        ("context_images.0", 3, "a picture's hash is 3, expected str"),
    ],
)
def test_a_turn_that_says_what_it_cannot_is_refused(path: str, value: Any, message: str) -> None:
    assert decode_turn(TURN, str).action == full_trajectory().turns[0].action
    with pytest.raises(TypeError, match=message):
        decode_turn((changed(TURN[0], path, value), *TURN[1:]), str)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("task.tags", 1, "Task.tags is 1, expected tuple or list"),
        ("task.seed", "x", "Task.seed is 'x', expected int or NoneType"),
        ("verdict.passed", "x", "Verdict.passed is 'x', expected bool or int"),
        ("failure.kind", 1, "Failure.kind is 1, expected str"),
        ("metrics", 1, "Trajectory.metrics is 1, expected dict"),
        ("final.text", 1, "Observation.text is 1, expected str"),
        ("final.images.0", 1, "the hash of a picture is 1, expected str"),
    ],
)
def test_a_header_that_says_what_it_cannot_is_refused(path: str, value: Any, message: str) -> None:
    assert decode_header(HEADER, []).task == full_trajectory().task
    with pytest.raises(TypeError, match=message):
        decode_header(changed(HEADER, path, value), [])
    with pytest.raises(TypeError, match=r"a trajectory is \[\], expected dict"):
        decode_header("[]", [])


def test_a_record_of_earlier_versions_has_no_results_in_what_was_seen() -> None:
    record = json.loads(TURN[0])
    del record["observation"]["tool_results"], record["pictures"]
    turn = decode_turn((json.dumps(record), *TURN[1:]), str)
    assert (turn.observation.tool_results, turn.pictures, turn.observation.images) == ((), (), ("a", "b"))
    again = decode_header(with_verdict(HEADER, Verdict(0.5, False, "late")), [])
    assert (again.verdict, again.failure) == (Verdict(0.5, False, "late"), full_trajectory().failure)


@pytest.mark.parametrize(
    ("name", "remedy", "kind", "readable"),
    [
        ("SQLITE_FULL", "the disk is full: free", StorageError, True),
        ("SQLITE_IOERR_WRITE", "the disk is full or failing", StorageError, True),
        ("SQLITE_BUSY_SNAPSHOT", "it is busy, another process holds it", StoreBusy, False),
        ("SQLITE_LOCKED", "it is busy, another process holds it", StoreBusy, False),
        ("SQLITE_READONLY_DBMOVED", "it is read-only here", StorageError, True),
        ("SQLITE_CANTOPEN", "the file is missing", StorageError, False),
        ("SQLITE_NOTADB", "it is no SQLite file", StorageError, False),
        ("SQLITE_CORRUPT", "it is damaged", StorageError, False),
        ("SQLITE_INTERRUPT", "it took too long", StorageError, False),
        ("SQLITE_TOOBIG", "no value of ", StorageError, False),
        ("SQLITE_MISUSE", "nothing was written", StorageError, False),
        (None, "nothing was written", StorageError, False),
    ],
)
def test_an_error_of_the_file_says_what_to_do(
    name: str | None, remedy: str, kind: type[StorageError], readable: bool
) -> None:
    error = sqlite3.OperationalError("why")
    if name is not None:
        error.sqlite_errorname = name
    with pytest.raises(StorageError, match=f"^cannot try: why; {remedy}") as raised, database_errors("cannot try"):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value).endswith(". What was stored before is still readable") == readable


def test_a_store_is_safe_against_kills_and_its_log_stays_small(tmp_path) -> None:
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        names = ("journal_mode", "synchronous", "journal_size_limit", "user_version", "application_id")
        found = [store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert found == ["wal", 1, 64 * 2**20, 2, int.from_bytes(b"uirl", "big")]
