"""A type is found however deep a schema says it, and everybody who asks for one finds the same."""

from __future__ import annotations

from typing import Any

import pytest

from uirl.environments.adapters.gym_spaces import calls
from uirl.environments.adapters.trl import _hint
from uirl.environments.remote.protocol.openenv import _takes_text
from uirl.parsers import FunctionCallingParser
from uirl.tools.definition import ToolDefinition

NULL = {"type": "null"}
WAYS: list[Any] = [
    lambda plain: plain,
    lambda plain: {"$ref": "#/$defs/It"},
    lambda plain: {"$ref": "#/$defs/There"},
    lambda plain: {"allOf": [{"$ref": "#/$defs/It"}], "description": "it"},
    lambda plain: {"anyOf": [plain, NULL]},
    lambda plain: {"anyOf": [{"$ref": "#/$defs/It"}, NULL], "default": None},
    lambda plain: {"oneOf": [NULL, {"allOf": [{"$ref": "#/$defs/There"}]}]},
    lambda plain: {"type": [plain["type"], "null"]},
    lambda plain: {**plain, "nullable": True},
]
VALUES = {"integer": ("7", 7), "number": ("1.5", 1.5), "boolean": ("true", True), "string": ("7", "7")}
CONTAINERS = {"object": ('{"a": "1"}', {"a": "1"}), "array": ("[1]", [1])}
HINTS = {"integer": int, "number": float, "boolean": bool, "string": str, "object": dict, "array": list}


def tool_of(argument: Any, plain: Any) -> ToolDefinition:
    definitions = {"It": plain, "There": {"$ref": "#/$defs/It"}}
    return ToolDefinition("use", "", {"type": "object", "properties": {"value": argument}, "$defs": definitions})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*VALUES, *CONTAINERS])
def test_everybody_finds_the_type(kind: str, way: Any) -> None:
    plain = {"type": kind}
    argument = way(plain)
    tool = tool_of(argument, plain)
    text, value = (VALUES | CONTAINERS)[kind]
    optional = "null" in str(argument)
    parser = FunctionCallingParser("qwen3-coder").for_tools([tool.schema()])
    call = parser.parse(f"<function=use><parameter=value>{text}</parameter></function>").call
    assert call is not None
    assert call.arguments == {"value": value}
    assert tool.check(dict(call.arguments)) is None
    assert (tool.check({"value": None}) is None) is optional
    expected = {kind, "null"} if optional else {kind}
    assert set(tool.describe().partition("value: ")[2].partition(" (optional)")[0].split(" | ")) == expected
    assert kind in str(tool.check({"value": ["x"] if kind == "object" else {"x": 1}}))
    hint = _hint(argument, tool.parameters)
    assert hint == (HINTS[kind] | None if optional else HINTS[kind])
    assert _takes_text(argument, tool.parameters) is (kind == "string")
    if kind in VALUES:
        assert str(calls([tool], 20)[0]) == str(calls([tool_of(plain, plain)], 20)[0])


def test_arguments_of_parts_of_a_schema_are_known() -> None:
    parameters = {
        "type": "object",
        "allOf": [{"$ref": "#/$defs/Base"}],
        "properties": {"text": {"type": "string"}},
        "additionalProperties": {"type": "boolean"},
        "$defs": {"Base": {"properties": {"times": {"type": "integer"}}}},
    }
    parser = FunctionCallingParser("qwen3-coder").for_tools([ToolDefinition("use", "", parameters).schema()])
    values = "".join(
        f"<parameter={name}>{text}</parameter>" for name, text in [("text", "1"), ("times", "1"), ("more", "true")]
    )
    call = parser.parse(f"<function=use>{values}</function>").call
    assert call is not None
    assert call.arguments == {"text": "1", "times": 1, "more": True}
