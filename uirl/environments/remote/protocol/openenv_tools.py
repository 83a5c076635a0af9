"""Environments of OpenEnv that are servers of tools (`MCPEnvironment`): a call is nested in an action of its own.

Their schema of actions is that of `call_tool`; which tools there are stands apart, behind `POST /mcp`. Nothing here
talks to a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from uirl.environments.remote.protocol.wire import from_base64, plain
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import Screenshot
from uirl.runtime.wire import Items, Object, Plain, Text, WireAnswer, WireError
from uirl.tools.definition import ToolDefinition
from uirl.tools.mcp_tools import structured_value
from uirl.types import ToolCall, ToolResult

CALL_TOOL = "call_tool"
ASK_FOR_TOOLS = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
"""What `POST /mcp` is asked; it needs no session."""


class ListedTool(WireAnswer):
    """A tool of a list; servers write the key of its parameters in one of two ways."""

    name: Text
    description: Text = ""
    parameters: Annotated[Object, Field(validation_alias=AliasChoices("inputSchema", "input_schema"))] = Field(
        default_factory=dict
    )

    def to_definition(self) -> ToolDefinition:
        """Return the tool. Raises ConfigError for a name or parameters that cannot be used."""
        return ToolDefinition(self.name, self.description, self.parameters or {"type": "object", "properties": {}})


class ToolList(WireAnswer):
    """The result of `ASK_FOR_TOOLS`."""

    tools: Items[ListedTool]


class ToolsAnswer(WireAnswer):
    """The answer to `ASK_FOR_TOOLS`, in JSON-RPC."""

    result: ToolList


class ContentBlock(WireAnswer):
    """A part of what a tool answered: a text, or a picture in base64."""

    type: Plain = None
    text: Plain = ""
    data: Plain = ""


class ToolOutput(WireAnswer):
    """What a tool of MCP answered."""

    content: Items[ContentBlock]
    is_error: Annotated[Plain, Field(validation_alias=AliasChoices("is_error", "isError"))] = False
    structured_content: Plain = None


def takes_tool_calls(schema: Mapping[str, Any]) -> bool:
    """Return whether the actions of this schema are calls of tools."""
    properties = schema.get("properties", {})
    kind = properties.get("type")
    named = isinstance(kind, Mapping) and CALL_TOOL in (kind.get("const"), kind.get("default"))
    return named and {"tool_name", "arguments"} <= properties.keys()


def tool_action(call: ToolCall) -> dict[str, Any]:
    """Return the action that calls a tool."""
    return {"type": CALL_TOOL, "tool_name": call.name, "arguments": plain(call.arguments, "arguments")}


def read_tools(answer: Any, where: str) -> tuple[ToolDefinition, ...]:
    """Return the tools of an answer to `ASK_FOR_TOOLS`. Raises EnvironmentFailure for what is no list of tools."""
    try:
        return tuple(tool.to_definition() for tool in ToolsAnswer.read(answer, "answer").result.tools)
    except (WireError, ConfigError) as error:
        raise EnvironmentFailure(f"{where} lists no tools that can be used: {error}") from None


def read_tool_answer(seen: Mapping[str, Any], call: ToolCall) -> tuple[ToolResult, tuple[Screenshot, ...]] | None:
    """Return what a tool answered, and the pictures in it; None: the observation is of another kind. Raises WireError.

    An error, of the tool or of the way to it, is the policy's to see.
    """
    if not {"tool_name", "result"} <= seen.keys():
        return None
    error, result = seen.get("error"), seen["result"]
    if error is not None:
        words = error.get("message") if isinstance(error, Mapping) else error
        return ToolResult(call.name, call.arguments, False, str(words), call.id), ()
    try:
        output = ToolOutput.read(result, "result")
    except WireError:
        return ToolResult(call.name, call.arguments, True, result, call.id), ()
    images = tuple(
        Screenshot(from_base64(str(block.data), f"result.content[{i}].data"))
        for i, block in enumerate(output.content)
        if block.type == "image"
    )
    texts = [str(block.text) for block in output.content if block.type == "text"]
    shown_result = "\n".join(texts) if texts or images else structured_value(output.structured_content)
    return ToolResult(call.name, call.arguments, not output.is_error, shown_result, call.id), images
