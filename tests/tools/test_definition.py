"""ToolDefinition: hints and docstrings become JSON Schema, and wrong arguments become words for the policy."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from uirl.errors import ConfigError, ContractError
from uirl.tools import ToolDefinition, schema
from uirl.tools.definition import _short


class Unit(Enum):
    METRE = "m"
    FOOT = "ft"


@dataclass
class Point:
    x: int
    y: int = 0


class Box(BaseModel):
    corner: Point
    title: str = "box"


class Tree(BaseModel):
    children: list[Tree]


def convert(value: float, unit: Unit, tags: list[str] | None = None, *, exact: bool = False) -> str:
    """Converts a length.

    A second paragraph,
    of two lines.

    Args:
        value (float): How much.
        unit: Of the result,
            as written on the map: m or ft.
        exact: No rounding.

    Returns:
        The length.
    """
    return f"{value} {unit} {tags} {exact}"


def test_schema_of_a_documented_function() -> None:
    definition = ToolDefinition.from_function(convert)
    assert definition.schema() == {
        "type": "function",
        "function": {
            "name": "convert",
            "description": "Converts a length.\n\nA second paragraph,\nof two lines.",
            "parameters": {
                "type": "object",
                "properties": {
                    "value": {"type": "number", "description": "How much."},
                    "unit": {
                        "enum": ["m", "ft"],
                        "type": "string",
                        "description": "Of the result, as written on the map: m or ft.",
                    },
                    "tags": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}]},
                    "exact": {"type": "boolean", "description": "No rounding.", "default": False},
                },
                "required": ["value", "unit"],
            },
        },
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Literal["a", "b"], {"enum": ["a", "b"], "type": "string"}),
        (Unit, {"enum": ["m", "ft"], "type": "string"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, Field(ge=0)], {"type": "integer", "minimum": 0}),
        (date, {"type": "string", "format": "date"}),
        (Any, {}),
        (
            Box,
            {
                "type": "object",
                "properties": {
                    "corner": {
                        "type": "object",
                        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                        "required": ["x"],
                    },
                    "title": {"type": "string", "default": "box"},
                },
                "required": ["corner"],
            },
        ),
    ],
)
def test_every_hint_has_a_flat_schema(hint: Any, schema: dict[str, Any]) -> None:
    def tool(value) -> None: ...

    tool.__annotations__["value"] = hint
    assert ToolDefinition.from_function(tool).parameters["properties"]["value"] == schema


def test_arguments_may_have_the_names_of_model_attributes() -> None:
    def save(json: str, schema: int, title: str, copy: bool = True) -> None: ...

    parameters = ToolDefinition.from_function(save).parameters
    assert list(parameters["properties"]) == ["json", "schema", "title", "copy"]
    assert parameters["required"] == ["json", "schema", "title"]


def no_hint(x): ...


def opaque(x: int, y: Callable[[int], int]) -> None: ...


def positional(x: int, /) -> None: ...


def star(*x: int) -> None: ...


def unknown_name(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def holds_itself(x: Tree) -> None: ...


def wrong_default(x: int = "three") -> None: ...  # type: ignore[assignment]


def wrong_words(x: int) -> None:
    """Does.

    Args:
        y: Not there.
    """


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_hint, "'x' of no_hint has no type hint"),
        (opaque, "'y' of opaque has the type hint .*Callable.* no JSON form"),
        (positional, "by position"),
        (star, "by position"),
        (unknown_name, "'Nowhere' is not defined"),
        (holds_itself, "holds itself"),
        (wrong_default, "'x' of wrong_default has the default 'three'"),
        (wrong_words, "describes 'y', which is no parameter; it has x"),
    ],
)
def test_functions_that_cannot_be_described_are_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        ToolDefinition.from_function(function)


def test_further_arguments_are_announced_where_the_function_takes_them() -> None:
    def log(level: int, **fields: str) -> None: ...

    definition = ToolDefinition.from_function(log)
    assert definition.parameters["additionalProperties"] is True
    assert definition.check({"level": 1, "user": "eve"}) is None


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("two words", {"type": "object"}, "expected a name of letters"),
        ("x" * 129, {"type": "object"}, "at most|expected a name"),
        ("t", {"type": "string"}, "expected a JSON Schema"),
        ("t", {"type": "object", "properties": {"a": {"type": "integr"}}}, "no JSON Schema: 'integr'.*properties.a"),
        ("t", {"type": "object", "properties": {"a": {"default": object()}}}, "are not JSON"),
        ("t", {"type": "object", "properties": {"a": {"default": float("nan")}}}, "are not JSON"),
    ],
)
def test_definitions_are_checked_when_made(name: str, parameters: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ToolDefinition(name, "", parameters)


def test_a_definition_is_plain_data_of_its_own() -> None:
    parameters: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    definition = ToolDefinition("t", "Does.", parameters)
    parameters["properties"]["a"]["type"] = "string"
    assert definition.check({"a": 1}) is None
    assert pickle.loads(pickle.dumps(definition)) == definition
    assert copy.deepcopy(definition) is definition
    json.dumps(definition.schema())


FORM = ToolDefinition(
    "form",
    "",
    {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1},
            "colour": {"enum": ["red", "green"]},
            "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "items": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "place": {
                "type": "object",
                "properties": {"street": {"type": "string"}},
                "required": ["street"],
                "additionalProperties": False,
            },
        },
        "required": ["count"],
    },
)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"count": 3, "colour": "red", "size": None, "items": [{"x": 1}], "place": {"street": "a"}}, None),
        ({}, "missing argument 'count' (integer)"),
        ({"count": "3"}, "argument 'count': got \"3\" (string), expected integer"),
        ({"count": True}, "argument 'count': got true (boolean), expected integer"),
        ({"count": 0}, "argument 'count': got 0 (integer), expected minimum 1"),
        ({"count": 1, "coulour": "red"}, "unexpected argument 'coulour'; did you mean 'colour'?"),
        ({"count": 1, "colour": "blue"}, 'argument \'colour\': got "blue" (string), expected one of "red", "green"'),
        ({"count": 1, "size": "big"}, "argument 'size': got \"big\" (string), expected number or null"),
        ({"count": 1, "items": [{"x": 1}, {"x": "b"}]}, "argument 'items[1].x': got \"b\" (string), expected integer"),
        ({"count": 1, "place": {}}, "argument 'place': missing 'street'"),
        (
            {"count": 1, "place": {"street": "a", "stret": "b"}},
            "argument 'place': unexpected 'stret'; did you mean 'street'?",
        ),
        ([1], "arguments must be an object, got [1] (array)"),
        ("x", 'arguments must be an object, got "x" (string)'),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(arguments: Any, problem: str | None) -> None:
    assert FORM.check(arguments) == problem


def test_a_tool_without_parameters_takes_none() -> None:
    assert ToolDefinition("now").check({}) is None
    assert ToolDefinition("now").check({"zone": 1}) == "unexpected argument 'zone'; it takes none"


def test_schemas_that_speak_of_other_arguments_are_left_to_themselves() -> None:
    open_schema = {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}
    definition = ToolDefinition("t", "", open_schema)
    assert definition.check({"any": 1}) is None
    assert definition.check({"any": "x"}) == "argument 'any': got \"x\" (string), expected integer"
    assert ToolDefinition("t", "", {"type": "object"}).check({"any": 1}) is None


def test_no_schema_is_fetched_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "integer"}')
    reference = (tmp_path / "s.json").as_uri()
    definition = ToolDefinition("t", "", {"type": "object", "properties": {"a": {"$ref": reference}}})
    with pytest.raises(ContractError, match="inline its definitions"):
        definition.check({"a": 1})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["count", "colour", "size", "items", "place", "other"]), plain))
def test_no_arguments_make_the_check_raise(arguments: dict[str, Any]) -> None:
    answer = FORM.check(arguments)
    fits = isinstance(arguments.get("count"), int | float) and "other" not in arguments
    assert answer is None or (answer and len(answer) < 1500)
    assert answer is not None or fits


EMAIL = r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.]{1}[a-z]{2,3}))$"
"""A pattern that is in use, and takes exponential time for what does not fit."""


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"mail": {"type": "string", "pattern": EMAIL}}},
        {"patternProperties": {EMAIL: {"type": "string"}}},
        {"patternProperties": {EMAIL: {"type": "string"}}, "additionalProperties": False},
        {"propertyNames": {"pattern": EMAIL}},
        {"properties": {"all": {"type": "array", "items": {"pattern": EMAIL}}}},
    ],
)
def test_no_pattern_takes_longer_than_its_time(parameters: dict[str, Any]) -> None:
    tool = ToolDefinition("send", parameters={"type": "object", **parameters})
    slow = "a" * 60 + "!"
    started = time.thread_time()
    tool.check(
        {"mail": slow, slow: "x", "all": [slow] * 1000}
        if "properties" not in parameters
        else {name: slow if name == "mail" else [slow] * 1000 for name in parameters["properties"]}
    )
    assert time.thread_time() - started < 2.0  # 2 ** 60 steps would take centuries


def test_a_pattern_that_takes_its_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PATTERN_SECONDS", 0.0)
    tool = ToolDefinition("send", parameters={"type": "object", "properties": {"mail": {"pattern": EMAIL}}})
    assert "take more than 0 s to compare with the pattern" in str(tool.check({"mail": "ann@example.org"}))


@pytest.mark.parametrize("arguments", [{f"a{i}": 1 for i in range(100_000)}, {"x": [0] * 100_000}])
def test_more_arguments_than_anybody_means_are_refused_at_once(arguments: dict[str, Any]) -> None:
    assert FORM.check(arguments) == "the object of arguments holds too many values; expected at most 10000"


def test_thousands_of_unknown_arguments_are_told_by_three() -> None:
    known = {f"argument_{i}": {} for i in range(900)}
    tool = ToolDefinition("t", parameters={"type": "object", "properties": known})
    started = time.thread_time()
    problem = tool.check({f"argumentt_{i}{'x' * 400}": 1 for i in range(9_000)})
    assert time.thread_time() - started < 2.0  # to compare each with each would take minutes
    assert str(problem).endswith("and 8997 more")


def test_patterns_mean_what_they_meant() -> None:
    tool = ToolDefinition("send", parameters={"type": "object", "properties": {"mail": {"pattern": EMAIL}}})
    assert tool.check({"mail": "ann.lee@example.org"}) is None
    assert tool.check({"mail": "ann"}) == f"argument 'mail': got \"ann\" (string), expected pattern {_short(EMAIL)}"
    ahead = ToolDefinition("t", parameters={"type": "object", "properties": {"x": {"pattern": "^(?=.*[0-9]).{4,}$"}}})
    assert (ahead.check({"x": "abc1"}), ahead.check({"x": "abcd"}) is None) == (None, False)
    others = {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert ToolDefinition("t", parameters=others).check({"x-a": 1}) is None
    assert "expected integer" in str(ToolDefinition("t", parameters=others).check({"x-a": "1"}))
    assert "unexpected 'y'" in str(ToolDefinition("t", parameters=others).check({"y": 1}))
    for broken in (
        {"properties": {"x": {"pattern": "("}}},
        {"patternProperties": {"^a": {}}, "unevaluatedProperties": False},
    ):
        with pytest.raises(ConfigError, match="no JSON Schema"):
            ToolDefinition("t", parameters={"type": "object", **broken})


@pytest.mark.parametrize(
    ("items", "fit"), [([1, 1.0], False), ([1, True], True), ([{"a": [1]}, {"a": [1]}], False), ([[1], [2], "1"], True)]
)
def test_items_are_unique_as_json_schema_means_it(items: list[Any], fit: bool) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    assert (ToolDefinition("t", parameters=schema).check({"x": items}) is None) is fit


def test_items_whose_hashes_collide_are_compared_as_fast_as_others() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    tool = ToolDefinition("t", parameters=schema)
    prime = sys.hash_info.modulus
    started = time.thread_time()
    assert tool.check({"x": [i * prime for i in range(9_000)]}) is None
    assert time.thread_time() - started < 1.0  # each with each takes several


TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/tree"}},
    "$defs": {
        "tree": {
            "oneOf": [
                {"type": "object", "properties": {"is": {"const": kind}, "of": {"$ref": "#/$defs/tree"}}}
                for kind in ("not", "maybe")
            ]
        }
    },
}


@pytest.mark.parametrize("levels", [30, 60])
def test_a_schema_that_refers_to_itself_takes_a_bounded_time(levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = {"of": value}
    assert "more than 10000 steps" in str(ToolDefinition("t", parameters=TREE).check({"root": value}))


def test_a_schema_that_is_itself_is_the_arguments_limit() -> None:
    tool = ToolDefinition("t", parameters={"type": "object", "allOf": [{"$ref": "#"}]})
    assert "nested too deep" in str(tool.check({}))


def test_a_schema_that_names_its_draft_keeps_the_limits_where_it_refers_to_its_root() -> None:
    parameters = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"inner": {"$ref": "#"}, "mail": {"type": "string", "pattern": EMAIL}},
    }
    mail = "a" * 22 + "!"
    told = ToolDefinition("t", parameters=parameters).check({"inner": {"mail": "ann"}})
    assert told == f"argument 'inner.mail': got \"ann\" (string), expected pattern {_short(EMAIL)}"
    (error,) = schema.errors_of(schema.validator_of(json.dumps(parameters)), {"inner": {"mail": mail}})
    assert error.message == "does not match the pattern"  # ours
