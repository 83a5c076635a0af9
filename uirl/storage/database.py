"""The SQLite file under the trajectory store: its schema, its connection, its errors in words."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from uirl.errors import StorageError
from uirl.runtime.files import storage_errors

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x7569726C  # 'uirl'

_SCHEMA = (
    """CREATE TABLE trajectories (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, step INTEGER NOT NULL, split TEXT NOT NULL,
        created REAL NOT NULL, task_id TEXT NOT NULL, environment TEXT NOT NULL, group_id TEXT NOT NULL,
        stop_reason TEXT, reward REAL, success INTEGER, failure TEXT, turns INTEGER NOT NULL, record TEXT NOT NULL)""",
    "CREATE INDEX trajectories_by_step ON trajectories (step)",
    """CREATE TABLE turns (
        trajectory INTEGER NOT NULL, position INTEGER NOT NULL, record TEXT NOT NULL, context_ids BLOB NOT NULL,
        response_ids BLOB NOT NULL, log_probs BLOB NOT NULL, PRIMARY KEY (trajectory, position))""",
    "CREATE TABLE images (hash TEXT PRIMARY KEY, step INTEGER NOT NULL, data BLOB NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
"""`images.step` is the earliest step whose trajectories show the image."""

_REMEDIES = {
    "SQLITE_FULL": "the disk is full: free some space or move the run, then continue with --resume",
    "SQLITE_IOERR": "the disk is full or failing: free some space or move the run, then continue with --resume",
    "SQLITE_BUSY": "another process is writing to it: stop that run first",
    "SQLITE_LOCKED": "another process is writing to it: stop that run first",
    "SQLITE_READONLY": "it is read-only here: open it with read_only=True, or fix the permissions",
    "SQLITE_CANTOPEN": "the file is missing or may not be opened: check the path and the permissions",
    "SQLITE_NOTADB": "it is no SQLite file: choose another path",
    "SQLITE_CORRUPT": "it is damaged: 'sqlite3 FILE .recover' saves what is left",
}


@contextlib.contextmanager
def database_errors(what: str) -> Iterator[None]:
    """Turn an error of SQLite in the context into a `StorageError` that says what failed and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        remedy = next((text for prefix, text in _REMEDIES.items() if name.startswith(prefix)), "nothing was written")
        raise StorageError(f"{what}: {error}; {remedy}. What was stored before is still readable") from error


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Return a connection to the store at `path`, which is created where it is missing (not with `read_only`).

    Raises `StorageError` for a missing file, another kind of file, or another version of the schema.
    """
    if read_only and not path.is_file():
        raise StorageError(f"there is no trajectory store at {path}; expected runs/<name>/trajectories.sqlite")
    with storage_errors(f"cannot create {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with database_errors(f"cannot open the trajectory store {path}"):
        address = path.absolute().as_uri() + ("?mode=ro" if read_only else "")
        connection = sqlite3.connect(address, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, read_only)
        except BaseException:
            connection.close()
            raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Keep all writes of the context or, on any error, none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back on a full disk
            connection.execute("ROLLBACK")
        raise


def _prepare(connection: sqlite3.Connection, path: Path, read_only: bool) -> None:
    if not read_only:
        # A kill loses nothing that was committed; a power cut at most the newest commits, never the file.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        with transaction(connection):
            if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                for statement in _SCHEMA:
                    connection.execute(statement)
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise StorageError(f"{path} is a database, but no trajectory store; choose another path")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != SCHEMA_VERSION:
        raise StorageError(
            f"{path} has schema version {version}, this version of uirl reads {SCHEMA_VERSION}; read it with the uirl "
            "that wrote it, or start a new run"
        )
