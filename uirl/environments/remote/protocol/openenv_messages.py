"""OpenEnv as `uirl serve` speaks it, and the frames of every server: one JSON object each."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from uirl.environments.remote.protocol.native import EnvironmentDescription, WireAction, WireTask, WireToolResult
from uirl.environments.remote.protocol.wire import Base64, plain
from uirl.runtime.wire import Count, Items, Object, Plain, Text, WireAnswer, WireError, WireModel
from uirl.types import Action, Observation, ToolCall

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

    def to_action(self) -> Action:
        """Return the action. Raises WireError for a call that is named twice, or not at all."""
        if self.name is None:
            if self.arguments:
                raise WireError("data.arguments stands without data.name")
            return super().to_action()
        if self.tool_calls:
            raise WireError("data.name and data.tool_calls are two ways to say one thing; expected one of them")
        return Action(self.text, (ToolCall(self.name, self.arguments),), self.thought, self.parse_error)


class SeenData(WireModel):
    """An observation, as `uirl serve` shows it."""

    text: Text
    images: Items[Base64]
    tool_results: Items[WireToolResult]
    terminated: bool
    truncated: bool


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

    @classmethod
    def of(cls, seen: Observation, reward: float | None, ends: tuple[bool, bool], *, graded: bool) -> Self:
        """Write a result. `ends`: terminated and truncated. `graded`: with what the agent must not see."""
        terminated, truncated = ends
        observation = SeenData.model_construct(
            text=seen.text,
            images=[image.data for image in seen.images],
            tool_results=[WireToolResult.of(result) for result in seen.tool_results],
            terminated=terminated,
            truncated=truncated,
        )
        return cls.model_construct(
            observation=observation.write(),
            reward=reward if graded else None,
            done=terminated or truncated,
            terminated=terminated,
            truncated=truncated,
            **({"metadata": plain(seen.info, "info")} if graded else {}),
        )


class Ends(WireAnswer):
    """What an observation itself may say of its step; the rest of it is each environment's own."""

    done: bool | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    metadata: Plain = None
    success: Plain = None
    tool_results: Items[WireToolResult] = Field(default_factory=list)


class StateData(WireAnswer):
    """The answer to `state`."""

    episode_id: Text | None = None
    step_count: Count


class ErrorData(WireAnswer):
    """The data of a frame of the type `error`."""

    message: Text = ""
    code: Text = ""
    active_sessions: Count | None = None
    max_sessions: Count | None = None
    errors: Plain = None
    """What pydantic found wrong, field by field."""
    kind: Text | None = None
    """Of a failure, in the words of `uirl serve`."""


class NoTools(WireAnswer):
    """The answer to `mcp`, in JSON-RPC."""

    jsonrpc: Text
    id: Plain = None
    error: Object


class Metadata(WireAnswer):
    """`GET /metadata`."""

    name: Text
    description: Text
    version: Text
    uirl: EnvironmentDescription


class Schemas(WireAnswer):
    """`GET /schema`."""

    action: Object
    observation: Object = Field(default_factory=dict)
    state: Object = Field(default_factory=dict)
