"""Questions about the list of trajectories, as SQL over the index: filters, order, pages, counts."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uirl.runtime.limits import InputError, Limits, read_json, shown
from uirl.viewer.index import COPIED, MOST_WORDS, Index, wanted

SORTS = ("number", "step", "reward", "turns", "created")
FACETS = ("task_id", "stop_reason", "failure", "split", "level", "success")
MOST_ROWS = 500
MOST_VALUES = 1000
"""Values of one facet, the frequent ones."""
LARGEST = 1 << 63
"""Whole numbers of SQLite are smaller."""
_THREE: Mapping[str, int | None] = {"true": 1, "false": 0, "null": None, "none": None}
_LABELS: Mapping[str, int | None] = {"passed": 1, "failed": 0, "none": None}
_CURSOR = Limits(size=200, items=3, depth=1)


@dataclass(frozen=True, slots=True)
class Question:
    """What the page asks for: conditions with their values, order, and place."""

    conditions: tuple[str, ...]
    values: tuple[Any, ...]
    sort: str = "number"
    descending: bool = True
    limit: int = 100
    after: tuple[Any, int] | None = None
    """Value and number of the last row of the page before."""
    words: str | None = None
    """What is searched, as `index.wanted` returns it."""


def read_question(parameters: Mapping[str, str]) -> Question:
    """Return the question of a query string. Raises InputError that names what is not known; empty values are no
    condition."""
    given = {name: value for name, value in parameters.items() if value != ""}
    sort, order = given.pop("sort", "number"), given.pop("order", "desc")
    if sort not in SORTS or order not in ("asc", "desc"):
        raise InputError(
            f"got sort={shown(sort)} and order={shown(order)}, expected one of {', '.join(SORTS)}, asc or desc"
        )
    limit = min(whole("limit", given.pop("limit", "100"), 1), MOST_ROWS)
    after, typed = given.pop("after", None), given.pop("q", None)
    words = None if typed is None else wanted(typed)
    conditions: list[str] = ["0"] if typed is not None and words is None else []
    values: list[Any] = []
    for name, value in given.items():
        if name not in _CONDITIONS:
            raise InputError(f"got the filter {shown(name)}, expected one of {', '.join(_CONDITIONS)}")
        condition, found = _CONDITIONS[name](value)
        conditions.append(condition)
        values += found
    place = None if after is None else _read_cursor(after)
    return Question(tuple(conditions), tuple(values), sort, order == "desc", limit, place, words)


def answer(index: Index, question: Question) -> dict[str, Any]:
    """Return {"rows", "next", "count"}: a page of the rows that fit, the place of the next, and how many fit; of a
    search also, as `clipped`, of how many episodes only a part is searched."""
    where = " AND ".join(question.conditions) or "1"
    source, key = "rows", "rows.number"
    if question.words is not None:
        # words first: they come in the order of the numbers, so that a page of very many hits needs no more than a page
        source, key = "words CROSS JOIN rows ON rows.number = words.rowid", "words.rowid"
        where = f"words MATCH ? AND {where}"
    if "labelled." in where:
        source += " LEFT JOIN labelled ON labelled.id = rows.id"
    values = [*([] if question.words is None else [question.words]), *question.values]
    count = index.read(f"SELECT count(*) FROM {source} WHERE {where}", values)[0][0]
    direction = "DESC" if question.descending else "ASC"
    # a value that is missing stands last, whatever the order
    order = "" if question.sort == "number" else f"rows.{question.sort} {direction} NULLS LAST, "
    further, more = _behind(question)
    columns = ", ".join(f"rows.{name}" for name in (*COPIED, "flags"))
    found = index.read(
        f"SELECT {columns}, (SELECT passed FROM labelled AS said WHERE said.id = rows.id) FROM {source} "
        f"WHERE {where}{further} ORDER BY {order}{key} {direction} LIMIT ?",
        (*values, *more, question.limit + 1),
    )
    rows = [_row(row) for row in found[: question.limit]]
    now = index.refresh([row["number"] for row in rows])
    for row in rows:
        row["success"], row["verdict"] = map(_truth, now.get(row["number"], (row["success"], row["verdict"])))
    last = rows[-1] if len(found) > question.limit else None
    found_here = {"rows": rows, "next": _cursor(last[question.sort], last["number"]) if last else None, "count": count}
    clipped = 0 if question.words is None else index.clipped
    return found_here | ({"clipped": {"episodes": clipped, "characters": MOST_WORDS}} if clipped else {})


def line_of(index: Index, id: str) -> dict[str, Any] | None:
    """Return the line of one trajectory, be it in the index yet or not; None: the store has none of that id."""
    columns = index.from_store(id)
    if columns is None:
        return None
    more = index.read(
        "SELECT (SELECT flags FROM rows WHERE id = ?), (SELECT passed FROM labelled WHERE id = ?)", (id, id)
    )[0]
    return _row((*columns, more[0] or "", more[1]))


def facets(index: Index) -> dict[str, list[tuple[Any, int]]]:
    """Return the values of each facet with their counts, the frequent ones first; those that were counted last, where
    no row has come since."""
    newest = index.read("SELECT count(*), max(number) FROM rows")[0]
    if index.counted is not None and index.counted[0] == newest:
        return index.counted[1]
    found = {}
    for name in FACETS:
        rows = index.read(f"SELECT {name}, count(*) FROM rows GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {MOST_VALUES}")
        found[name] = [(_truth(value) if name == "success" else value, count) for value, count in rows]
    index.counted = newest, found
    return found


def _row(values: Sequence[Any]) -> dict[str, Any]:
    row = dict(zip((*COPIED, "flags", "label"), values, strict=True))
    for name in ("success", "verdict", "label"):
        row[name] = _truth(row[name])
    row["flags"] = row["flags"].split()
    return row


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _behind(question: Question) -> tuple[str, list[Any]]:
    if question.after is None:
        return "", []
    value, number = question.after
    column, beyond = f"rows.{question.sort}", "<" if question.descending else ">"
    if question.sort == "number":
        return f" AND rows.number {beyond} ?", [number]
    if value is None:
        return f" AND ({column} IS NULL AND rows.number {beyond} ?)", [number]
    tie = f"({column} = ? AND rows.number {beyond} ?)"
    return f" AND ({column} {beyond} ? OR {tie} OR {column} IS NULL)", [value, value, number]


def _cursor(value: Any, number: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([value, number]).encode()).decode().rstrip("=")


def _read_cursor(text: str) -> tuple[Any, int]:
    try:
        value, number = read_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), _CURSOR)
        kinds = type(value) is float or value is None or (type(value) is int and abs(value) < LARGEST)
        if kinds and type(number) is int and abs(number) < LARGEST:
            return value, number
    except (ValueError, TypeError):
        pass
    raise InputError(f"got the place {shown(text)}, expected one that an earlier answer named as 'next'")


def whole(name: str, text: str, least: int = 0) -> int:
    """Return the number in a part of an address. Raises InputError where it is none."""
    if not text.isascii() or not text.isdigit() or len(text) > 16 or int(text) < least:
        raise InputError(f"got {name}={shown(text)}, expected a whole number of {least} or more")
    return int(text)


def _one_of(name: str, column: str, words: Mapping[str, Any]) -> Callable[[str], tuple[str, list[Any]]]:
    """Return the condition of a filter with these words; what they stand for may be None: SQL's NULL."""

    def condition(value: str) -> tuple[str, list[Any]]:
        if value not in words:
            raise InputError(f"got {name}={shown(value)}, expected one of {', '.join(words)}")
        return _is(column, words[value])

    return condition


def _is(column: str, value: Any) -> tuple[str, list[Any]]:
    return (f"{column} IS NULL", []) if value is None else (f"{column} = ?", [value])


def _equal(column: str, none: str = "null") -> Callable[[str], tuple[str, list[Any]]]:
    return lambda value: _is(column, None if value == none else value)


_FAILURE = _equal("rows.failure", "none")
_HAS_FLAG = "' ' || rows.flags || ' ' LIKE '% ' || ? || ' %'"
_CONDITIONS: dict[str, Callable[[str], tuple[str, list[Any]]]] = {
    "task": _equal("rows.task_id"),
    "task_prefix": lambda value: ("substr(rows.task_id, 1, ?) = ?", [len(value), value]),
    "success": _one_of("success", "rows.success", _THREE),
    "verdict": _one_of("verdict", "rows.verdict", _THREE),
    "label": _one_of("label", "labelled.passed", _LABELS),
    "step_from": lambda value: ("rows.step >= ?", [whole("step_from", value)]),
    "step_to": lambda value: ("rows.step <= ?", [whole("step_to", value)]),
    "stop_reason": _equal("rows.stop_reason"),
    "failure": lambda value: ("rows.failure IS NOT NULL", []) if value == "any" else _FAILURE(value),
    "split": _equal("rows.split"),
    "level": _equal("rows.level"),
    "group": _equal("rows.group_id"),
    "flag": lambda value: (_HAS_FLAG, [value.replace("%", "").replace("_", "")]),
}
