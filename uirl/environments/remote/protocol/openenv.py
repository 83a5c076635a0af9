"""OpenEnv: the frames of `/ws` as every server writes them, and what OpenEnv leaves to each environment.

Which field of an action says what, where an observation hides pictures, and whether actions are calls of tools is read
from what the server says. Nothing here talks to a server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from uirl.environments.remote.protocol.native import WireAction, WireTask, WireToolResult
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.http.wire import from_base64, plain
from uirl.images import Screenshot, screenshot
from uirl.runtime.json_schema import ANY, types_of
from uirl.runtime.limits import shown
from uirl.runtime.wire import Items, Object, Plain, Text, WireAnswer, WireError
from uirl.tools.definition import ToolDefinition
from uirl.tools.mcp_tools import structured_value
from uirl.types import Action, Observation, ToolCall, ToolResult

NAME_FIELDS = ("action_type", "action", "name", "tool_name", "type", "command")
PICTURE_WORDS = ("image", "screenshot", "picture", "pixels", "frame")
FLAGS = ("done", "terminated", "truncated", "reward", "metadata", "success", "tool_results")
CALL_TOOL = "call_tool"
ASK_FOR_TOOLS = {"jsonrpc": "2.0", "method": "tools/list", "params": {}, "id": 1}
"""What `POST /mcp` is asked of an environment that is a server of tools; it needs no session."""

_CALL = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}, "id": {"type": "string"}},
    "required": ["name"],
}
ACTION_SCHEMA: dict[str, Any] = {
    "title": "UirlAction",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "text": {"type": "string", "description": "the reply as text: all there is for environments that take text"},
        "name": {"type": "string", "description": "one call, in short for tool_calls with one item"},
        "arguments": {"type": "object"},
        "tool_calls": {"type": "array", "items": _CALL},
        "thought": {"type": "string"},
        "parse_error": {"type": ["string", "null"]},
        "metadata": {"type": "object"},
    },
}
OBSERVATION_SCHEMA: dict[str, Any] = {
    "title": "UirlObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "images": {"type": "array", "items": {"type": "string", "contentEncoding": "base64"}},
        "tool_results": {"type": "array", "items": {"type": "object"}},
        "done": {"type": "boolean"},
        "terminated": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "reward": {"type": ["number", "null"]},
        "metadata": {"type": "object"},
    },
}
STATE_SCHEMA: dict[str, Any] = {
    "title": "UirlState",
    "type": "object",
    "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}},
}


# -- frames ---------------------------------------------------------------------------------------------------------


class Message(WireAnswer):
    """A frame of `/ws`, in either direction."""

    type: Text
    data: Plain = None


class ResetData(WireAnswer):
    """The data of `reset`, as far as it is read here."""

    seed: int | None = None
    episode_id: Text | None = None
    task: WireTask | None = None
    task_id: Text | None = None
    task_name: Text | None = None


class StepData(WireAction):
    """The data of `step`: an action, or one call in short."""

    name: Text | None = None
    arguments: Object = Field(default_factory=dict)
    metadata: Object = Field(default_factory=dict)

    def to_record(self) -> Action:
        """Return the action. Raises WireError for a call that is named twice, or not at all."""
        if self.name is None:
            if self.arguments:
                raise WireError("data.arguments stands without data.name")
            return super().to_record()
        if self.tool_calls:
            raise WireError("data.name and data.tool_calls are two ways to say one thing; expected one of them")
        return Action(self.text, (ToolCall(self.name, self.arguments),), self.thought, self.parse_error)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, bool) else value


class FrameData(WireAnswer):
    """The answer to `reset` and `step`. Servers of several ages say the ends here, in the observation, or `done` alone;
    and metadata likewise."""

    observation: Object
    reward: Annotated[float | None, BeforeValidator(_number)] = None
    """None: the server gave none. Some pay with true and false."""
    done: bool | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    metadata: Plain = None


class Ends(WireAnswer):
    """What an observation itself may say of its step; the rest of it is each environment's own."""

    done: bool | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    metadata: Plain = None
    success: Plain = None
    tool_results: Items[WireToolResult] = Field(default_factory=list)


class ErrorData(WireAnswer):
    """The data of a frame of the type `error`."""

    message: Text = ""
    code: Text = ""
    errors: Plain = None
    """What pydantic found wrong, field by field."""
    kind: Text | None = None
    """Of a failure, in the words of `uirl serve`."""


class Schemas(WireAnswer):
    """`GET /schema`."""

    action: Object


def write_frame(seen: Observation, reward: float | None, ends: tuple[bool, bool], *, graded: bool) -> dict[str, Any]:
    """Write a result as `uirl serve` does. `ends`: terminated and truncated. `graded`: with what the agent must not
    see."""
    flags = {"terminated": ends[0], "truncated": ends[1]}
    observation = {
        "text": seen.text,
        "images": [base64.b64encode(image.data).decode("ascii") for image in seen.images],
        "tool_results": [WireToolResult.of(result).write() for result in seen.tool_results],
        **flags,
    }
    hidden = {"metadata": plain(seen.info, "info")} if graded else {}
    return {"observation": observation, "reward": reward if graded else None, "done": any(ends), **flags, **hidden}


@dataclass(frozen=True, slots=True)
class Frame:
    """One answer to `reset` or `step`."""

    observation: Observation
    reward: float | None
    """None: the server gave none."""
    terminated: bool
    truncated: bool


def action_fields(
    action: Action, schema: Mapping[str, Any], fields: Mapping[str, str | None], format: str
) -> dict[str, Any] | str:
    """Return the action in the server's fields; a str where there is none: why, in words for the policy.

    `schema`: of the server's actions. `wanted`: the fields for the name of a call and for text, where the user named
    them. Raises ConfigError where the schema leaves it open.
    """
    properties = schema.get("properties", {})
    if "tool_calls" in properties:
        return {key: value for key, value in WireAction.of(action).write().items() if value not in (None, "", [])}
    if format == "text":
        return {fields["text"] or _only_text_field(schema): action.text}
    if action.parse_error is not None:
        return action.parse_error
    if action.call is None or len(action.tool_calls) > 1:
        return f"{len(action.tool_calls) or 'no'} actions in the reply; expected one"
    if fields["name"] is None and takes_tool_calls(schema):
        return tool_action(action.call)
    name = fields["name"] or next((field for field in NAME_FIELDS if _names(field, schema)), None)
    arguments = plain(action.call.arguments, "arguments")
    return arguments if name is None else {name: action.call.name, **arguments}


def check_fields(schema: Mapping[str, Any], fields: Mapping[str, str | None], format: str) -> None:
    """Raise ConfigError where no action can be told in this format: before an episode has begun, and not in it."""
    properties = schema.get("properties", {})
    if "tool_calls" in properties:
        return
    for kind in ("name", "text"):
        field = fields[kind]
        if field is None:
            continue
        if field not in properties and schema.get("additionalProperties") is False:
            raise ConfigError(
                f"the server's actions have no field {field!r} ({kind}_field); expected one of {sorted(properties)}"
            )
        if not _takes_text(properties.get(field), schema, unknown=True):
            raise ConfigError(
                f"the field {field!r} of the server's actions takes no text ({kind}_field): "
                f"{shown(properties[field], 80)}; name another field, or choose another action_format"
            )
    if format == "text" and fields["text"] is None:
        _only_text_field(schema)


def _only_text_field(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties", {})
    texts = [name for name, about in properties.items() if name != "metadata" and _takes_text(about, schema)]
    if len(texts) == 1:
        return texts[0]
    remedy = (
        "say with text_field which one takes the policy's reply"
        if texts
        else f"it has the fields {sorted(properties.keys() - {'metadata'})}; choose an action_format with calls"
    )
    raise ConfigError(f"the server's actions have the text fields {texts}; {remedy}")


def _names(field: str, schema: Mapping[str, Any]) -> bool:
    """Return whether a field is there and takes the name of a call."""
    properties = schema.get("properties", {})
    return field in properties and _takes_text(properties[field], schema, unknown=True)


def _takes_text(about: Any, schema: Mapping[str, Any], *, unknown: bool = False) -> bool:
    """Return whether a field takes a text; `unknown`: what is said where its schema leaves that open."""
    types = types_of(about, schema)
    return unknown if ANY in types else "string" in types


def read_frame(data: Any, where: str, call: ToolCall | None = None) -> Frame:
    """Read an answer. `call`: the call of a tool that it answers. Raises EnvironmentFailure where it makes no sense."""
    try:
        frame = FrameData.read(data, "data")
        ends = Ends.read(frame.observation, "data.observation")
        observation = _observation(frame, ends, call)
    except WireError as error:
        raise EnvironmentFailure(f"{where} sent {shown(data, 80)}; expected an observation: {error}") from None
    done, terminated, truncated = (
        getattr(frame if getattr(frame, name) is not None else ends, name)
        for name in ("done", "terminated", "truncated")
    )
    over = bool(done) and not truncated
    return Frame(observation, frame.reward, over if terminated is None else terminated, bool(truncated))


def _observation(frame: FrameData, ends: Ends, call: ToolCall | None) -> Observation:
    seen = frame.observation
    info = dict(next((m for m in (frame.metadata, ends.metadata) if isinstance(m, Mapping)), {}))
    if isinstance(ends.success, bool):
        info["success"] = ends.success
    answer = None if call is None else read_tool_answer(seen, call)
    if answer is not None:
        return Observation("", answer[1], info, (answer[0],))
    images: list[Screenshot] = []
    words: dict[str, Any] = {}
    for name, value in seen.items():
        if name in FLAGS or value in (None, "", [], {}):
            continue
        if any(word in name.lower() for word in PICTURE_WORDS):
            images += _pictures(value, name)
        else:
            words[name] = value
    text = words.get("text")
    if not isinstance(text, str):
        text = _described(words)
    return Observation(text, tuple(images), info, tuple(result.to_record() for result in ends.tool_results))


def _described(words: Mapping[str, Any]) -> str:
    """Return everything an observation says: a single text as it is, more as lines with names."""
    if len(words) == 1 and isinstance(only := next(iter(words.values())), str):
        return only
    shown = {name: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for name, v in words.items()}
    return "\n".join(f"{name}: {value}" for name, value in shown.items())


def _pictures(value: Any, name: str) -> list[Screenshot]:
    if isinstance(value, str):
        return [Screenshot(from_base64(value, name))]
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [Screenshot(from_base64(item, f"{name}[{i}]")) for i, item in enumerate(value)]
    import numpy as np

    try:
        return [screenshot(np.asarray(value))]
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"{name} is no picture: {error}") from None


# -- environments that are servers of tools (`MCPEnvironment`) ------------------------------------------------------


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


def read_tools(answer: Any, where: str = "/mcp") -> tuple[ToolDefinition, ...]:
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
