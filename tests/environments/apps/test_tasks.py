"""Tasks made from a schema: solvable, never solved before they begin, and none that a guess solves."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter

import pytest

from uirl.environments.apps.schema import App, read_app
from uirl.environments.apps.store import Rows, filled
from uirl.environments.apps.tasks import TEMPLATES, Kind, draw_rows, is_answer, is_held_out, kinds_of, make_problem
from uirl.errors import ConfigError

APP, _ = read_app("django")
KINDS = kinds_of(APP)


def empty_store(app: App) -> bytes:
    connection = sqlite3.connect(":memory:")
    for name, entity in app.entities.items():
        columns = ", ".join(app.column(name, field) for field in entity.fields)
        connection.execute(f"CREATE TABLE {app.table(name)} (id INTEGER PRIMARY KEY, {columns})")
    return connection.serialize()


def rows_of(seed: int) -> Rows:
    return filled(APP, empty_store(APP), draw_rows(APP, random.Random(seed)))[1]


def test_there_are_a_thousand_tasks_in_two_parts_that_share_none() -> None:
    assert len({kind.id for kind in KINDS}) == len(KINDS) >= 1000
    test = [kind for kind in KINDS if is_held_out(APP, kind)]
    train = [kind for kind in KINDS if not is_held_out(APP, kind)]
    assert len(test) > 200 < len(train)
    assert {kind.template for kind in KINDS} == TEMPLATES.keys()
    # each group has an entity that training never sees, and some templates are of the evaluation alone
    unseen = {kind.entity for kind in test} - {kind.entity for kind in train}
    assert {name.split(".")[0] for name in unseen} == {"shop", "school", "clinic"}
    assert {kind.template for kind in test} - {kind.template for kind in train} == {"edit_where", "find_by", "replace"}


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_task_asks_for_something_that_is_not_there_yet(template: str) -> None:
    rows = rows_of(1)
    for kind in (kind for kind in KINDS if kind.template == template):
        problem = make_problem(APP, rows, kind, random.Random(kind.id))
        assert bool(problem.wanted) == (problem.answer is None), kind.id
        assert bool(problem.steps) == bool(problem.wanted), kind.id
        for (table, key), new in problem.wanted.changed.items():
            assert all(rows[table][key][column] != value for column, value in new.items()), kind.id
        for step in problem.steps:
            assert all(value in problem.goal for value in step.values.values()), kind.id


def test_the_seed_makes_the_store_and_the_instance() -> None:
    assert rows_of(3) == rows_of(3) != rows_of(4)
    kind = Kind("edit", "shop.product", ("price",))
    goals = [make_problem(APP, rows_of(3), kind, random.Random(seed)).goal for seed in (1, 1, 2)]
    assert goals[0] == goals[1] != goals[2]


def test_no_constant_answer_is_right_often() -> None:
    answers: Counter[str] = Counter()
    asked = [kind for kind in KINDS if kind.template in ("find", "find_two", "find_by", "sum_where")]
    for seed in range(3):
        rows = rows_of(seed)
        for kind in asked:
            answers[str(make_problem(APP, rows, kind, random.Random(f"{kind.id}{seed}")).answer)] += 1
    assert max(answers.values()) <= 0.02 * answers.total()


def test_names_are_different_and_references_lead_somewhere() -> None:
    drawn = [(rows_of(seed), *named) for seed in range(12) for named in APP.entities.items()]
    for rows, name, entity in drawn:
        title = APP.column(name, next(iter(entity.fields)))
        found = rows[APP.table(name)]
        assert len({row[title] for row in found.values()}) == len(found) == APP.rows
        for field, column in entity.fields.items():
            if column.kind == "reference":
                assert {row[APP.column(name, field)] for row in found.values()} <= set(rows[APP.table(column.to)])


@pytest.mark.parametrize(
    ("wanted", "given", "right"),
    [
        ("12.50", "12.5", True),
        ("Oak lamp", " oak  LAMP. ", True),
        ("7, 2020-01-02", "7,2020-01-02", True),
        ("7, 2020-01-02", "2020-01-02, 7", False),
        ("12.50", "12.51", False),
        ("12", "12, 13", False),
        ("12", "", False),
        ("7", "NaN", False),
    ],
)
def test_an_answer_is_compared_by_what_it_says(wanted: str, given: str, right: bool) -> None:
    assert is_answer(wanted, given) is right


def test_a_store_without_records_makes_no_task() -> None:
    with pytest.raises(ConfigError, match="its table has no rows"):
        make_problem(APP, {}, KINDS[0], random.Random(0))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"command": ["x"]}, "got both"),
        ({"packages": ["django"]}, "has no exact version"),
        ({"entities": {"item": {"fields": {"a": {"kind": "text"}}}}}, "expected group.name"),
        ({"entities": {"a.b": {"fields": {"a": {"kind": "reference", "to": "a.c"}}}}}, "refers to 'a.c'"),
        ({"entities": {"a.b": {"fields": {"a": {"kind": "choice", "choices": ["x"]}}}}}, "at least two"),
        ({"entities": {"a.b": {"fields": {"a": {"kind": "text", "words": ["x"]}}}}}, "no words 'x'"),
        ({"entities": {}}, "entities"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(change: dict, told: str) -> None:
    whole = {"program": "x", "entities": {"a.b": {"fields": {"a": {"kind": "text"}}}}}
    with pytest.raises(ConfigError, match=told):
        App.build({**whole, **change})
