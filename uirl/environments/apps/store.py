"""The store of an app, read from outside of it: all rows of all tables, and what became different."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.environments.apps.schema import App
from uirl.errors import StorageError
from uirl.runtime.patience import Patience
from uirl.runtime.sqlite import Connection, open_file

Row = Mapping[str, Any]
"""Column -> value."""
Rows = Mapping[str, Mapping[Any, Row]]
"""Table -> key -> row."""
MOST_ROWS = 100_000
_WAIT = 5.0
_PATIENCE = Patience(_WAIT)


@dataclass(frozen=True)
class Difference:
    """What was done to a store."""

    added: tuple[tuple[str, Row], ...] = ()
    """Tables and new rows, without their keys."""
    removed: frozenset[tuple[str, Any]] = frozenset()
    """Tables and keys."""
    changed: Mapping[tuple[str, Any], Row] = ()  # type: ignore[assignment]
    """Table and key -> the columns that changed, with their new values."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def equals(self, other: Difference) -> bool:
        """Return whether both are the same, in whatever order rows were added."""
        same = self.removed == other.removed and dict(self.changed) == dict(other.changed)
        return same and Counter(map(_plain, self.added)) == Counter(map(_plain, other.added))


def _plain(added: tuple[str, Row]) -> tuple[Any, ...]:
    table, row = added
    # an app writes nothing as NULL or as an empty text
    return table, *sorted((column, _value(value)) for column, value in row.items() if value not in (None, ""))


def _value(value: Any) -> tuple[str, str]:
    number = isinstance(value, (int, float))
    return ("number", str(float(value))) if number else (type(value).__name__, str(value))


class Store:
    """The store of a session as it is now. Raises StorageError where it cannot be read."""

    def __init__(self, app: App, file: Path) -> None:
        self._app, self._file = app, file
        self._seen: tuple[Any, Rows] = (None, {})

    def rows(self) -> Rows:
        """Return all rows, but for the tables and columns that the app writes by itself."""
        state = [_state(Path(f"{self._file}{ending}")) for ending in ("", "-wal", "-journal")]
        if self._seen[0] != state:
            self._seen = state, read_rows(self._app, self._file)
        return self._seen[1]


def _state(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            status = file.stat()
            return opened.read(100), status.st_mtime_ns, status.st_size
    except OSError:
        return None


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Connection]:
    try:
        with contextlib.closing(open_file(file, wait=_WAIT, patience=_PATIENCE)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StorageError(f"the store {file.name} cannot be read: {error}") from error


def read_rows(app: App, file: Path) -> Rows:
    """Return all rows of a file. Raises StorageError where it is damaged, locked or too long."""
    with _opened(file) as connection, connection.watched():
        return all_rows(app, connection)


def all_rows(app: App, connection: sqlite3.Connection) -> Rows:
    """Return all rows that a connection shows."""
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    keys = {app.table(name): entity.primary for name, entity in app.entities.items()}
    found: dict[str, dict[Any, Row]] = {}
    for (table,) in connection.execute(tables).fetchall():
        own = app.own.get(table)
        if own is not None and not own:
            continue
        # what SQLite computes of other columns is not among them
        info = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        columns = [column[1] for column in info]
        primary = [column[1] for column in info if column[5]]
        key = keys.get(table) or (primary[0] if len(primary) == 1 else None)
        kept = [(place, name) for place, name in enumerate(columns) if name != key and name not in (own or ())]
        named = ", ".join(map(quoted, columns))
        read = connection.execute(f"SELECT {named} FROM {quoted(table)} LIMIT {MOST_ROWS + 1}").fetchall()
        if len(read) > MOST_ROWS:
            raise StorageError(f"the table {table} has more than {MOST_ROWS} rows")
        at = columns.index(key) if key is not None else None
        # rows without one key, or with that of another, are what they hold, and how often
        count: Counter[Any] = Counter()
        found[table] = rows = {}
        for row in read:
            values = {name: row[place] for place, name in kept}
            if at is None or row[at] is None or row[at] in rows:
                content = tuple(values.items())
                count[content] += 1
                rows[content, count[content]] = values
            else:
                rows[row[at]] = values
    return found


def whole_store(file: Path) -> bytes:
    """Return a store as one file, with what lies in a log beside it. Raises StorageError where it cannot be read."""
    with _opened(file) as connection:
        store = connection.serialize()
    # bytes 18 and 19 say that there is a log (2), which memory has not
    return store[:18] + b"\1\1" + store[20:]


def quoted(name: str) -> str:
    """Return the name of a table or a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def difference(before: Rows, now: Rows) -> Difference:
    """Return what makes `now` of `before`. A table that came or went is one with rows that did."""
    added: list[tuple[str, Row]] = []
    removed: set[tuple[str, Any]] = set()
    changed: dict[tuple[str, Any], Row] = {}
    for table in {**before, **now}:
        old, new = before.get(table, {}), now.get(table, {})
        if old is new:
            continue
        removed |= {(table, key) for key in old.keys() - new.keys()}
        added += [(table, new[key]) for key in new if key not in old]
        for key in old.keys() & new.keys():
            if old[key] != new[key]:
                names = {**old[key], **new[key]}
                changed[table, key] = {n: new[key].get(n) for n in names if old[key].get(n) != new[key].get(n)}
    return Difference(tuple(added), frozenset(removed), changed)


def filled(app: App, template: bytes, inserts: Mapping[str, Sequence[Row]]) -> tuple[bytes, Rows]:
    """Return a store with further rows, by table, and all its rows."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(template)
        for table, rows in inserts.items():
            if rows:
                names = list(rows[0])
                slots = ", ".join("?" * len(names))
                command = f"INSERT INTO {quoted(table)} ({', '.join(map(quoted, names))}) VALUES ({slots})"
                connection.executemany(command, [tuple(row[name] for name in names) for row in rows])
        connection.commit()
        return connection.serialize(), all_rows(app, connection)
