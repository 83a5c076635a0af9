"""Tools and `tool_choice` of both chat APIs."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

from uirl.runtime.wire import WireAnswer, WireModel
from uirl.serving.problems import bad_request
from uirl.serving.protocol.wire import Name, Text, only, parse, shown, whole_text
from uirl.serving.tool_choice import ToolChoice

MAX_TOOLS = 1024


class _Parameters(WireAnswer):
    """A JSON schema: whatever it says, the template shows it."""


class _Function(WireModel):
    name: Name
    description: Text = ""
    parameters: _Parameters | None = None
    strict: bool = False
    """Not enforced: arguments are what the policy writes, as the guide says."""


class _Tool(WireModel):
    """As chat completions write it."""

    type: Annotated[Any, only("function", why="only functions can be called")] = None
    function: _Function


class _FlatTool(_Function):
    """As responses write it."""

    type: Annotated[Any, only("function", why="only functions can be called")] = None


class _NamedFunction(WireModel):
    name: Text


class _NamedChoice(WireModel):
    """Chat completions put the name into an object of its own, responses do not."""

    type: str
    function: _NamedFunction | None = None
    name: Text | None = None


def read_tools(values: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Read the tools of a chat completion, as they were written. Raises a 400 that names the place."""
    _check_count(values)
    for i, value in enumerate(values):
        parse(_Tool, value, f"tools[{i}]")
    return tuple(values)


def read_flat_tools(values: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Read the tools of a response as chat completions write them, which is how templates show them."""
    _check_count(values)
    tools: list[Mapping[str, Any]] = []
    for i, value in enumerate(values):
        parse(_FlatTool, value, f"tools[{i}]")
        function = {name: value[name] for name in ("name", "description", "parameters") if value.get(name) is not None}
        tools.append({"type": "function", "function": function})
    return tuple(tools)


def tools_key(tools: Sequence[Any]) -> str:
    """Equal for the same tools in the same words."""
    return whole_text(json.dumps(tools, ensure_ascii=False) if tools else "", "tools")


def read_tool_choice(value: Any, parallel: bool, tools: Collection[str]) -> ToolChoice:
    """Read the choice in the JSON of a request, whose tools have the names `tools`. Raises a 400 for one that cannot
    be."""
    if value in (None, "auto", "none"):
        return ToolChoice(value or "auto", (), parallel)
    if value == "required":
        if not tools:
            raise bad_request("'required' is only allowed with tools", "tool_choice")
        return ToolChoice("required", tuple(tools), parallel)
    if not isinstance(value, dict) or value.get("type") != "function":
        raise bad_request(
            f"expected 'auto', 'none', 'required' or one function, got {shown(value)}",
            "tool_choice",
            "unsupported_value",
        )
    choice = parse(_NamedChoice, value, "tool_choice")
    at = "tool_choice.name" if choice.function is None else "tool_choice.function.name"
    name = choice.name if choice.function is None else choice.function.name
    if name is None:
        raise bad_request("is missing", at, "missing_required_parameter")
    if name not in tools:
        raise bad_request(f"there is no tool {shown(name)} in tools", at)
    return ToolChoice(name, (name,), parallel)


def _check_count(values: list[Any]) -> None:
    if len(values) > MAX_TOOLS:
        raise bad_request(f"expected at most {MAX_TOOLS} tools, got {len(values)}", "tools")
