"""A narrow copy of a run's list of trajectories, for filters, order and search among very many.

The trajectory store is opened read-only, and each read of it is short, so that its log does not grow under the run that
writes it. What only the viewer wants (the words of an episode, flags) stands in a temporary SQLite file, which ends
with the index: that of 100 000 episodes is made in 16 s. Rows come in newest first: the first page is there at once.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from uirl.runtime.patience import COMMANDS, Patience
from uirl.runtime.sqlite import Connection, transaction
from uirl.storage.database import connect, database_errors
from uirl.storage.summaries import column
from uirl.viewer.flags import flags_of

COPIED = (
    *("number", "id", "step", "split", "created", "task_id", "environment", "group_id", "stop_reason", "reward"),
    *("success", "failure", "turns", "level", "verdict"),
)
_COPY = f"SELECT {', '.join(map(column, COPIED))} FROM trajectories"
_OUTCOME = f"SELECT {', '.join(map(column, ('number', 'success', 'verdict')))} FROM trajectories"
ROWS = 5000
"""Rows that are copied in one read."""
EPISODES = 100
"""Episodes whose words are read at once."""
TURNS = 20
"""Turns that are read at once."""
MOST_WORDS = 20_000
"""Characters of one episode that are searched."""
WAIT = 1.0
"""Seconds that the viewer waits for a store that another process holds, before it says so."""
UNREADABLE = "unreadable"
"""Flag of an episode whose record is damaged."""
MOST_SEARCHED = 24
"""Words of a search that count."""
_WORD = re.compile(r"[^\W_]+")
_RUN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U000323af]+"
)
"""Thai, Lao, Burmese, Khmer, kana and Han: a run of letters has many words, and nothing says where each begins."""
_EPOCH = "SELECT epoch FROM state"
_SCHEMA = (
    "PRAGMA synchronous = OFF",
    "PRAGMA cache_size = -32768",
    # of `state`: which numbers were searched for words, all of `rows` from `low` to `high`, and how many; `epoch` grows
    # whenever everything is forgotten: what a thread read before then is not kept
    f"""CREATE TABLE rows (number INTEGER PRIMARY KEY, {", ".join(COPIED[1:])}, flags TEXT NOT NULL DEFAULT '',
        clipped INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX rows_clipped ON rows (number) WHERE clipped",
    "CREATE INDEX rows_by_group ON rows (group_id)",
    "CREATE INDEX rows_by_id ON rows (id)",
    "CREATE VIRTUAL TABLE words USING fts5(text, content = '', detail = none)",
    "CREATE TABLE state (high INTEGER NOT NULL, low INTEGER NOT NULL, count INTEGER NOT NULL, epoch INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0, 0, 0, 0)",
)


class Index:
    """The copy of one store. Its methods may be called from any thread."""

    def __init__(self, store: Path, *, patience: Patience = COMMANDS) -> None:
        """`patience`: how long a read of the store may take. Raises StorageError where there is no store."""
        self.store = store
        self._source = connect(store, read_only=True, wait=WAIT, patience=patience)
        self._source_lock, self._lock = threading.Lock(), threading.RLock()
        self._copying, self._wording = threading.Lock(), threading.Lock()
        self._closed = False
        self._labels: Mapping[str, bool | None] | None = None
        self._looked_at: tuple[Any, ...] = ()
        """State of the store when it was last begun to look for rows that changed."""
        self._look_behind: int | None = None
        """Number behind which it goes on; None: it looked at all of them."""
        self.counted: tuple[tuple[Any, ...], Any] | None = None
        """What `search.facets` counted last, and how many rows there were."""
        self.perceptual: dict[str, int | None] = {}
        """Hash of a picture -> its perceptual hash; None: it was not kept, or is none."""
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False, factory=Connection)
        for statement in _SCHEMA:
            self._connection.execute(statement)

    def close(self) -> None:
        """Close both files. Calling it twice is fine."""
        self._closed = True
        with self._lock, self._source_lock:
            self._source.close()
            self._connection.close()

    @property
    def labelled(self) -> bool:
        """Whether `set_labels` was called."""
        return self._labels is not None

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the copy."""
        with self._lock, database_errors("cannot read the viewer's index"):
            return self._connection.execute(query, values).fetchall()

    def _value(self, query: str, *values: Any) -> Any:
        """Return the first value of the first row of the copy; None: there is no row."""
        rows = self.read(query, values)
        return rows[0][0] if rows else None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """Keep all writes of the context or, on any error, none."""
        with self._lock, database_errors("cannot write the viewer's index"), transaction(self._connection):
            yield self._connection

    def from_store(self, id: str) -> tuple[Any, ...] | None:
        """Return the columns `COPIED` of one trajectory as the store has them, copied already or not; None: it has no
        such trajectory."""
        found = self._from_store(f"{_COPY} WHERE id = ?", (id,))
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
            self._labels = labels

    def catch_up(self, seconds: float = 0.3) -> None:
        """Copy rows that are new, for `seconds` at most, and look at some of the others: they may have been judged."""
        if not self._copying.acquire(timeout=seconds):
            return
        try:
            until = time.monotonic() + seconds
            self._drop_if_replaced()
            while self._copy_some() and time.monotonic() < until:
                pass
            self._look_again()
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

    def refresh(self, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        """Return number -> (success, verdict) as the store has them now, and bring the copy up to date; those that the
        store lost are left out."""
        places = ", ".join("?" * len(numbers))
        rows = self._from_store(f"{_OUTCOME} WHERE number IN ({places})", numbers)
        self._change(rows, f"number IN ({places})", numbers)
        return {row[0]: row[1:] for row in rows}

    def _look_again(self) -> None:
        """Look at the next rows whether they changed, where the store was written since all of them were looked at:
        a verdict may be replaced (`TrajectoryStore.set_verdict`)."""
        state = self._from_store("PRAGMA data_version")[0]
        if self._look_behind is None:
            if state == self._looked_at:
                return
            self._looked_at, self._look_behind = state, 0
        rows = self._from_store(f"{_OUTCOME} WHERE number > ? ORDER BY number LIMIT {ROWS}", (self._look_behind,))
        if rows:
            self._change(rows, "number BETWEEN ? AND ?", (rows[0][0], rows[-1][0]))
        self._look_behind = rows[-1][0] if len(rows) == ROWS else None

    def _change(self, rows: Sequence[tuple[Any, ...]], where: str, values: Sequence[Any]) -> None:
        """Write (number, success, verdict) of `rows` over those of the copy that differ."""
        known = set(self.read(f"SELECT number, success, verdict FROM rows WHERE {where}", values))
        there = {row[0] for row in known}
        changed = [(*row[1:], row[0]) for row in rows if row[0] in there and row not in known]
        if changed:
            with self._writing() as connection:
                connection.executemany("UPDATE rows SET success = ?, verdict = ? WHERE number = ?", changed)
            self.counted = None

    @property
    def clipped(self) -> int:
        """Of how many episodes only the first `MOST_WORDS` characters are searched."""
        return int(self._value("SELECT count(*) FROM rows WHERE clipped"))

    @property
    def size(self) -> tuple[int, int, int]:
        """How many rows are copied, how many of them are searched, and how many there are."""
        total = self._from_store("SELECT count(*) FROM trajectories")[0][0]
        return self._value("SELECT count(*) FROM rows"), self._value("SELECT count FROM state"), total

    def _from_store(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._source_lock, database_errors("cannot read the trajectory store", self._source):
            return self._source.execute(query, values).fetchall()

    def _drop_if_replaced(self) -> None:
        """Forget everything where the store lost rows: a run that resumes collects the steps after its checkpoint anew,
        under the same numbers and ids."""
        newest = self.read("SELECT number, id, created FROM rows ORDER BY number DESC LIMIT 1")
        if not newest:
            return
        there = self._from_store("SELECT number, id, created FROM trajectories WHERE number = ?", newest[0][:1])
        if there == newest and self._kept() == self._value("SELECT count(*) FROM rows"):
            return
        with self._writing() as connection:
            connection.execute("DELETE FROM rows")
            connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
            connection.execute("UPDATE state SET high = 0, low = 0, count = 0, epoch = epoch + 1")
        self.counted = None

    def _ends(self) -> tuple[int | None, int | None]:
        """Return the lowest and the highest number that were copied; None: there are no rows. Each is looked up by
        itself: SQLite goes through all rows for both at once."""
        return self.read("SELECT (SELECT min(number) FROM rows), (SELECT max(number) FROM rows)")[0]

    def _kept(self) -> int:
        """Return how many rows the store has between the lowest and the highest copied one: all but those outside,
        which are few once the copy is whole."""
        outside = "SELECT count(*) FROM trajectories WHERE number"
        query = f"SELECT (SELECT count(*) FROM trajectories) - ({outside} < ?) - ({outside} > ?)"
        return int(self._from_store(query, self._ends())[0][0])  # at one moment: rows come meanwhile

    def _copy_some(self) -> bool:
        """Copy rows behind the newest copied one or, where there are none, before the oldest; return whether more may
        be left."""
        epoch = self._value(_EPOCH)
        low, high = self._ends()
        rows = []
        if high is not None:
            rows = self._from_store(f"{_COPY} WHERE number > ? ORDER BY number LIMIT {ROWS}", (high,))
        if not rows:
            where, before = ("", ()) if low is None else (" WHERE number < ?", (low,))
            rows = self._from_store(f"{_COPY}{where} ORDER BY number DESC LIMIT {ROWS}", before)
        if not rows:
            return False
        places = ", ".join("?" * len(COPIED))
        with self._writing() as connection:
            if epoch == self._value(_EPOCH):  # else another thread forgot all of them
                connection.executemany(f"INSERT INTO rows ({', '.join(COPIED)}) VALUES ({places})", rows)
        return True

    def _word_some(self) -> bool:
        """Read the words of the next episodes, the newest first; return whether there were some."""
        state = self.read("SELECT high, low, epoch FROM state")
        high, low, _ = state[0]
        numbers = self._unworded(high, low)
        if not numbers:
            return False
        found = [(number, *self._words(number)) for number in numbers]
        ends = (max(high, *numbers), min(low or numbers[0], *numbers), len(numbers))
        with self._writing() as connection:
            if state != self.read("SELECT high, low, epoch FROM state"):
                return True  # another thread forgot everything
            connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", [(n, t) for n, t, *_ in found])
            marks = [(flags, clipped, n) for n, _, flags, clipped in found if flags or clipped]
            connection.executemany("UPDATE rows SET flags = ?, clipped = ? WHERE number = ?", marks)
            connection.execute("UPDATE state SET high = ?, low = ?, count = count + ?", ends)
        return True

    def _unworded(self, high: int, low: int) -> list[int]:
        found = self.read(
            f"SELECT number FROM rows WHERE number > ? ORDER BY number {'' if high else 'DESC'} LIMIT {EPISODES}",
            (high,),
        )
        if not found and high:
            found = self.read(f"SELECT number FROM rows WHERE number < ? ORDER BY number DESC LIMIT {EPISODES}", (low,))
        return [number for (number,) in found]

    def _words(self, number: int) -> tuple[str, str, bool]:
        """Return what is searched of an episode, its flags, and whether the episode says more than that."""
        query = f"SELECT {column('task_id')}, record FROM trajectories WHERE number = ?"
        header = self._from_store(query, (number,))
        if not header:
            return "", "", False
        task_id, record = header[0]
        try:
            goal = str(json.loads(record)["task"]["goal"])
            replies = []
            for turn in self._turns(number):
                goal = goal or str(turn["observation"]["text"])
                replies.append(str(turn["action"]["text"]))
        except (ValueError, LookupError, TypeError, RecursionError):
            return task_id, UNREADABLE, False
        text = "\n".join([task_id, goal, *replies])
        told = text[:MOST_WORDS].encode("utf-8", "replace").decode()
        return spaced(told), " ".join(flags_of(replies)), len(text) > MOST_WORDS

    def _turns(self, number: int) -> Iterator[dict[str, Any]]:
        query = "SELECT position, record FROM turns WHERE trajectory = ? AND position > ? ORDER BY position LIMIT ?"
        behind: Any = -1
        while rows := self._from_store(query, (number, behind, TURNS)):
            yield from (json.loads(record) for _, record in rows)
            behind = rows[-1][0]


# -- words ------------------------------------------------------------------------------------------------------------


def spaced(text: str) -> str:
    """Return a text for the index: of a run of letters without spaces every pair of neighbours is a word, and so is the
    last letter. What stands anywhere in a run is found by its pairs."""
    return _RUN.sub(lambda run: f" {' '.join([*_pairs(run[0]), run[0][-1]])} ", text)


def wanted(text: str) -> str | None:
    """Return the words of a search as the index wants them: every word that is typed begins a word of the text; a run
    without spaces stands in it, by its pairs. None: there is no word in it."""
    words: dict[str, None] = {}
    for word in _WORD.findall(_RUN.sub(lambda run: f" {' '.join(_pairs(run[0]) or [run[0]])} ", text)):
        words[f'"{word}"*'] = None
    return " ".join([*words][:MOST_SEARCHED]) or None


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]
