"""A narrow copy of a run's list of trajectories, for filters, order and search among very many.

The trajectory store is opened read-only, and each read of it is short, so that its log does not grow under the run that
writes it. What only the viewer wants (the words of an episode, flags) stands in a file of the viewer's own, in a cache
folder, and can be deleted at any time. Rows come in newest first: the first page is there at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from uirl.storage.database import connect, database_errors
from uirl.viewer.flags import flags_of

VERSION = 1
COPIED = (
    *("number", "id", "step", "split", "created", "task_id", "environment", "group_id", "stop_reason", "reward"),
    *("success", "failure", "turns", "level", "verdict"),
)
ROWS = 5000
"""Rows that are copied in one read."""
EPISODES = 100
"""Episodes whose words are read at once."""
MOST_WORDS = 20_000
"""Characters of one episode that are searched."""
UNUSED = 30 * 24 * 3600
"""Seconds after which an index that nobody opened is removed."""
_SCHEMA = (
    # of `state`: which numbers were searched for words, all of `rows` from `low` to `high`, and how many
    f"""CREATE TABLE rows (number INTEGER PRIMARY KEY, {", ".join(COPIED[1:])}, flags TEXT NOT NULL DEFAULT '')""",
    "CREATE INDEX rows_by_group ON rows (group_id)",
    "CREATE INDEX rows_by_id ON rows (id)",
    "CREATE VIRTUAL TABLE words USING fts5(text, content = '', detail = none)",
    "CREATE TABLE state (high INTEGER NOT NULL, low INTEGER NOT NULL, count INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0, 0, 0)",
    "CREATE TABLE screens (hash TEXT PRIMARY KEY, perceptual TEXT NOT NULL)",
    f"PRAGMA user_version = {VERSION}",
)


def cache_folder() -> Path:
    """Return the folder of the indices, made where it is missing."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "uirl" / "viewer"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def remove_unused(folder: Path, older_than: float = UNUSED) -> None:
    """Remove the indices in `folder` that nobody has opened for `older_than` seconds."""
    for path in folder.glob("*.sqlite*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older_than:
                path.unlink()


class Index:
    """The copy of one store. Its methods may be called from any thread."""

    def __init__(self, store: Path, file: Path | None = None) -> None:
        """`file`: where the copy is kept; None: in the cache folder or, where that cannot be written, in a temporary
        file. Raises StorageError where there is no store."""
        self._source = connect(store, read_only=True)
        self._source_lock, self._lock = threading.Lock(), threading.RLock()
        self._copying, self._wording = threading.Lock(), threading.Lock()
        self._epoch = 0
        """Grows whenever everything is forgotten: what was read before then is not kept."""
        self._columns = {row[1] for row in self._source.execute("PRAGMA table_info(trajectories)")}
        self._closed = False
        self.labelled = False
        """Whether `set_labels` was called."""
        self.counted: tuple[tuple[Any, ...], Any] | None = None
        """What `search.facets` counted last, and how many rows there were."""
        try:
            self._connection = _open(_default_file(store) if file is None else file)
        except (sqlite3.Error, OSError):
            self._connection = _open(None)

    def close(self) -> None:
        """Close both files. Calling it twice is fine."""
        self._closed = True
        with self._lock, self._source_lock:
            self._source.close()
            self._connection.close()

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the copy."""
        with self._lock, database_errors("cannot read the viewer's index"):
            return self._connection.execute(query, values).fetchall()

    def from_store(self, id: str) -> tuple[Any, ...] | None:
        """Return the columns `COPIED` of one trajectory as the store has them, copied already or not; None: it has no
        such trajectory."""
        found = self._from_store(f"{self._query()} WHERE id = ?", (id,))
        return found[0] if found else None

    def beside(self, number: int, side: Literal["<", ">"]) -> str | None:
        """Return the id of the trajectory of the store before or behind a number; None: there is none."""
        order = "DESC" if side == "<" else "ASC"
        query = f"SELECT id FROM trajectories WHERE number {side} ? ORDER BY number {order} LIMIT 1"
        found = self._from_store(query, (number,))
        return found[0][0] if found else None

    def set_labels(self, labels: Mapping[str, bool | None]) -> None:
        """Replace what is known of labels, id -> passed, as the table `labelled` that queries may join."""
        with self._lock, database_errors("cannot write the viewer's index"):
            self._connection.execute("CREATE TEMP TABLE IF NOT EXISTS labelled (id TEXT PRIMARY KEY, passed INTEGER)")
            self._connection.execute("DELETE FROM labelled")
            self._connection.executemany("INSERT INTO labelled VALUES (?, ?)", list(labels.items()))
            self.labelled = True

    def perceptual(self, hash: str) -> int | None:
        """Return the perceptual hash that was kept of a picture, -1 of one that cannot be read; None: none was kept."""
        found = self.read("SELECT perceptual FROM screens WHERE hash = ?", (hash,))
        return int(found[0][0]) if found else None

    def keep_perceptual(self, hash: str, perceptual: int) -> None:
        """Keep the perceptual hash of a picture: 64 bits, more than SQLite's numbers have, so as text."""
        with self._lock, self._connection:
            self._connection.execute("INSERT OR REPLACE INTO screens VALUES (?, ?)", (hash, str(perceptual)))

    def catch_up(self, seconds: float = 0.3) -> None:
        """Copy rows that are new, for `seconds` at most."""
        if not self._copying.acquire(timeout=seconds):
            return
        try:
            until = time.monotonic() + seconds
            self._drop_if_replaced()
            while self._copy_some() and time.monotonic() < until:
                pass
        finally:
            self._copying.release()

    def read_words(self, seconds: float = 0.5) -> bool:
        """Read the words of episodes that are copied already, for `seconds` at most; return whether some are left."""
        with self._wording:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self._closed or not self._word_some():
                    return False
        return True

    @property
    def size(self) -> tuple[int, int, int]:
        """How many rows are copied, how many of them are searched, and how many there are."""
        copied = self.read("SELECT count(*) FROM rows")[0][0]
        return copied, self.read("SELECT count FROM state")[0][0], self.total

    @property
    def total(self) -> int:
        """How many trajectories the store has."""
        return int(self._from_store("SELECT count(*) FROM trajectories")[0][0])

    def _from_store(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._source_lock, database_errors("cannot read the trajectory store"):
            return self._source.execute(query, values).fetchall()

    def _query(self) -> str:
        columns = ", ".join(name if name in self._columns else "NULL" for name in COPIED)
        return f"SELECT {columns} FROM trajectories"

    def _drop_if_replaced(self) -> None:
        """Forget everything where the store lost rows: a run that resumes collects the steps after its checkpoint anew,
        under the same numbers and ids."""
        newest = self.read("SELECT number, id, created FROM rows ORDER BY number DESC LIMIT 1")
        if not newest:
            return
        there = self._from_store("SELECT number, id, created FROM trajectories WHERE number = ?", newest[0][:1])
        low, copied = self.read("SELECT min(number), count(*) FROM rows")[0]
        kept = self._from_store("SELECT count(*) FROM trajectories WHERE number BETWEEN ? AND ?", (low, newest[0][0]))
        if there == newest and kept[0][0] == copied:
            return
        with self._lock, self._connection:
            self._connection.execute("DELETE FROM rows")
            self._connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
            self._connection.execute("UPDATE state SET high = 0, low = 0, count = 0")
            self._epoch += 1
            self.counted = None

    def _copy_some(self) -> bool:
        """Copy rows behind the newest copied one or, where there are none, before the oldest; return whether more may
        be left."""
        low, high = self.read("SELECT min(number), max(number) FROM rows")[0]
        query = self._query()
        rows = []
        if high is not None:
            rows = self._from_store(f"{query} WHERE number > ? ORDER BY number LIMIT {ROWS}", (high,))
        if not rows:
            before = () if low is None else (low,)
            where = "" if low is None else " WHERE number < ?"
            rows = self._from_store(f"{query}{where} ORDER BY number DESC LIMIT {ROWS}", before)
        with self._lock, self._connection:
            places = ", ".join("?" * len(COPIED))
            self._connection.executemany(f"INSERT INTO rows ({', '.join(COPIED)}) VALUES ({places})", rows)
        return len(rows) > 0

    def _word_some(self) -> bool:
        """Read the words of the next episodes, the newest first; return whether there were some."""
        epoch = self._epoch
        high, low = self.read("SELECT high, low FROM state")[0]
        numbers = self._unworded()
        if not numbers:
            return False
        found = [(number, *self._words(number)) for number in numbers]
        with self._lock, self._connection:
            if epoch != self._epoch:
                return True
            self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [(n, t) for n, t, _ in found])
            marks = [(flags, n) for n, _, flags in found if flags]
            self._connection.executemany("UPDATE rows SET flags = ? WHERE number = ?", marks)
            ends = (max(high, *numbers), min(low or numbers[0], *numbers), len(numbers))
            self._connection.execute("UPDATE state SET high = ?, low = ?, count = count + ?", ends)
        return True

    def _unworded(self) -> list[int]:
        high, low = self.read("SELECT high, low FROM state")[0]
        found = self.read(
            f"SELECT number FROM rows WHERE number > ? ORDER BY number {'' if high else 'DESC'} LIMIT {EPISODES}",
            (high,),
        )
        if not found and high:
            found = self.read(f"SELECT number FROM rows WHERE number < ? ORDER BY number DESC LIMIT {EPISODES}", (low,))
        return [number for (number,) in found]

    def _words(self, number: int) -> tuple[str, str]:
        """Return what is searched of an episode, and its flags."""
        header = self._from_store("SELECT task_id, record FROM trajectories WHERE number = ?", (number,))
        if not header:
            return "", ""
        task_id, record = header[0]
        turns = [json.loads(row[0]) for row in self._from_store(
            "SELECT record FROM turns WHERE trajectory = ? ORDER BY position", (number,))]  # fmt: skip
        replies = [str(turn["action"]["text"]) for turn in turns]
        goal = json.loads(record)["task"]["goal"] or (turns[0]["observation"]["text"] if turns else "")
        text = "\n".join([task_id, goal[:2000], *replies])[:MOST_WORDS]
        return text.encode("utf-8", "replace").decode(), " ".join(flags_of(replies))


def _open(file: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect("" if file is None else file, timeout=10, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -32768")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
                with contextlib.suppress(sqlite3.OperationalError):  # the tables of the search go with it
                    connection.execute(f'DROP TABLE IF EXISTS "{name}"')
        if version != VERSION:
            with connection:
                for statement in _SCHEMA:
                    connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _default_file(store: Path) -> Path:
    """Return the place of the index of a store: another file at the same place has another one."""
    status, place = store.stat(), store.resolve()
    name = hashlib.sha256(f"{VERSION}\0{place}\0{status.st_ino}\0{status.st_dev}".encode()).hexdigest()[:24]
    return cache_folder() / f"{name}.sqlite"
