"""The native protocol, `/v1`: the nouns as JSON, and every request and answer that holds them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from uirl.environments.remote.protocol.pictures import media_type
from uirl.environments.remote.protocol.wire import Base64, plain
from uirl.images import Screenshot
from uirl.runtime.limits import MAX_CALLS
from uirl.runtime.wire import Count, Items, Object, Plain, Text, WireAnswer, WireModel
from uirl.types import Action, Observation, StepResult, Task, ToolCall, ToolResult

PROTOCOL = 1

# -- the nouns ------------------------------------------------------------------------------------------------------


class WireToolCall(WireModel):
    """A `ToolCall`."""

    name: Text
    arguments: Object = Field(default_factory=dict)
    id: Text = ""

    @classmethod
    def of(cls, call: ToolCall) -> Self:
        return cls.model_construct(
            name=call.name, arguments=plain(call.arguments, f"{call.name}.arguments"), id=call.id
        )

    def to_call(self) -> ToolCall:
        return ToolCall(self.name, self.arguments, self.id)


class WireAction(WireModel):
    """An `Action`."""

    text: Text = ""
    tool_calls: Annotated[Items[WireToolCall], Field(max_length=MAX_CALLS)] = Field(default_factory=list)
    thought: Text = ""
    parse_error: Text | None = None

    @classmethod
    def of(cls, action: Action) -> Self:
        calls = [WireToolCall.of(call) for call in action.tool_calls]
        return cls.model_construct(
            text=action.text, tool_calls=calls, thought=action.thought, parse_error=action.parse_error
        )

    def to_action(self) -> Action:
        calls = tuple(call.to_call() for call in self.tool_calls)
        return Action(text=self.text, tool_calls=calls, thought=self.thought, parse_error=self.parse_error)


class WireTask(WireModel):
    """A `Task`; without its checks for those who must not see them."""

    id: Text
    environment: Text = ""
    goal: Text = ""
    tags: Items[Text] = Field(default_factory=list)
    seed: int | None = None
    checks: Object = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        try:
            self.to_task()
        except ValueError as error:
            raise ValueError(f"cannot be used: {error}") from None
        return self

    @classmethod
    def of(cls, task: Task, *, checks: bool = True) -> Self:
        shown = {"checks": plain(task.checks, "task.checks")} if checks else {}
        return cls.model_construct(
            id=task.id, environment=task.environment, goal=task.goal, tags=list(task.tags), seed=task.seed, **shown
        )

    def to_task(self) -> Task:
        return Task(self.id, self.environment, self.goal, self.checks, tuple(self.tags), self.seed)


class WireToolResult(WireModel):
    """A `ToolResult`."""

    name: Text
    arguments: Object = Field(default_factory=dict)
    success: bool = True
    result: Plain = None
    id: Text = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, result: ToolResult) -> Self:
        return cls.model_construct(
            name=result.name,
            arguments=plain(result.arguments, f"{result.name}.arguments"),
            success=result.success,
            result=plain(result.result, f"{result.name}.result"),
            id=result.id,
            seconds=result.seconds,
        )

    def to_result(self) -> ToolResult:
        return ToolResult(self.name, self.arguments, self.success, self.result, self.id, self.seconds)


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

    def to_screenshot(self) -> Screenshot:
        """Return the picture as it was captured, byte for byte."""
        return self._screenshot


class WireObservation(WireModel):
    """An `Observation`; state key and info, which the agent must not see, for graders alone."""

    text: Text = ""
    images: Items[WireImage] = Field(default_factory=list)
    tool_results: Items[WireToolResult] = Field(default_factory=list)
    state_key: Text | None = None
    info: Object = Field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation, *, info: bool, inline: bool = True) -> Self:
        """`info`: with what the agent must not see. `inline`: with the bytes of the pictures."""
        hidden: dict[str, Any] = {}
        if info and observation.state_key is not None:
            hidden["state_key"] = observation.state_key
        if info:
            hidden["info"] = plain(observation.info, "info")
        return cls.model_construct(
            text=observation.text,
            images=[_image(image, inline=inline) for image in observation.images],
            tool_results=[WireToolResult.of(result) for result in observation.tool_results],
            **hidden,
        )

    def to_observation(self) -> Observation:
        images = tuple(image.to_screenshot() for image in self.images)
        results = tuple(result.to_result() for result in self.tool_results)
        return Observation(self.text, images, self.info, results, self.state_key)


def _image(image: Screenshot, *, inline: bool) -> WireImage:
    data: dict[str, Any] = {"base64": image.data} if inline else {}
    return WireImage.model_construct(hash=image.hash, media_type=media_type(image.data), **data)


# -- requests -------------------------------------------------------------------------------------------------------


class ResetRequest(WireModel):
    """`POST /v1/sessions/{id}/reset`."""

    task: WireTask | None = None
    seed: int | None = None


class OpenRequest(WireModel):
    """`POST /v1/sessions`: a session of a variant, reset at once where it says so or names a task or a seed."""

    variant: Text | None = None
    reset: bool = False
    task: WireTask | None = None
    seed: int | None = None


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
    number: Count
    lease_seconds: Annotated[float, Field(gt=0)]
    idle_seconds: Annotated[float, Field(gt=0)]
    fingerprint: Text
    observation: WireObservation | None = None
    """None: it was not reset."""


class Observed(WireAnswer):
    """An answer with what the agent sees; `turn`: steps of the episode so far, where it was asked what it sees now."""

    observation: WireObservation
    turn: Count | None = None


class StepAnswer(WireAnswer):
    """The answer to a `StepRequest`."""

    observation: WireObservation
    reward: float | None = None
    """None: the caller may not see rewards."""
    terminated: bool
    truncated: bool
    turn: Count
    """Steps of the episode so far, this one included."""
    state: Text | None = None
    """The last state of a session that ended with the step."""

    @classmethod
    def of(cls, result: StepResult, turn: int, *, graded: bool, inline: bool = True) -> Self:
        return cls.model_construct(
            observation=WireObservation.of(result.observation, info=graded, inline=inline),
            reward=result.reward if graded else None,
            terminated=result.terminated,
            truncated=result.truncated,
            turn=turn,
        )


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


class LeaseAnswer(WireAnswer):
    """`POST /v1/sessions/{id}/heartbeat`."""

    lease_seconds: Annotated[float, Field(gt=0)]


class SessionSummary(WireAnswer):
    """A session at a glance; its id, its seed, whose it is and what it earned for graders alone."""

    number: Count
    door: Text
    """The protocol it was opened over."""
    opened: Text
    episodes: Count
    turns: Count
    task: Text | None = None
    seed: int | None = None
    terminated: bool
    truncated: bool
    broken: bool
    hash: Text | None = None
    """Of the last picture."""
    text: Text
    session: Text | None = None
    opened_by: Literal["grader", "agent"] | None = None
    total_reward: float | None = None
    success: bool | None = None


class Overview(WireAnswer):
    """`GET /v1/sessions`."""

    sessions: Items[SessionSummary]


class LiveOverview(Overview):
    """`GET /view/sessions`."""

    capacity: Count


class Verdict(SessionSummary):
    """`GET /v1/sessions/{id}/verdict`: how the episode stands."""

    info: Object


class ClosedAnswer(WireAnswer):
    """`DELETE /v1/sessions/{id}`."""

    closed: Text
