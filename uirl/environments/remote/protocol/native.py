"""The native protocol, `/v1`: the records as JSON, requests, and what is read of the answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from uirl.http.wire import Base64, plain
from uirl.images import Screenshot, media_type
from uirl.runtime.limits import MAX_CALLS
from uirl.runtime.wire import Count, Items, Object, Plain, Text, WireAnswer, WireModel
from uirl.types import Action, Observation, StepResult, Task, ToolCall, ToolResult

PROTOCOL = 1

# -- the records ----------------------------------------------------------------------------------------------------


class WireRecord(WireModel):
    """A record of `uirl.types`, field by field under the same names."""

    record: ClassVar[type[Any]]
    parts: ClassVar[Mapping[str, type[WireRecord]]] = {}
    """The fields that are lists of other records."""

    @classmethod
    def of(cls, record: Any, without: Collection[str] = ()) -> Self:
        """Write a record, but for the fields in `without`. Raises EnvironmentFailure for values without a JSON form."""
        written: dict[str, Any] = {}
        for name in cls.model_fields:
            value: Any = getattr(record, name, None)
            part = cls.parts.get(name)
            if part is not None:
                written[name] = [part.of(one) for one in value]
            elif name not in without:
                written[name] = plain(value, name)
        return cls.model_construct(**written)

    def to_record(self) -> Any:
        """Return the record."""
        values = {field.name: getattr(self, field.name) for field in fields(self.record)}
        return self.record(**values | {name: tuple(one.to_record() for one in values[name]) for name in self.parts})


class WireToolCall(WireRecord):
    record = ToolCall
    name: Text
    arguments: Object = Field(default_factory=dict)
    id: Text = ""


class WireAction(WireRecord):
    record = Action
    parts: ClassVar[Mapping[str, type[WireRecord]]] = {"tool_calls": WireToolCall}
    text: Text = ""
    tool_calls: Annotated[Items[WireToolCall], Field(max_length=MAX_CALLS)] = Field(default_factory=list)
    thought: Text = ""
    parse_error: Text | None = None


class WireTask(WireRecord):
    """A `Task`; without its checks for those who must not see them."""

    record = Task
    id: Text
    environment: Text = ""
    goal: Text = ""
    tags: Items[Text] = Field(default_factory=list)
    seed: int | None = None
    checks: Object = Field(default_factory=dict)
    weight: float = 1.0

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        try:
            self.to_record()
        except ValueError as error:
            raise ValueError(f"cannot be used: {error}") from None
        return self


class WireToolResult(WireRecord):
    record = ToolResult
    name: Text
    arguments: Object = Field(default_factory=dict)
    success: bool = True
    result: Plain = None
    id: Text = ""
    seconds: float = 0.0


class WireImage(WireModel):
    """A `Screenshot`: its hash, and its bytes as base64 unless the reader fetches them on their own."""

    hash: Text = ""
    media_type: Text = ""
    base64: Base64

    _screenshot: Screenshot = PrivateAttr()

    @model_validator(mode="after")
    def _compare_hash(self) -> Self:
        self._screenshot = Screenshot(self.base64)
        if self.hash and self.hash != self._screenshot.hash:
            raise ValueError(
                f"has the hash {self._screenshot.hash}; expected {self.hash:.40}: it was damaged on the way"
            )
        return self

    def to_record(self) -> Screenshot:
        """Return the picture as it was captured, byte for byte."""
        return self._screenshot


class WireObservation(WireRecord):
    """An `Observation`; state key and info, which the agent must not see, for graders alone."""

    record = Observation
    parts: ClassVar[Mapping[str, type[Any]]] = {"tool_results": WireToolResult, "images": WireImage}
    text: Text = ""
    images: Items[WireImage] = Field(default_factory=list)
    tool_results: Items[WireToolResult] = Field(default_factory=list)
    state_key: Text | None = None
    info: Object = Field(default_factory=dict)


def show(observation: Observation, *, info: bool, inline: bool = True) -> dict[str, Any]:
    """Write an observation. `info`: with what the agent must not see. `inline`: with the bytes of the pictures."""
    hidden: dict[str, Any] = {"info": plain(observation.info, "info")} if info else {}
    if info and observation.state_key is not None:
        hidden["state_key"] = observation.state_key  # older readers know no such field
    images = [
        WireImage.model_construct(
            hash=image.hash, media_type=media_type(image.data), **({"base64": image.data} if inline else {})
        ).write()
        for image in observation.images
    ]
    results = [WireToolResult.of(result).write() for result in observation.tool_results]
    return {"text": observation.text, "images": images, "tool_results": results, **hidden}


# -- requests -------------------------------------------------------------------------------------------------------


class ResetRequest(WireModel):
    """`POST /v1/sessions/{id}/reset`."""

    task: WireTask | None = None
    seed: int | None = None


class OpenRequest(ResetRequest):
    """`POST /v1/sessions`: a session of a variant, reset at once where it says so or names a task or a seed."""

    variant: Text | None = None
    reset: bool = False


class StepRequest(WireModel):
    """`POST /v1/sessions/{id}/step`."""

    action: WireAction
    turn: Count | None = None
    """Steps of the episode that the client knows of."""
    close: Literal["never", "done", "after"] = "never"
    """'done' ends the session with the episode, 'after' with this step."""


# -- answers --------------------------------------------------------------------------------------------------------


class WireControl(WireAnswer):
    """A control: one action, one text, or the name of a variant of the environment."""

    variant: Literal[True] | None = None
    action: WireAction | None = None
    text: Text | None = None


class EnvironmentDescription(WireAnswer):
    """`GET /v1/environment`: what a client must know to stand in for the environment."""

    protocol: int
    name: Text
    action_format: Text
    max_turns: Annotated[int, Field(ge=1)] | None = None
    scored_at_end: bool
    message_style: Text
    prompt_prefix: Text
    tool_schemas: Items[Object]
    callable_tools: Items[Object] | None = None
    """None: a server that does not tell them from `tool_schemas`."""
    demonstrator: bool
    demonstrator_may_fail: bool
    controls: dict[str, WireControl]
    fingerprint: Text = ""
    """Of all before it: servers with the same one serve the same."""
    grades: bool = False
    """Whether the caller may see rewards."""
    mistake_reward: float = 0.0
    """`BaseEnvironment.mistake_reward` where the caller may see rewards: who answers a call in the environment's place,
    at the client, pays it."""
    scores_now: bool = False
    """Whether the server knows `POST /v1/sessions/{id}/score`."""


class TaskList(WireAnswer):
    """`GET /v1/tasks`; None: there is one task, whose instances are made by seeds."""

    tasks: Items[WireTask] | None = None


class SessionOpened(WireAnswer):
    """The answer to an `OpenRequest`."""

    session: Text
    lease_seconds: Annotated[float, Field(gt=0)]
    fingerprint: Text
    observation: WireObservation | None = None
    """None: it was not reset."""


class Observed(WireAnswer):
    """An answer with what the agent sees."""

    observation: WireObservation


class StepAnswer(Observed):
    """The answer to a `StepRequest`."""

    reward: float | None = None
    """None: the caller may not see rewards."""
    terminated: bool
    truncated: bool
    turn: Count
    """Steps of the episode so far, this one included."""
    state: Text | None = None
    """The last state of a session that ended with the step."""


def write_step(result: StepResult, turn: int, *, graded: bool, inline: bool = True) -> dict[str, Any]:
    """Write a `StepAnswer`."""
    return {
        "observation": show(result.observation, info=graded, inline=inline),
        "reward": result.reward if graded else None,
        "terminated": result.terminated,
        "truncated": result.truncated,
        "turn": turn,
    }


class WireScore(WireAnswer):
    """What an episode that ends here is worth."""

    reward: float
    info: Object = Field(default_factory=dict)


class ScoreAnswer(WireAnswer):
    """`POST /v1/sessions/{id}/score`; None: the environment does not know."""

    score: WireScore | None = None


class StateAnswer(WireAnswer):
    """`GET /v1/sessions/{id}/state`."""

    text: Text


class ExpertAnswer(WireAnswer):
    """`POST /v1/sessions/{id}/expert`; None: there is no demonstrator."""

    action: WireAction | None = None
