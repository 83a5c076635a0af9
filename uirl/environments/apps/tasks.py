"""Tasks made from a schema: what is asked in words, and the difference of the store, or the answer, that is wanted."""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from uirl.environments.apps.schema import App, Column
from uirl.environments.apps.store import Difference, Row, Rows
from uirl.errors import ConfigError

HELD_OUT_TEMPLATES = ("edit_where", "find_by", "replace")
"""Their tasks are for evaluation alone."""
_DAYS = datetime.date(2020, 1, 1), 2000
_MOST_HIT = 3
"""Records that one task changes at most."""


@dataclass(frozen=True)
class Step:
    """One thing to do: to add a record, to change one, or to remove it."""

    entity: str
    key: Any = None
    """Of the record; None: it is a new one."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Field -> what is entered. Nothing, with a key: the record goes."""


@dataclass(frozen=True)
class Problem:
    """An instance of a task."""

    goal: str
    wanted: Difference
    steps: tuple[Step, ...] = ()
    """What makes the difference, in order."""
    answer: str | None = None
    """What is asked; None: nothing is."""
    about: Step | None = None
    """The record that says the answer; without a key, the list that does."""


@dataclass(frozen=True)
class Kind:
    """A task: a template, an entity, and the fields that it is about."""

    template: str
    entity: str
    fields: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """`group.name/template/field+field`."""
        return "/".join((self.entity, self.template, "+".join(self.fields) or "-"))


def kinds_of(app: App) -> list[Kind]:
    """Return all tasks of an app, in a fixed order."""
    return [kind for name in app.entities for kind in _kinds(app, name)]


def is_held_out(app: App, kind: Kind) -> bool:
    """Return whether a task is for evaluation alone: by its entity, or by its template."""
    return app.entities[kind.entity].held_out or kind.template in HELD_OUT_TEMPLATES


def _kinds(app: App, name: str) -> Iterator[Kind]:
    fields = app.entities[name].fields
    title, *others = fields
    spare = [one for one in others if fields[one].optional]
    shared = [one for one in others if fields[one].kind in ("choice", "flag", "reference")]
    # what a policy could guess is no question
    sure = [one for one in others if not (fields[one].optional or fields[one].guessable)]
    asked = [one for one in sure if fields[one].kind in ("text", "integer", "decimal", "date")]
    free = not app.entities[name].referred and not any(
        column.to == name for entity in app.entities.values() for column in entity.fields.values()
    )
    for count in range(len(spare) + 1):
        yield from (Kind("create", name, some) for some in itertools.combinations(spare, count))
    yield Kind("create_two", name)
    yield from (Kind("edit", name, (one,)) for one in fields)
    yield from (Kind("edit", name, two) for two in itertools.combinations(fields, 2))
    yield from (Kind("edit_two", name, (one,)) for one in others)
    yield from (Kind("edit_where", name, (one, by)) for by in shared for one in others if one != by)
    yield from (Kind("find", name, (one,)) for one in asked)
    yield from (Kind("find_two", name, two) for two in itertools.combinations(asked, 2))
    yield from (Kind("find_by", name, (title, one)) for one in asked)
    yield from (Kind("create_and_edit", name, (one,)) for one in others)
    for one in asked:
        if fields[one].kind in ("integer", "decimal"):
            yield from (Kind("sum_where", name, (one, by)) for by in shared)
    if free:
        yield from (Kind("delete", name), Kind("delete_two", name), Kind("replace", name))
        yield from (Kind("delete_where", name, (by,)) for by in shared)
        yield from (Kind("edit_and_delete", name, (one,)) for one in others)


# -- values ----------------------------------------------------------------------------------------------------------


def draw_value(app: App, column: Column, rng: random.Random, keys: Sequence[Any] = ()) -> Any:
    """Return a value as the store holds it. `keys`: of the records that a reference may name."""
    match column.kind:
        case "text":
            return " ".join(rng.choice(app.words[key]) for key in column.words) or f"text {rng.randrange(10**6)}"
        case "integer":
            return rng.randint(column.low, column.high)
        case "decimal":
            return rng.randint(100 * column.low, 100 * column.high - 1) / 100
        case "date":
            return (_DAYS[0] + datetime.timedelta(rng.randrange(_DAYS[1]))).isoformat()
        case "flag":
            return rng.randrange(2)
        case "choice":
            return rng.choice(column.choices)
        case "reference":
            return rng.choice(keys)


def draw_rows(app: App, rng: random.Random) -> dict[str, list[Row]]:
    """Return new records by table, the keys among their columns: `rows` of each entity, references to what was drawn.

    No two records of an entity have the same name. Half of what is optional is empty.
    """
    found: dict[str, list[Row]] = {}
    keys = range(1, (app.rows or 0) + 1)
    for name, entity in app.entities.items():
        rows: list[Row] = []
        titles: set[str] = set()
        for key in keys:
            row: dict[str, Any] = {entity.primary: key}
            for one, column in entity.fields.items():
                value = draw_value(app, column, rng, keys)
                row[app.column(name, one)] = empty_of(column) if column.optional and rng.random() < 0.5 else value
            row[app.column(name, next(iter(entity.fields)))] = _new_title(app, name, titles, rng)
            rows.append(row)
        found[app.table(name)] = rows
    return found


def _new_title(app: App, name: str, taken: set[str], rng: random.Random) -> str:
    column = next(iter(app.entities[name].fields.values()))
    for _ in range(1000):
        title = str(draw_value(app, column, rng))
        if title not in taken:
            taken.add(title)
            return title
    raise ConfigError(f"{name}: its words make no further name; expected more than {len(taken)}")


def empty_of(column: Column) -> Any:
    """Return what the store holds where nothing is entered."""
    return "" if column.kind in ("text", "choice") else 0 if column.kind == "flag" else None


class _Maker:
    """Makes instances: it knows the rows, and draws what is new."""

    def __init__(self, app: App, rows: Rows, rng: random.Random, kind: Kind) -> None:
        self.app, self.rng, self.kind, self.name = app, rng, kind, kind.entity
        self.fields = app.entities[self.name].fields
        self.title = next(iter(self.fields))
        self.all_rows = rows
        self.rows = rows.get(app.table(self.name), {})
        self.titles = {str(row.get(app.column(self.name, self.title))) for row in self.rows.values()}
        self.label = self.name.split(".")[1].replace("_", " ")
        if not self.rows:
            raise ConfigError(f"{self.name}: its table has no rows; expected some, to make tasks of")

    def value(self, key: Any, one: str) -> Any:
        return self.rows[key][self.app.column(self.name, one)]

    def shown(self, one: str, value: Any) -> str:
        """Return a value as people write it."""
        return shown_value(self.app, self.all_rows, self.fields[one], value)

    def fresh(self, one: str, other_than: Any = None) -> Any:
        """Return a new value of a field, another one than that."""
        if one == self.title:
            return _new_title(self.app, self.name, self.titles, self.rng)
        column = self.fields[one]
        keys = list(self.all_rows.get(self.app.table(column.to), {})) if column.to else ()
        for _ in range(1000):
            value = draw_value(self.app, column, self.rng, keys)
            if value != other_than and (not column.to or self._has_own_name(column.to, value)):
                return value
        raise ConfigError(f"{self.name}.{one} has one value alone, {other_than!r}; expected several")

    def _has_own_name(self, entity: str, key: Any) -> bool:
        column = self.app.column(entity, next(iter(self.app.entities[entity].fields)))
        rows = self.all_rows[self.app.table(entity)]
        return sum(row[column] == rows[key][column] for row in rows.values()) == 1

    def pick(self, count: int, known: Sequence[str] = ()) -> list[Any]:
        """Return keys of different records whose names no other record has. `known`: fields that are not empty."""
        column = self.app.column(self.name, self.title)
        named: dict[Any, list[Any]] = {}
        for key, row in self.rows.items():
            named.setdefault(row[column], []).append(key)
        single = [keys[0] for value, keys in named.items() if len(keys) == 1 and value not in (None, "")]
        single = [key for key in single if all(self.value(key, one) not in (None, "") for one in known)]
        if len(single) < count:
            told = f" and {' and '.join(known)} in it" if known else ""
            raise ConfigError(f"{self.name} has {len(single)} records with a name of their own{told}; expected {count}")
        return self.rng.sample(single, count)

    def named(self, key: Any) -> str:
        return f"the {self.label} {self.value(key, self.title)!s}"

    def words(self, values: Mapping[str, Any]) -> str:
        return ", ".join(f"{one.replace('_', ' ')} {self.shown(one, value)}" for one, value in values.items())

    # what is done, in words, as a step, and as a difference

    def create(self, some: Sequence[str]) -> tuple[str, Step, Difference]:
        values = {one: self.fresh(one) for one, column in self.fields.items() if not column.optional or one in some}
        row = {self.app.column(self.name, one): empty_of(column) for one, column in self.fields.items()}
        row |= {self.app.column(self.name, one): value for one, value in values.items()}
        step = Step(self.name, None, {one: self.shown(one, value) for one, value in values.items()})
        article = "an" if self.label[0] in "aeiou" else "a"
        goal = f"Add {article} {self.label}: {self.words(values)}."
        return goal, step, Difference(((self.app.table(self.name), row),), frozenset(), {})

    def edit(self, key: Any, values: Mapping[str, Any]) -> tuple[str, Step, Difference]:
        changed = {self.app.column(self.name, one): value for one, value in values.items()}
        step = Step(self.name, key, {one: self.shown(one, value) for one, value in values.items()})
        parts = [f"set {one.replace('_', ' ')} to {self.shown(one, value)}" for one, value in values.items()]
        goal = f"Change {self.named(key)}: {' and '.join(parts)}."
        return goal, step, Difference((), frozenset(), {(self.app.table(self.name), key): changed})

    def delete(self, key: Any) -> tuple[str, Step, Difference]:
        gone = frozenset({(self.app.table(self.name), key)})
        return f"Delete {self.named(key)}.", Step(self.name, key), Difference((), gone, {})

    def where(self, by: str) -> tuple[Any, list[Any]]:
        """Return a value of a field and the records that have it: few, but some."""
        groups: dict[Any, list[Any]] = {}
        for key in self.rows:
            groups.setdefault(self.value(key, by), []).append(key)
        known = {value: keys for value, keys in groups.items() if value not in (None, "")}
        few = [value for value, keys in known.items() if len(keys) <= _MOST_HIT] or list(known)
        value = self.rng.choice(few)
        return value, known[value]

    def that(self, by: str, value: Any) -> str:
        return f"{by.replace('_', ' ')} is {self.shown(by, value)}"

    def together(self, *parts: tuple[str, Step, Difference], goal: str = "") -> Problem:
        added = tuple(row for _, _, made in parts for row in made.added)
        removed = frozenset(gone for _, _, made in parts for gone in made.removed)
        changed = {place: row for _, _, made in parts for place, row in made.changed.items()}
        steps = tuple(step for _, step, _ in parts)
        return Problem(goal or " ".join(goal for goal, _, _ in parts), Difference(added, removed, changed), steps)

    def ask(self, goal: str, answer: str, key: Any) -> Problem:
        return Problem(f"{goal} Say it with the action answer.", Difference((), frozenset(), {}), (), answer,
                       Step(self.name, key))  # fmt: skip


def shown_value(app: App, rows: Rows, column: Column, value: Any) -> str:
    """Return a value of the store as people write it; of a reference the name of the record."""
    if value is None or value == "":
        return ""
    if column.kind == "decimal":
        return f"{value:.2f}"
    if column.kind == "flag":
        return "yes" if value else "no"
    if column.kind == "reference":
        name = app.column(column.to, next(iter(app.entities[column.to].fields)))
        return str(rows[app.table(column.to)].get(value, {}).get(name, value))
    return str(value)


def _edit_where(make: _Maker) -> Problem:
    one, by = make.kind.fields
    value, keys = make.where(by)
    new = make.fresh(one)
    while all(make.value(key, one) == new for key in keys):
        new = make.fresh(one, new)
    parts = [make.edit(key, {one: new}) for key in keys if make.value(key, one) != new]
    goal = (
        f"For every {make.label} whose {make.that(by, value)}, set {one.replace('_', ' ')} to {make.shown(one, new)}."
    )
    return make.together(*parts, goal=goal)


def _delete_where(make: _Maker) -> Problem:
    value, keys = make.where(make.kind.fields[0])
    goal = f"Delete every {make.label} whose {make.that(make.kind.fields[0], value)}."
    return make.together(*map(make.delete, keys), goal=goal)


def _sum_where(make: _Maker) -> Problem:
    one, by = make.kind.fields
    value, keys = make.where(by)
    total = sum((Decimal(make.shown(one, make.value(key, one)) or 0) for key in keys), Decimal(0))
    goal = f"What is the sum of {one.replace('_', ' ')} of every {make.label} whose {make.that(by, value)}?"
    return make.ask(goal, str(total), None)


def _find(make: _Maker) -> Problem:
    return _value_of(make, make.kind.fields)


def _value_of(make: _Maker, fields: Sequence[str]) -> Problem:
    (key,) = make.pick(1, fields)  # an empty value would be no question
    words = " and ".join(one.replace("_", " ") for one in fields)
    how = " Write them with a comma between." if len(fields) > 1 else ""
    answer = ", ".join(make.shown(one, make.value(key, one)) for one in fields)
    return make.ask(f"What {'are' if how else 'is'} the {words} of {make.named(key)}?{how}", answer, key)


def _find_by(make: _Maker) -> Problem:
    title, by = make.kind.fields
    values = [make.value(key, by) for key in make.rows]
    telling = [
        key for key in make.rows if (value := make.value(key, by)) not in (None, "") and values.count(value) == 1
    ]
    single = [key for key in make.pick(1, (by,)) if key in telling] or telling
    if not single:  # no value tells a record from the others
        return _value_of(make, (by,))
    goal = f"Which {make.label} has the {by.replace('_', ' ')} {make.shown(by, make.value(single[0], by))}?"
    return make.ask(f"{goal} Give its {title}.", make.shown(title, make.value(single[0], title)), single[0])


def _edited(make: _Maker, key: Any) -> tuple[str, Step, Difference]:
    return make.edit(key, {one: make.fresh(one, make.value(key, one)) for one in make.kind.fields})


TEMPLATES: Mapping[str, Callable[[_Maker], Problem]] = {
    "create": lambda make: make.together(make.create(make.kind.fields)),
    "create_two": lambda make: make.together(make.create(()), make.create(())),
    "edit": lambda make: make.together(_edited(make, *make.pick(1))),
    "edit_two": lambda make: make.together(*(_edited(make, key) for key in make.pick(2))),
    "edit_where": _edit_where,
    "create_and_edit": lambda make: make.together(make.create(()), _edited(make, *make.pick(1))),
    "delete": lambda make: make.together(make.delete(*make.pick(1))),
    "delete_two": lambda make: make.together(*map(make.delete, make.pick(2))),
    "delete_where": _delete_where,
    "replace": lambda make: make.together(make.delete(*make.pick(1)), make.create(())),
    "edit_and_delete": lambda make: (lambda keys: make.together(_edited(make, keys[0]), make.delete(keys[1])))(
        make.pick(2)
    ),
    "find": _find,
    "find_two": _find,
    "find_by": _find_by,
    "sum_where": _sum_where,
}
"""Name -> what makes an instance."""


def make_problem(app: App, rows: Rows, kind: Kind, rng: random.Random) -> Problem:
    """Return an instance of a task for a store with these rows. Raises ConfigError where they allow none."""
    return TEMPLATES[kind.template](_Maker(app, rows, rng, kind))


def is_answer(wanted: str, given: str) -> bool:
    """Return whether an answer says what is wanted: case, spaces around and how a number is written do not matter."""
    # people end with a period, and so do names
    parts, others = (text.strip().rstrip(".").split(",") for text in (wanted, given))
    return len(parts) == len(others) and all(_same(*two) for two in zip(parts, others, strict=True))


def _same(wanted: str, given: str) -> bool:
    wanted, given = " ".join(wanted.split()).casefold(), " ".join(given.split()).casefold()
    try:
        return wanted == given or Decimal(wanted) == Decimal(given)
    except InvalidOperation:
        return False
