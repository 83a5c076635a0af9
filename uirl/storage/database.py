"""The SQLite file under the trajectory store: its schema, its connection, its errors."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from uirl.errors import StorageError
from uirl.runtime.files import storage_errors
from uirl.runtime.patience import COMMANDS, Patience
from uirl.runtime.sqlite import LARGEST, Connection, closed_on_error, open_file, require_tables, transaction
from uirl.storage.learned import KINDS

SCHEMA_VERSION = 2
APPLICATION_ID = 0x7569726C
"""'uirl': what SQLite's header says of a trajectory store."""

_SINCE_2 = (
    "CREATE INDEX trajectories_by_task ON trajectories (task_id)",
    "CREATE INDEX trajectories_by_group ON trajectories (group_id)",
    "CREATE TABLE origins (number INTEGER PRIMARY KEY, record TEXT NOT NULL UNIQUE)",
    """CREATE TABLE learned (
        trajectory INTEGER NOT NULL, step INTEGER NOT NULL, version INTEGER NOT NULL, advantages BLOB NOT NULL,
        old_log_probs BLOB, log_probs BLOB, entropies BLOB, weights BLOB, PRIMARY KEY (trajectory, step))""",
)

_SCHEMA = (
    """CREATE TABLE trajectories (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, step INTEGER NOT NULL, split TEXT NOT NULL,
        created REAL NOT NULL, task_id TEXT NOT NULL, environment TEXT NOT NULL, group_id TEXT NOT NULL,
        stop_reason TEXT, reward REAL, success INTEGER, failure TEXT, turns INTEGER NOT NULL, level TEXT,
        verdict INTEGER, origin INTEGER, record TEXT NOT NULL)""",
    "CREATE INDEX trajectories_by_step ON trajectories (step)",
    """CREATE TABLE turns (
        trajectory INTEGER NOT NULL, position INTEGER NOT NULL, record TEXT NOT NULL, context_ids BLOB NOT NULL,
        response_ids BLOB NOT NULL, log_probs BLOB NOT NULL, PRIMARY KEY (trajectory, position))""",
    "CREATE TABLE images (hash TEXT PRIMARY KEY, step INTEGER NOT NULL, data BLOB NOT NULL)",
    *_SINCE_2,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
"""`images.step` is the earliest step whose trajectories show the image. `learned` has a row for each update that a
trajectory took part in; its columns are those of `uirl.storage.learned`."""

_TABLES_1 = {
    "trajectories": (
        *("number", "id", "step", "split", "created", "task_id", "environment", "group_id", "stop_reason"),
        *("reward", "success", "failure", "turns", "record"),
    ),
    "turns": ("trajectory", "position", "record", "context_ids", "response_ids", "log_probs"),
    "images": ("hash", "step", "data"),
}
_TABLES = {
    **_TABLES_1,
    "trajectories": (*_TABLES_1["trajectories"], "level", "verdict", "origin"),
    "origins": ("number", "record"),
    "learned": ("trajectory", "step", "version", *KINDS),
}
"""Table -> the columns that it has."""

_FROM_1 = (
    "ALTER TABLE trajectories ADD COLUMN level TEXT",
    "ALTER TABLE trajectories ADD COLUMN verdict INTEGER",
    "ALTER TABLE trajectories ADD COLUMN origin INTEGER",
    "UPDATE trajectories SET verdict = verdict_in(record)",
    *_SINCE_2,
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
"""What makes a file of version 1 one of this version."""

_AS_2 = (
    """CREATE TEMP VIEW trajectories AS SELECT number, id, step, split, created, task_id, environment, group_id,
        stop_reason, reward, success, failure, turns, record, NULL AS level,
        verdict_in(record) AS verdict, NULL AS origin FROM main.trajectories""",
    *(statement.replace("CREATE TABLE", "CREATE TEMP TABLE") for statement in _SINCE_2 if "TABLE" in statement),
)
"""What a file of version 1 is read through where it may not be changed: it looks like one of this version."""

_REMEDIES = {
    "SQLITE_FULL": "the disk is full: free some space or move the run; a run goes on with --resume",
    "SQLITE_IOERR": "the disk is full or failing: free some space or move the run; a run goes on with --resume",
    "SQLITE_BUSY": "it is busy, another process holds it: try again in a moment, or stop that run first",
    "SQLITE_LOCKED": "it is busy, another process holds it: try again in a moment, or stop that run first",
    "SQLITE_READONLY": "it is read-only here: open it with read_only=True, or fix the permissions",
    "SQLITE_CANTOPEN": "the file is missing or may not be opened: check the path and the permissions",
    "SQLITE_NOTADB": "it is no SQLite file: choose another path",
    "SQLITE_CORRUPT": "it is damaged: 'sqlite3 FILE .recover' saves what is left",
    "SQLITE_INTERRUPT": "it took too long, or the process ends: 'sqlite3 FILE .recover' saves what a damaged file has",
    "SQLITE_TOOBIG": f"no value of {LARGEST} bytes or more is read: no run writes one",
}

_UNTOUCHED = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY")
"""Errors after which what was stored before can be read as before."""
WAIT = 30.0
"""Seconds that a writer waits for another one."""


class StoreBusy(StorageError):
    """Another process holds the file for longer than was waited."""


@contextlib.contextmanager
def database_errors(what: str, connection: Connection | None = None) -> Iterator[None]:
    """Turn an error of SQLite in the context into a `StorageError` that says what failed and what to do.

    `connection`: its statements in the context have to end within its patience.
    """
    try:
        with contextlib.nullcontext() if connection is None else connection.watched():
            yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        remedy = next((text for prefix, text in _REMEDIES.items() if name.startswith(prefix)), "nothing was written")
        rest = ". What was stored before is still readable" if name.startswith(_UNTOUCHED) else ""
        kind = StoreBusy if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) else StorageError
        raise kind(f"{what}: {error}; {remedy}{rest}") from error


def connect(path: Path, *, read_only: bool, wait: float = WAIT, patience: Patience = COMMANDS) -> Connection:
    """Return a connection to the store at `path`, which is created where it is missing (not with `read_only`).

    A file of an earlier version of the schema is made one of this version, or with `read_only` is only read like one.
    `wait`: seconds for which it waits where another process holds the file. `patience`: how long a read may take.
    With `read_only` a file in a folder that cannot be written is read as it is at that moment (`snapshot`).
    Raises `StorageError` for a missing file, another kind of file, or a version of the schema that is not known here.
    """
    if read_only and not path.is_file():
        raise StorageError(f"there is no trajectory store at {path}; expected runs/<name>/trajectories.sqlite")
    with storage_errors(f"cannot create {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)

    def opened(how: str) -> Connection:
        connection = open_file(path, how, wait=wait, patience=patience)
        with closed_on_error(connection), patience.watch(connection):
            _prepare(connection, path, read_only)
        if not read_only:
            connection.patience = None  # what is written is our own, and a disk may be slow
        return connection

    with database_errors(f"cannot open the trajectory store {path}"):
        if not read_only:
            return opened("")
        try:
            return opened("?mode=ro")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                raise
            connection = opened(_alone(path))
            connection.snapshot = True
            return connection


def _alone(path: Path) -> str:
    """Return how to open a file whose folder cannot be written (a mount that is read-only): SQLite then cannot make
    the files by which processes share a log. With a log it is read without locks, its index kept in memory."""
    log = Path(f"{path}-wal")
    return "?mode=ro&vfs=unix-none" if log.is_file() and log.stat().st_size else "?mode=ro&immutable=1"


def _prepare(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    connection.create_function("verdict_in", 1, _verdict_in, deterministic=True)
    if not read_only:
        # A kill loses nothing that was committed; a power cut at most the newest commits, never the file.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        with transaction(connection):
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                _execute(connection, _SCHEMA)
            elif _numbers(connection) == (APPLICATION_ID, 1):
                _execute(connection, _FROM_1)
    application, version = _numbers(connection)
    if application != APPLICATION_ID:
        raise StorageError(f"{path} is a database, but no trajectory store; choose another path")
    if version in (1, SCHEMA_VERSION):
        require_tables(connection, path, _TABLES_1 if version == 1 else _TABLES)
    if read_only and version == 1:
        _execute(connection, _AS_2)
    elif version != SCHEMA_VERSION:
        raise StorageError(
            f"{path} has schema version {version}, this version of uirl reads 1 to {SCHEMA_VERSION}; read it with the "
            "uirl that wrote it, or start a new run"
        )


def _verdict_in(header: str) -> int | None:
    """Return whether the verdict in the JSON of a header is that the trajectory passed; None: there is none. SQLite's
    own functions do not read the NaN and Infinity that a header may hold."""
    verdict = json.loads(header).get("verdict")
    return None if verdict is None else int(verdict["passed"])


def _numbers(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return (application id, version of the schema) of the file."""
    one, other = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    return one[0], other[0]


def _execute(connection: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement)
