"""Environments of OpenEnv that are servers of tools (`MCPEnvironment`): a call is nested in an action of its own.

Their schema of actions is that of `call_tool`; which tools there are stands apart, behind `POST /mcp`. Nothing here
talks to a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uirl.environments.remote.protocol.wire import from_base64, plain
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import Screenshot
from uirl.runtime.limits import shown
from uirl.tools.definition import ToolDefinition
from uirl.types import ToolCall, ToolResult

CALL_TOOL = "call_tool"
ASK_FOR_TOOLS = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
"""What `POST /mcp` is asked; it needs no session."""


def takes_tool_calls(schema: Mapping[str, Any]) -> bool:
    """Whether the actions of this schema are calls of tools."""
    properties = schema.get("properties", {})
    kind = properties.get("type")
    named = isinstance(kind, Mapping) and CALL_TOOL in (kind.get("const"), kind.get("default"))
    return named and {"tool_name", "arguments"} <= properties.keys()


def tool_action(call: ToolCall) -> dict[str, Any]:
    """The action that calls a tool."""
    return {"type": CALL_TOOL, "tool_name": call.name, "arguments": plain(call.arguments, "arguments")}


def read_tools(said: Any, where: str) -> tuple[ToolDefinition, ...]:
    """The tools of an answer to `ASK_FOR_TOOLS`. Raises EnvironmentFailure for what is no list of tools."""
    result = said.get("result") if isinstance(said, Mapping) else None
    listed = result.get("tools") if isinstance(result, Mapping) else None
    if not isinstance(listed, list):
        raise EnvironmentFailure(f"{where} answered {shown(said, 120)}; expected a list of tools")
    return tuple(_definition(tool, where) for tool in listed)


def read_tool_answer(seen: Mapping[str, Any], call: ToolCall) -> tuple[ToolResult, tuple[Screenshot, ...]] | None:
    """What a tool answered, and the pictures in it; None: the observation is of another kind. Raises WireError.

    An error, of the tool or of the way to it, is the policy's to see.
    """
    if not {"tool_name", "result"} <= seen.keys():
        return None
    error, result = seen.get("error"), seen["result"]
    if error is not None:
        words = error.get("message") if isinstance(error, Mapping) else error
        return ToolResult(call.name, call.arguments, False, str(words), call.id), ()
    content = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        return ToolResult(call.name, call.arguments, True, result, call.id), ()
    images = tuple(
        Screenshot(from_base64(str(block.get("data", "")), f"result.content[{i}].data"))
        for i, block in enumerate(content)
        if block.get("type") == "image"
    )
    texts = [str(block.get("text", "")) for block in content if block.get("type") == "text"]
    failed = bool(result.get("is_error", result.get("isError", False)))
    told: Any = "\n".join(texts) if texts or images else result.get("structured_content")
    return ToolResult(call.name, call.arguments, not failed, told, call.id), images


def _definition(tool: Any, where: str) -> ToolDefinition:
    if not isinstance(tool, Mapping):
        raise EnvironmentFailure(f"{where} lists {shown(tool, 80)}; expected a tool with a name")
    parameters = next((tool[key] for key in ("inputSchema", "input_schema") if tool.get(key)), None)
    try:
        return ToolDefinition(
            tool.get("name", ""), tool.get("description") or "", parameters or {"type": "object", "properties": {}}
        )
    except ConfigError as error:
        raise EnvironmentFailure(f"{where} lists a tool that cannot be used: {error}") from error
