"""An app file made of what is in a store: entities, kinds of fields, words, and what the app writes by itself."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from uirl.environments.apps.store import MOST_ROWS, quoted
from uirl.errors import ConfigError, StorageError
from uirl.runtime.patience import COMMANDS
from uirl.runtime.sqlite import open_file

FEWEST_ROWS = 3
"""Of a table that tasks are made of."""
_MOST_WORDS, _MOST_CHOICES, _LONGEST = 40, 6, 60
_OFTEN = 4
"""A value in more than one row of so many is no answer to a question: it could be guessed."""
_BY_ITSELF = re.compile(r"(created|updated|modified|changed|touched|version|timestamp)|_(at|on|ts)$", re.IGNORECASE)
_LOGS = re.compile(r"(^|_)(logs?|sessions?|migrations?|history|versions?|schema|cache|jobs?)($|_)", re.IGNORECASE)

_Keys = Mapping[tuple[str, str | None], str]
"""(table, its key, or None) -> entity."""


def describe(file: Path, group: str) -> dict[str, Any]:
    """Return `entities`, `words` and `own` of the store, as an app file writes them.

    An entity is a table with a primary key of one column, some rows, and a text that tells them apart. Raises
    ConfigError where there is none, or the file is no store.
    """
    try:
        with closing(open_file(file, "?mode=ro", wait=5.0, patience=COMMANDS)) as connection, connection.watched():
            return _described(connection, group)
    except (sqlite3.Error, StorageError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; expected an SQLite file") from error


def _described(connection: sqlite3.Connection, group: str) -> dict[str, Any]:
    found = connection.execute(
        "SELECT one.name, list.type FROM sqlite_schema one JOIN pragma_table_list list USING (name) WHERE "
        "one.type = 'table' AND list.schema = 'main' AND one.name NOT LIKE 'sqlite%' ORDER BY one.rowid"
    )
    tables = dict(found.fetchall())
    words: dict[str, list[str]] = {}
    # triggers write the tables of an index of words, which are virtual and its shadows
    own: dict[str, list[str]] = {table: [] for table, kind in tables.items() if kind != "table" or _LOGS.search(table)}
    drawn = {table: _Table(connection, table, tables) for table in tables if table not in own}
    usable = {table: one for table, one in drawn.items() if one.title}
    names: dict[str, str] = {}
    for table in usable:
        name = f"{group}." + re.sub(r"\W", "_", table)
        names[table] = f"{name}_{len(names)}" if name in names.values() else name
    keys = {(table, key): names[table] for table, one in usable.items() for key in (None, one.primary.casefold())}
    referred = {target for one in drawn.values() for target, _ in one.references.values()}
    for table, one in drawn.items():
        if one.by_itself:
            own[table] = one.by_itself
    entities = {
        names[table]: {"table": table, "primary": one.primary, "fields": one.fields(keys, words)}
        | ({"referred": True} if table in referred else {})
        for table, one in usable.items()
    }
    if not entities:
        raise ConfigError(
            f"no table of {', '.join(tables) or 'the store'} makes tasks: expected one with a primary key, at least "
            f"{FEWEST_ROWS} rows, and a text that is different in all of them"
        )
    return {"entities": entities, "words": words, "own": own}


class _Table:
    """One table: its key, its columns with their values, and the one that names a row."""

    def __init__(self, connection: sqlite3.Connection, table: str, tables: Iterable[str]) -> None:
        self.table = table
        info = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        keys = [name for _, name, _, _, _, place in info if place]
        self.primary = keys[0] if len(keys) == 1 else ""
        self.types = {name: str(kind).upper() for _, name, kind, _, _, _ in info}
        self.optional = {name for _, name, _, needed, default, place in info if not (needed or place or default)}
        spelled = {one.casefold(): one for one in tables}
        self.references = {
            column: (spelled.get(target.casefold(), target), named and named.casefold())
            for _, _, target, column, named, *_ in connection.execute(f"PRAGMA foreign_key_list({quoted(table)})")
        }
        """Column -> (table, its column; None: its key)."""
        self.by_itself = [
            name
            for name in self.types
            if name != self.primary and (_BY_ITSELF.search(name) or "TIME" in self.types[name])
        ]
        (all_of_it,) = connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()
        if all_of_it >= MOST_ROWS:
            raise ConfigError(
                f"the table {table} has {all_of_it} rows; expected fewer than {MOST_ROWS}, as all are compared after "
                "every action: remove some from a copy of the store, and name that"
            )
        # by name: computed columns are no part of what can be entered, and `*` has them
        named = ", ".join(map(quoted, self.types))
        rows = connection.execute(f"SELECT {named} FROM {quoted(table)} LIMIT 1000").fetchall()
        self.count = len(rows)
        self.values = {name: [row[place] for row in rows] for place, name in enumerate(self.types)}
        for name, values in self.values.items():
            if isinstance(values[0] if values else None, str) and values[0] and self.count >= FEWEST_ROWS:
                # one text in all rows is what the app enters
                self.by_itself += [name] * (name not in self.by_itself and len(set(values)) == 1)
        self.title = next(filter(self._names_rows, self.types), "") if self.primary else ""

    def _names_rows(self, column: str) -> bool:
        values = self.values[column]
        texts = [value for value in values if isinstance(value, str) and 0 < len(value) <= _LONGEST]
        usable = column != self.primary and column not in self.by_itself and column not in self.references
        return usable and self.count >= FEWEST_ROWS and len(set(texts)) == len(values)

    def fields(self, keys: _Keys, words: dict[str, list[str]]) -> dict[str, Any]:
        """Return the fields as an app file writes them, the title first; their words go to `words`."""
        others = [name for name in self.types if name not in (self.primary, self.title, *self.by_itself)]
        made = {}
        for column in (self.title, *others):
            field = self._field(column, keys, words)
            if field is not None:
                field |= {"column": column}
                # people, and most forms, call it by what it refers to
                short = column.removesuffix("_id") if field["kind"] == "reference" else column
                said = {
                    "optional": self._may_be_empty(column, field["kind"]),
                    "guessable": self._may_be_guessed(column, field["kind"]),
                }
                made[short if short not in (*self.types, "") else column] = field | {k: v for k, v in said.items() if v}
        return made

    def _may_be_empty(self, column: str, kind: str) -> bool:
        empty = any(value in (None, "") for value in self.values[column])
        return empty and column in self.optional and column != self.title and kind != "flag"

    def _may_be_guessed(self, column: str, kind: str) -> bool:
        if kind not in ("text", "integer", "decimal", "date"):
            return False
        often = Counter(value for value in self.values[column] if value not in (None, "")).most_common(1)[0][1]
        return often > max(1, self.count // _OFTEN)

    def _field(self, column: str, keys: _Keys, words: dict[str, list[str]]) -> dict[str, Any] | None:
        known = [value for value in self.values[column] if value not in (None, "")]
        if column in self.references:
            target = keys.get(self.references[column])
            return None if target is None else {"kind": "reference", "to": target}
        kind = self.types[column]
        if not known or any(isinstance(value, bytes) for value in known):
            return None
        if all(isinstance(value, str) for value in known):
            return self._text(column, known, words)
        if any(isinstance(value, str) for value in known):
            return None
        if "BOOL" in kind or set(known) <= {0, 1}:
            return {"kind": "flag"}
        whole = all(isinstance(value, int) for value in known) and not re.search("DEC|NUM|REAL|DOUB|FLOA", kind)
        low, high = int(min(known)), int(max(known)) + 1
        return {"kind": "integer" if whole else "decimal", "low": low, "high": max(high, low + 500)}

    def _text(self, column: str, known: Sequence[str], words: dict[str, list[str]]) -> dict[str, Any] | None:
        if all(re.fullmatch(r"\d{4}-\d\d-\d\d", value) for value in known):
            return {"kind": "date"}
        different = list(dict.fromkeys(known))
        if column != self.title and 2 <= len(different) <= min(_MOST_CHOICES, self.count // 2):
            return {"kind": "choice", "choices": different}
        if any(len(value) > _LONGEST or not value.isprintable() for value in known):
            return None
        key = f"{self.table}.{column}"
        words[key] = different[:_MOST_WORDS]
        # a new name is made of two that are there
        return {"kind": "text", "words": [key, key] if column == self.title else [key]}
