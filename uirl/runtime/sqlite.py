"""SQLite files that may be anybody's: nothing in them, or beside them, does what no file of ours does."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.runtime.files import leads_out, storage_errors
from uirl.runtime.limits import in_column
from uirl.runtime.patience import Patience

LARGEST = 256 << 20
"""Bytes of one value of a file that may be somebody else's."""


class Connection(sqlite3.Connection):
    """A connection that takes any text as a value, by `in_column`."""

    patience: Patience | None = None
    """What ends its statements where they take too long; None: they may take any time."""
    snapshot = False
    """Whether it shows the file as it was when it was opened: its folder cannot be written, so that readers and a
    writer cannot tell each other of anything."""

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which its patience counts."""
        return contextlib.nullcontext() if self.patience is None else self.patience.watch(self)

    def execute(self, query: str, values: Any = (), /) -> sqlite3.Cursor:
        """Execute one statement."""
        return super().execute(query, _in_columns(values))

    def executemany(self, query: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """Execute one statement for every row."""
        return super().executemany(query, map(_in_columns, rows))


def _in_columns(values: Sequence[Any]) -> Sequence[Any]:
    return [in_column(value) if isinstance(value, str) else value for value in values]


def open_file(path: Path, how: str = "", *, wait: float, patience: Patience) -> Connection:
    """Return a connection to an SQLite file that may be anybody's: no view or trigger of it computes anything with
    functions, no value fills the memory, no file beside it leads elsewhere. `how`: the query of the address.

    Raises StorageError, and errors of SQLite."""
    _require_plain(path)
    address = path.absolute().as_uri() + how
    connection = sqlite3.connect(
        address, uri=True, timeout=wait, isolation_level=None, check_same_thread=False, factory=Connection
    )
    connection.patience = patience
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST)
    with closed_on_error(connection), patience.watch(connection):
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        if "vfs" in how:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


_SUPER = bytes.fromhex("d9d505f920a163d7")
"""At the end of a journal: the name of another file stands before it, which SQLite may then delete."""


def _require_plain(path: Path) -> None:
    """Raise StorageError where the file, or one that SQLite opens with it, is a link out of its folder, no plain file,
    or a journal that names further files."""
    for file in (path, *(Path(f"{path}{ending}") for ending in ("-wal", "-shm", "-journal"))):
        if leads_out(file, file.parent) or (file.exists() and not file.is_file()):
            raise StorageError(f"{file} is a link or no plain file; expected the file itself: name it, or move it away")
    journal = Path(f"{path}-journal")
    with storage_errors(f"cannot read {journal}"):
        if journal.exists() and journal.stat().st_size > len(_SUPER):
            with journal.open("rb") as file_of_journal:
                file_of_journal.seek(-len(_SUPER), 2)
                if file_of_journal.read() == _SUPER:
                    raise StorageError(f"{journal} names further files, as no run writes it; move it away")


def require_tables(connection: sqlite3.Connection, path: Path, tables: Mapping[str, Collection[str]]) -> None:
    """Raise StorageError where one of the tables (name -> columns) is none that is kept as rows, or where the file
    computes anything by itself: a view, a trigger, a virtual table, a generated column."""
    for name, text in connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL"):
        if not re.match(r"CREATE (TABLE|(UNIQUE )?INDEX) ", str(text), re.IGNORECASE):
            raise StorageError(f"{path} holds {str(name)!r:.80}, {str(text)!r:.60}; expected tables and indices alone")
    for table, columns in tables.items():
        found = {name: hidden for _, name, *_, hidden in connection.execute(f"PRAGMA table_xinfo({table})")}
        missing = [name for name in columns if name not in found]
        if missing or any(found.values()):
            raise StorageError(
                f"{path}: the table {table} has the columns {', '.join(map(str, found)) or 'of no table'}; expected "
                f"{', '.join(columns)}, none of them computed; no run wrote this file"
            )


@contextlib.contextmanager
def closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    """Close the connection where the context raises."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


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
