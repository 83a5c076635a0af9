"""What OpenEnv leaves to each environment: which field of an action says what, and where an observation hides pictures.

Both are read from what the server says; nothing here talks to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uirl.environments.remote.protocol.native import WireAction
from uirl.environments.remote.protocol.openenv_messages import Ends, FrameData
from uirl.environments.remote.protocol.openenv_tools import read_tool_answer, takes_tool_calls, tool_action
from uirl.environments.remote.protocol.wire import from_base64, plain
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import Screenshot, screenshot
from uirl.runtime.json_schema import ANY, types_of
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireError
from uirl.types import Action, Observation, ToolCall

NAME_FIELDS = ("action_type", "action", "name", "tool_name", "type", "command")
PICTURE_WORDS = ("image", "screenshot", "picture", "pixels", "frame")
FLAGS = ("done", "terminated", "truncated", "reward", "metadata", "success", "tool_results")


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
    return Observation(text, tuple(images), info, tuple(result.to_result() for result in ends.tool_results))


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
