"""Labels that people give to a run's episodes: `labels.sqlite` in its folder; the record itself never changes."""

from __future__ import annotations

import contextlib
import csv
import getpass
import io
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from uirl.errors import StorageError
from uirl.runtime.limits import InputError, clip, shown, whole_characters
from uirl.runtime.patience import COMMANDS, Patience
from uirl.runtime.sqlite import Connection, closed_on_error, open_file, require_tables, transaction
from uirl.storage.database import database_errors

FILE = "labels.sqlite"
SHEET = ("id", "passed", "error_step", "note", "by", "time")
"""Columns of a sheet; the last two are written, and not read."""
WRITE_WAIT, READ_WAIT = 10_000, 1_000
"""Milliseconds that it waits where another process holds the file."""
LONGEST_NOTE = 10_000
_APPLICATION_ID = 0x7569726D  # 'uirm'
_SCHEMA = (
    """CREATE TABLE labels (
        id TEXT PRIMARY KEY, passed INTEGER, error_step INTEGER, note TEXT NOT NULL, by TEXT NOT NULL,
        time REAL NOT NULL)""",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    "PRAGMA user_version = 1",
)
_TABLES = {"labels": ("id", "passed", "error_step", "note", "by", "time")}
PASSED_WORDS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": None}
"""Spellings of whether a task was solved, in lower case."""


@dataclass(frozen=True, slots=True)
class Label:
    """A human label of one episode."""

    passed: bool | None
    """Whether the task was solved; None: not said."""
    error_step: int | None = None
    """Index of the first turn that was wrong; None: not said."""
    note: str = ""
    by: str = ""
    """Who said it: the user that the viewer ran as."""
    time: float = 0.0
    """When, in seconds since 1970."""

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return the label of a JSON object with `passed`, `error_step` and `note`. Raises InputError that names the
        first wrong field."""
        fields: dict[str, Any] = {"passed": None, **fields_of(value)}
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a label that a JSON object has, `passed`, `error_step` and `note`: what it does not name is
    to stay as it is. Raises InputError that names the first wrong field."""
    if not isinstance(value, Mapping) or set(value) - {"passed", "error_step", "note", "by", "time"}:
        raise InputError(f"got {shown(value)}, expected an object with passed, error_step and note")
    passed, step, note = value.get("passed"), value.get("error_step"), value.get("note") or ""
    if passed is not None and not isinstance(passed, bool):
        raise InputError(f"got passed={shown(passed)}, expected true, false or null")
    if step is not None and (type(step) is not int or not 0 <= step < 2**31):
        raise InputError(f"got error_step={shown(step)}, expected the index of a turn, from 0, or null")
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise InputError(f"got note={shown(note)}, expected a text of at most {LONGEST_NOTE} characters")
    found = {"passed": passed, "error_step": step, "note": whole_characters(note)}
    return {name: found[name] for name in found if name in value}


class LabelStore:
    """Labels by id of the episode. The file is made with the first label; several processes may write it."""

    def __init__(self, path: str | os.PathLike[str], *, patience: Patience = COMMANDS) -> None:
        """`patience`: how long a read or a write may take."""
        self.path = Path(path)
        self._patience = patience
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None
        """Device and number of the file that is open."""
        self._version: tuple[tuple[int, int] | None, int, int] | None = None

    def all(self) -> dict[str, Label]:
        """Return every label by the id of its episode."""
        with self._lock, self._opened("read", write=False) as connection:
            rows = [] if connection is None else connection.execute(_SELECT).fetchall()
        return {row[0]: _label(row[1:]) for row in rows}

    def get(self, id: str) -> Label | None:
        """Return the label of an episode; None: it has none."""
        with self._lock, self._opened("read", write=False) as connection:
            row = None if connection is None else connection.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone()
        return None if row is None else _label(row[1:])

    def set(self, id: str, label: Label) -> Label:
        """Replace the label of an episode; return it with author and time."""
        return self.set_many({id: label})[id]

    def change(self, id: str, fields: Mapping[str, Any]) -> Label:
        """Change some fields of the label of an episode (`fields_of`), or make one of them; return it with who and
        when. What another process changed meanwhile stays."""
        with self._lock, self._opened("write", write=True) as connection:
            assert connection is not None
            with transaction(connection):
                row = connection.execute(f"{_SELECT} WHERE id = ?", (id,)).fetchone()
                old = Label(None) if row is None else _label(row[1:])
                new = replace(old, **fields, by=_user(), time=time.time())
                values = (id, new.passed, new.error_step, new.note, new.by, new.time)
                connection.execute(_WRITE, values)
        return new

    def set_many(self, labels: Mapping[str, Label]) -> dict[str, Label]:
        """Replace the labels of episodes, all or, on an error, none; return them with author and time."""
        now, by = time.time(), _user()
        signed = {id: Label(one.passed, one.error_step, one.note, by, now) for id, one in labels.items()}
        rows = [(id, one.passed, one.error_step, one.note, one.by, one.time) for id, one in signed.items()]
        with self._lock, self._opened("write", write=True) as connection:
            assert connection is not None
            with transaction(connection):
                connection.executemany(_WRITE, rows)
        return signed

    def remove(self, id: str) -> bool:
        """Remove the label of an episode; return whether there was one."""
        with self._lock, self._opened("write", write=False) as connection:
            if connection is None:
                return False
            with transaction(connection):
                return connection.execute("DELETE FROM labels WHERE id = ?", (id,)).rowcount > 0

    def changed(self) -> bool:
        """Return whether the labels may have changed since the last call, by whomever."""
        with self._lock, self._opened("read", write=False) as connection:
            if connection is None:
                version: tuple[tuple[int, int] | None, int, int] = (None, 0, 0)
            else:
                number = connection.execute("PRAGMA data_version").fetchone()[0]
                version = (self._file, number, connection.total_changes)
            previous, self._version = self._version, version
            return previous != version

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextlib.contextmanager
    def _opened(self, verb: str, *, write: bool) -> Iterator[Connection | None]:
        """Return a context with the connection, see `_open`, whose errors are in words."""
        with database_errors(f"cannot {verb} {self.path}"):
            connection = self._open(write=write)
        with database_errors(f"cannot {verb} {self.path}", connection):
            yield connection

    def _open(self, *, write: bool) -> Connection | None:
        """Return the connection; None: there is no file, and nothing is to be written. A file that was replaced, or
        removed with its run, is opened anew: what is written to one that is gone would be lost."""
        there = self._there()
        if self._connection is not None and there != self._file:
            self.close()
        if self._connection is not None:
            self._connection.execute(f"PRAGMA busy_timeout = {WRITE_WAIT if write else READ_WAIT}")
            return self._connection
        if not write and there is None:
            return None
        wait = (WRITE_WAIT if write else READ_WAIT) / 1000
        connection = open_file(self.path, wait=wait, patience=self._patience)
        with closed_on_error(connection), self._patience.watch(connection):
            if not _is_made(connection):
                with transaction(connection):
                    if not _is_made(connection):  # another process may have been first
                        for statement in _SCHEMA:
                            connection.execute(statement)
            if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
                raise StorageError(f"{self.path} holds no labels of uirl; move it away")
            require_tables(connection, self.path, _TABLES)
        self._connection, self._file = connection, self._there()
        return connection

    def _there(self) -> tuple[int, int] | None:
        """Return which file is at the path now; None: none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _is_made(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])


_SELECT = """SELECT CAST(id AS TEXT), CAST(passed AS INTEGER), CAST(error_step AS INTEGER), CAST(note AS TEXT),
    CAST(by AS TEXT), CAST(time AS REAL) FROM labels"""
_WRITE = "INSERT OR REPLACE INTO labels VALUES (?, ?, ?, ?, ?, ?)"


def write_sheet(labels: Mapping[str, Label]) -> str:
    """Return labels as CSV with the columns of `SHEET`. A text that a spreadsheet would compute stands behind an
    apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(SHEET)
    for id, label in sorted(labels.items()):
        passed = "" if label.passed is None else str(label.passed).lower()
        step = "" if label.error_step is None else label.error_step
        writer.writerow([inert(id), passed, step, inert(label.note), inert(label.by), f"{label.time:.3f}"])
    return out.getvalue()


def read_sheet(text: str) -> dict[str, Label]:
    """Return the labels of a sheet with the columns `id`, `passed` (true, false, yes, no, 1, 0 or empty) and, where
    they are there, `error_step` and `note`; a column `label` stands for `passed`. Between columns stands a comma, or
    the semicolon or tab that spreadsheets write in other countries. Raises InputError with the line."""
    whole = text.removeprefix("\ufeff")
    rows = csv.DictReader(io.StringIO(whole, newline=""), delimiter=_delimiter(whole))
    columns = set(rows.fieldnames or ())
    if "id" not in columns or not columns & {"passed", "label"}:
        raise InputError(f"got the columns {shown(sorted(columns))}, expected id and passed, as in {','.join(SHEET)}")
    found: dict[str, Label] = {}
    try:
        for row in rows:
            id, label = _live(row["id"]), _of_row(row, rows.line_num)
            if found.setdefault(id, label) != label:
                raise InputError(f"line {rows.line_num}: got another label of {shown(id)} than in a line before")
    except csv.Error as error:
        raise InputError(f"line {rows.line_num} is no CSV: {error}") from None
    return found


def _delimiter(text: str) -> str:
    """Return what stands between the columns: the sign of which the first line has most."""
    first = text[:1000].splitlines()[:1]
    return max(",;\t", key=lambda sign: "".join(first).count(sign))


def _of_row(row: Mapping[str, Any], line: int) -> Label:
    word = str(row.get("passed", row.get("label")) or "").strip().lower()
    if word not in PASSED_WORDS or not row["id"]:
        raise InputError(f"line {line}: got passed={clip(word)!r}, expected true, false or nothing, and an id")
    step = str(row.get("error_step") or "").strip()
    if step and not (step.isascii() and step.isdigit()):
        raise InputError(f"line {line}: got error_step={clip(step)!r}, expected the index of a turn, from 0")
    return Label.read(
        {"passed": PASSED_WORDS[word], "error_step": int(step) if step else None, "note": _live(row.get("note"))}
    )


def inert(text: str) -> str:
    """Return a cell of a sheet that no spreadsheet computes: behind an apostrophe where it would."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r", "'") else text


def _live(text: str | None) -> str:
    return (text or "").removeprefix("'")


def _label(row: Iterable[Any]) -> Label:
    passed, *rest = row
    return Label(None if passed is None else bool(passed), *rest)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in containers
        return str(os.getuid())
