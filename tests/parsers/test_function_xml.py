"""Calls in the words of Qwen3-Coder: tags, and the types of the values in them."""

from __future__ import annotations

from typing import Any

import pytest

from uirl.parsers import FunctionCallingParser, qwen
from uirl.parsers.json_calls import MAX_OBJECTS
from uirl.parsers.qwen import typed
from uirl.types import Action, ToolCall

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "type",
            "parameters": {"properties": {"text": {"type": "string"}, "times": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "anything", "parameters": {"type": "object"}}},
]
parser = FunctionCallingParser("qwen3-coder")
knowing = parser.for_tools(TOOLS)


def use(name: str, **values: str) -> str:
    given = "".join(f"<parameter={key}>{value}</parameter>" for key, value in values.items())
    return f"<function={name}>{given}</function>"


PLACE = {"$ref": "#/$defs/Place"}
DEFINITIONS = {
    "Place": {"type": "object", "properties": {"name": {"type": "string"}}},
    "Colour": {"enum": ["red", "1"]},
    "Round": {"anyOf": [{"$ref": "#/$defs/Round"}, {"type": "integer"}]},
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (None, "42", 42),
        (None, " 42 ", 42),
        (None, '"42"', "42"),
        (None, "True", "True"),
        (None, "null", None),
        (None, "NaN", "NaN"),
        (None, "9" * 5000, "9" * 5000),
        (None, "[1, 2", "[1, 2"),
        (None, "{} {}", "{} {}"),
        (None, "", ""),
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, '"42"', '"42"'),
        ({"type": "string"}, "null", "null"),
        ({"type": ["string", "null"]}, "None", None),
        ({"type": "string", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "42", 42),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "4 2", "4 2"),
        ({"type": "integer"}, "4.5", "4.5"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "int"}, "7", 7),
        ({"type": "number"}, "1e2", 100.0),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": "array"}, "[1]", [1]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": ["string", "null"]}]}, "1", "1"),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "1", 1),
        ({"type": "array", "anyOf": [{"minItems": 1}, {"maxItems": 3}]}, "[1]", [1]),
        ({"anyOf": [{"type": "array", "items": PLACE}, {"type": "null"}]}, '[{"a": 1}]', [{"a": 1}]),
        ({"$ref": "#/$defs/Colour"}, "1", "1"),
        ({"$ref": "#/$defs/Round"}, "1", 1),
        ({"$ref": "#/$defs/Absent"}, "1", "1"),
        ({"$ref": "https://elsewhere.example/schema"}, "1", "1"),
        ({"enum": [1, 2, None]}, "2", 2),
        ({"enum": ["auto", 2]}, "2", 2),
        ({"const": True}, "true", True),
        ({"const": None}, "null", None),
        ({"anyOf": [{"const": 1}, {"const": "1"}]}, "1", 1),
        ({"type": "string", "anyOf": 3, "oneOf": [3]}, "1", "1"),
        ({"type": 3}, "1", "1"),
    ],
)
def test_what_a_value_is(schema: dict[str, Any] | None, text: str, value: Any) -> None:
    tools = {} if schema is None else {"use": {"properties": {"value": schema}, "$defs": DEFINITIONS}}
    got = typed(text, qwen._kinds_of(tools, "use", "value"))
    assert got == value
    assert type(got) is type(value)


def test_the_schema_of_the_tool_says_what_a_value_is() -> None:
    assert parser.parse(use("type", text="42", times="3")).call == ToolCall("type", {"text": 42, "times": 3})
    assert knowing.parse(use("type", text="42", times="3")).call == ToolCall("type", {"text": "42", "times": 3})
    assert knowing.parse(use("type", other="42")).call == ToolCall("type", {"other": "42"})
    assert knowing.parse(use("anything", a="42")).call == ToolCall("anything", {"a": 42})
    assert knowing.parse(use("unknown", a="42")).call == ToolCall("unknown", {"a": 42})


def test_a_repeated_parameter_is_the_last_as_a_repeated_key_is() -> None:
    twice = "<function=a><parameter=b>1</parameter><parameter=b>2</parameter></function>"
    assert parser.parse(twice).call == ToolCall("a", {"b": 2})
    assert FunctionCallingParser().parse('<tool_call>{"name":"a","arguments":{"b":1,"b":2}}').call == ToolCall(
        "a", {"b": 2}
    )


@pytest.mark.parametrize("style", ["qwen", "hermes", "qwen3-coder"])
def test_both_bodies_of_a_block_are_read(style: str) -> None:
    reply = f'Two.<tool_call>{use("a", b="1")}</tool_call><tool_call>{{"name": "c", "arguments": {{}}}}</tool_call>'
    action = FunctionCallingParser(style).parse(reply)
    assert (action.tool_calls, action.thought) == ((ToolCall("a", {"b": 1}), ToolCall("c")), "Two.")


def test_a_function_without_its_block_is_a_call_in_its_own_style_alone() -> None:
    assert parser.parse(use("a", b="1")).call == ToolCall("a", {"b": 1})
    assert FunctionCallingParser("qwen").parse(use("a", b="1")).tool_calls == ()


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("<function=a", "got '<function=a'"),
        ("<function=>", "got '<function=>'"),
        ("<function=a>", "in 'a' the reply ends"),
        ("<function=a>text</function>", "in 'a' got 'text</function>'"),
        ("<function=a><parameter=b>1", "not closed by </parameter>"),
        ("<function=a><parameter=b>1</parameter>", "the reply ends"),
        ("<function=a>" + "<parameter=b>1</parameter>" * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} parameters"),
        (use("a") * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} calls"),
        (use("a", b='"\\ud800"'), "half a character"),
        (use("a", b="1") + "<function=c><parameter=d>", "not closed"),
    ],
)
def test_a_call_that_begins_and_cannot_be_read_is_an_error(reply: str, why: str) -> None:
    action = parser.parse(reply)
    assert (action.tool_calls, action.text) == ((), reply)
    assert why in (action.parse_error or "")


def test_writes_as_the_models_do() -> None:
    action = Action(tool_calls=(ToolCall("type", {"text": "a\nb", "times": 2}), ToolCall("now")), thought="Two.")
    assert parser.render(action) == (
        "Two.\n<tool_call>\n<function=type>\n<parameter=text>\na\nb\n</parameter>\n<parameter=times>\n2\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>"
    )


def test_a_known_text_is_written_as_it_is_and_one_that_tags_would_cut_is_refused() -> None:
    assert "\n42\n" in knowing.render(Action.of("type", text="42"))
    with pytest.raises(ValueError, match="cannot hold the action"):
        knowing.render(Action.of("type", text="</parameter>"))


@pytest.mark.parametrize(
    "call", [ToolCall("a b"), ToolCall("a", {"": 1}), ToolCall("a", {"<": 1}), ToolCall("a", {}, "7")]
)
def test_names_that_tags_cannot_hold_are_not_written(call: ToolCall) -> None:
    with pytest.raises(ValueError, match="cannot hold the action"):
        parser.render(Action(tool_calls=(call,)))


def test_a_value_is_read_once_however_many_types_a_schema_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(qwen, "read_value", lambda text, start: (read.append(text), len(text)))
    assert typed("[1", ("integer", "array", "object") * 100) == "[1"
    assert read == ["[1"]
