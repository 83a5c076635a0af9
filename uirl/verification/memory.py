"""What a judge remembers, in one SQLite file that processes share: answers by content, what was spent, what it said
where somebody else spoke too."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from uirl.errors import StorageError
from uirl.runtime.files import storage_errors
from uirl.runtime.patience import COMMANDS
from uirl.runtime.sqlite import Connection, closed_on_error, open_file, require_tables
from uirl.verification.quality import Heard

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, created REAL NOT NULL);
CREATE TABLE IF NOT EXISTS spent (budget TEXT PRIMARY KEY, calls INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS heard_of (
    judge TEXT NOT NULL, trajectory TEXT NOT NULL, task TEXT NOT NULL, grp TEXT NOT NULL, truth INTEGER NOT NULL,
    said INTEGER NOT NULL, created REAL NOT NULL, PRIMARY KEY (judge, trajectory));
CREATE TABLE IF NOT EXISTS settled (
    judge TEXT NOT NULL, grp TEXT NOT NULL, true_accepts REAL NOT NULL, false_accepts REAL NOT NULL,
    PRIMARY KEY (judge, grp));
CREATE INDEX IF NOT EXISTS heard_of_by_time ON heard_of (judge, created);
"""
_TABLES = {
    "answers": ("key", "answer", "created"),
    "spent": ("budget", "calls", "tokens"),
    "heard_of": ("judge", "trajectory", "task", "grp", "truth", "said", "created"),
    "settled": ("judge", "grp", "true_accepts", "false_accepts"),
}


class JudgeMemory:
    """The file; None: in memory, for this process alone. Threads and processes may share it; a kill loses nothing that
    was written."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Open or make the file. Raises StorageError."""
        self.path = None if path is None else Path(path)
        self._lock = threading.RLock()
        if self.path is not None:
            with storage_errors(f"cannot create {self.path.parent}"):
                self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            if self.path is None:
                self._db = sqlite3.connect(
                    ":memory:", check_same_thread=False, isolation_level=None, factory=Connection
                )
                self._db.executescript(_SCHEMA)
                return
            self._db = open_file(self.path, wait=30, patience=COMMANDS)
            with closed_on_error(self._db), COMMANDS.watch(self._db):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.executescript(_SCHEMA)
                require_tables(self._db, self.path, _TABLES)

    def answer(self, key: str) -> str | None:
        """Return what was answered to the request with this key; None: it was never answered."""
        with self._lock, self._errors():
            row = self._db.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def keep(self, key: str, answer: str) -> None:
        """Remember an answer."""
        with self._lock, self._errors():
            self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, answer, time.time()))

    def take(self, budget: str, max_calls: int | None, max_tokens: int | None) -> bool:
        """Book one call on a budget; False: it is used up, and nothing was booked."""
        with self._lock, self._errors():
            self._db.execute("INSERT OR IGNORE INTO spent VALUES (?, 0, 0)", (budget,))
            return bool(
                self._db.execute(
                    "UPDATE spent SET calls = calls + 1 WHERE budget = ? AND calls < ? AND tokens < ?",
                    (budget, _limit(max_calls), _limit(max_tokens)),
                ).rowcount
            )

    def book_tokens(self, budget: str, tokens: int) -> None:
        """Book the tokens of a call that was answered."""
        with self._lock, self._errors():
            self._db.execute("UPDATE spent SET tokens = tokens + ? WHERE budget = ?", (tokens, budget))

    def spent(self, budget: str) -> tuple[int, int]:
        """Return (calls, tokens) of a budget."""
        with self._lock, self._errors():
            row = self._db.execute("SELECT calls, tokens FROM spent WHERE budget = ?", (budget,)).fetchone()
        return (0, 0) if row is None else (int(row[0]), int(row[1]))

    def hear(self, judge: str, trajectory: str, heard: Heard) -> None:
        """Remember what the judge said of an episode whose outcome is known. Said twice of one episode, it counts
        once."""
        with self._lock, self._errors():
            self._db.execute(
                "INSERT OR REPLACE INTO heard_of VALUES (?, ?, ?, ?, ?, ?, ?)",
                (judge, trajectory, heard.task, heard.instance, heard.truth, heard.said, time.time()),
            )

    def heard(self, judge: str, newest: int) -> list[Heard]:
        """Return the `newest` episodes of `hear`, the oldest of them first."""
        with self._lock, self._errors():
            rows = self._db.execute(
                "SELECT task, truth, said, grp FROM heard_of WHERE judge = ? ORDER BY created DESC LIMIT ?",
                (judge, newest),
            ).fetchall()
        return [Heard(str(task), bool(truth), bool(said), str(grp)) for task, truth, said, grp in reversed(rows)]

    def settle(self, judge: str, group: str, rates: tuple[float, float] | None) -> tuple[float, float] | None:
        """Return the error rates by which the judge is corrected in a group: those that were first settled for it.
        Members that are scored while the estimate moves would else differ by nothing but that. None: not known yet."""
        with self._lock, self._errors():
            if rates is not None:
                self._db.execute("INSERT OR IGNORE INTO settled VALUES (?, ?, ?, ?)", (judge, group, *rates))
            row = self._db.execute(
                "SELECT true_accepts, false_accepts FROM settled WHERE judge = ? AND grp = ?", (judge, group)
            ).fetchone()
        return None if row is None else (float(row[0]), float(row[1]))

    def close(self) -> None:
        """Close the file. Calling it twice is fine."""
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"the judge's memory {self.path or 'in this process'}: {error}; free the disk or name another file "
                "(verification.memory)"
            ) from error


def _limit(value: int | None) -> int:
    return 2**62 if value is None else value
