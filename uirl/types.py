"""The records that all parts exchange: plain data, checked when made, safe to send to another process.

One record, many views: an episode appends one `Turn` per model call and everything else (tokens, masks, rewards,
`states`, `actions`) is derived from the turns. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from uirl.images import is_picture

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem, as data: what to do, where, and how success is checked."""

    id: str
    """Unique within a run; the curriculum and the per-task table of an evaluation key on it."""
    environment: str = ""
    """Name of the environment in the table of environments; empty: the environment the run was given."""
    goal: str = ""
    """What the agent is told to do; empty: the environment writes its own goal from the seed."""
    checks: JSON = field(default_factory=dict)
    """What a verifier needs to judge the result. Never shown to the agent."""
    tags: tuple[str, ...] = ()
    seed: int | None = None
    """Seed of the instance; None: every episode of this task draws a new one."""
    weight: float = 1.0
    """How often it is drawn, relative to other tasks."""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("Task.id is empty; expected a name unique within the run, e.g. 'screen/level-1'")
        if not 0 < self.weight < math.inf:
            raise ValueError(f"Task.weight of {self.id!r} is {self.weight!r}; expected a number > 0")
        object.__setattr__(self, "tags", tuple(self.tags))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One named call with arguments, as the policy wrote it."""

    name: str
    arguments: JSON = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One call that was executed, and what came back."""

    name: str
    arguments: JSON = field(default_factory=dict)
    success: bool = True
    """False: the policy's own mistake (an unknown tool, wrong arguments, a `ToolError`), told to it in `result`."""
    result: Any = None
    """What the tool returned: plain data."""
    id: str = ""
    """Of the call it answers, where the policy gave one."""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What the policy is told: the result itself where it is text, else as JSON."""
        return self.result if isinstance(self.result, str) else json.dumps(self.result, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees before one model call."""

    text: str = ""
    images: tuple[Any, ...] = ()
    """Pictures in reading order: `uirl.images.Screenshot` in an episode; an environment may also hand PIL images or
    encoded bytes, which the episode turns into screenshots."""
    info: JSON = field(default_factory=dict)
    """For the log and the verifier. Never shown to the agent."""
    tool_results: tuple[ToolResult, ...] = ()
    """Answers to the calls of the previous action: shown before `text`, each as a message of the role 'tool'."""
    state_key: str | None = None
    """Names the state, equal in equal states: what 'gigpo' compares turns by. Never shown to the agent. None: text,
    pictures and tool results are the state. The first one tells instances apart that hide where they differ."""

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"Observation.text must be a str, got {type(self.text).__name__}: {self.text!r:.80}")
        object.__setattr__(self, "images", tuple(self.images))
        object.__setattr__(self, "tool_results", tuple(self.tool_results))


@dataclass(frozen=True, slots=True)
class Action:
    """What the agent decided: the parse of one generation."""

    text: str = ""
    """The reply as text, special tokens left out but those around a thought."""
    tool_calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    parse_error: str | None = None
    """Why the reply could not be read, in words the policy can learn from; None: it could."""

    @property
    def call(self) -> ToolCall | None:
        """The first tool call; None where there is none."""
        return self.tool_calls[0] if self.tool_calls else None

    @property
    def answer(self) -> str:
        """The text without the thought that it begins with."""
        text, thought = self.text.strip(), self.thought.strip()
        return text[len(thought) :].strip() if thought and text.startswith(thought) else self.text

    @staticmethod
    def of(name: str, **arguments: Any) -> Action:
        """Return an action with one call, for experts, tests and the interactive prompt."""
        return Action(tool_calls=(ToolCall(name, arguments),))


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the environment answered to one action."""

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    """The task reached an end of its own (success, failure, game over)."""
    truncated: bool = False
    """A limit cut the episode; the state was not an end."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement of one trajectory."""

    score: float
    passed: bool
    reason: str = ""
    verifier: str = ""
    correct_prefix: int | None = None
    """How many turns of the trajectory were right; None: the verifier did not say."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an episode is not evidence: something of ours broke. Never a reward of zero."""

    kind: str
    """Which boundary: 'environment', 'engine', 'judge', 'timeout', ... (`uirl.errors`)."""
    message: str
    turn: int | None = None
    """Index of the turn in which it happened; None: before the first."""


Box = tuple[int, int, int, int]
"""Left, top, width, height in pixels."""


@dataclass(frozen=True, slots=True)
class PictureTransform:
    """How the picture that a model was fed was made of the raw one: a part of it, resized, and a part of that."""

    raw_size: tuple[int, int]
    """Width and height in pixels, as all sizes here."""
    resized: tuple[int, int]
    """Of `source`, once it is resized."""
    source: Box | None = None
    """Part of the raw picture that is resized; what lies outside the picture has the colour `fill`. None: all of it."""
    window: Box | None = None
    """Part of the resized picture that is fed; what lies outside is black. None: all of it."""
    resample: str = "bicubic"
    """Name of the filter, as in `PIL.Image.Resampling`."""
    fill: tuple[int, int, int] = (0, 0, 0)

    @property
    def fed_size(self) -> tuple[int, int]:
        """Width and height of the picture that was fed."""
        return self.resized if self.window is None else self.window[2:]

    def to_fed(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the raw picture lies in the fed one; outside of it where it was cut off."""
        left, top, width, height = self.source or (0, 0, *self.raw_size)
        dx, dy = (self.window or (0, 0))[:2]
        return (x - left) * self.resized[0] / width - dx, (y - top) * self.resized[1] / height - dy

    def to_raw(self, x: float, y: float) -> tuple[float, float]:
        """Return the inverse of `to_fed`."""
        left, top, width, height = self.source or (0, 0, *self.raw_size)
        dx, dy = (self.window or (0, 0))[:2]
        return (x + dx) * width / self.resized[0] + left, (y + dy) * height / self.resized[1] + top


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call: what was fed, what was sampled, what came of it.

    `context_ids` are the tokens fed since the previous turn's response (the whole prompt where `starts_segment`).
    Concatenating `context_ids + response_ids` over a segment gives exactly the sequence the engine saw.
    """

    observation: Observation
    context_ids: tuple[int, ...] = ()
    response_ids: tuple[int, ...] = ()
    rollout_log_probs: tuple[float, ...] = ()
    """One per response id, the engine's, under the distribution it sampled from."""
    action: Action = Action()
    reward: float = 0.0
    policy_version: int = 0
    starts_segment: bool = False
    """The history was rewritten before this turn (or this is the first): a new token sequence begins here."""
    context_images: tuple[str, ...] = ()
    """Hashes of the images whose placeholders stand in `context_ids`, in order."""
    pictures: tuple[PictureTransform | None, ...] = ()
    """What each of the `context_images` became before the model saw it, None where nobody knows; empty: not
    recorded."""
    finish_reason: str = "stop"
    """Of the generation: 'stop', 'length' or 'abort'."""
    terminated: bool = False
    truncated: bool = False
    info: JSON = field(default_factory=dict)
    tool_results: tuple[ToolResult, ...] = ()
    """What the calls of `action` came back with, in order."""

    def __post_init__(self) -> None:
        if self.rollout_log_probs and len(self.rollout_log_probs) != len(self.response_ids):
            raise ValueError(
                f"rollout_log_probs must align with response_ids: got {len(self.rollout_log_probs)}, expected "
                f"{len(self.response_ids)}; does the engine return one for the stop token?"
            )
        if self.pictures and len(self.pictures) != len(self.context_images):
            raise ValueError(
                f"pictures must align with context_images: got {len(self.pictures)}, expected "
                f"{len(self.context_images)} or 0"
            )

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def tool_call(self) -> ToolResult | None:
        """The first call of this turn that was executed, with its `result`; None: there was none."""
        return self.tool_results[0] if self.tool_results else None


@dataclass(slots=True)
class Trajectory:
    """The record of one episode. Append turns; read tokens, rewards and lists from it.

    It can also be filled by hand from plain lists (`t = Trajectory(); t.states = [...]; t.rewards = [...]`): each
    list writes its field of the turns, so there is still one record.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    task: Task = field(default_factory=lambda: Task(id="unnamed"))
    turns: list[Turn] = field(default_factory=list)
    stop_reason: str | None = None
    """Why the episode ended: 'terminated', 'truncated', 'max_turns', 'token_budget', 'wall_time', 'failure';
    None: it is still running."""
    group_id: str = ""
    verdict: Verdict | None = None
    failure: Failure | None = None
    """Not None: this episode is excluded from every advantage."""
    seed: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of this episode for the log: seconds, tokens, `success` of the environment, what verifiers did."""
    final: Observation | None = None
    """What stood there after the last turn: nobody acted on it, and verifiers look at it. None: not recorded."""
    sampling: JSON | None = None
    """How the policy was sampled (temperature, top_p, top_k, max_tokens, seed); None: no policy was, or nobody says."""
    level: str | None = None
    """Level of the task in the curriculum when it was drawn; None: there was none."""

    def __len__(self) -> int:
        return len(self.turns)

    def total_reward(self) -> float:
        """Sum of the rewards of all turns, undiscounted."""
        return float(sum(turn.reward for turn in self.turns))

    def prefix(self, turns: int) -> Trajectory:
        """Return the first `turns` turns as a record of their own, with the same id: what stood there after them is its
        `final`, and it is cut where nothing ended ('truncated'). All turns: the record itself. Raises ValueError for
        more turns than there are."""
        if not 0 <= turns <= len(self.turns):
            raise ValueError(f"prefix of {turns} turns of trajectory {self.id}, which has {len(self.turns)}")
        if turns == len(self.turns):
            return self
        final = self.turns[turns].observation
        return replace(self, turns=self.turns[:turns], final=final, stop_reason="truncated", metrics={})

    @property
    def success(self) -> bool | None:
        """Whether the task was solved: the verdict, else the environment's own word (`metrics['success']`);
        None: the episode failed and is no evidence, or neither said so, which `uirl.success.settle_outcomes` makes a no
        where this environment reports success in other episodes."""
        if self.failure is not None:
            return None
        if self.verdict is not None:
            return self.verdict.passed
        success = self.metrics.get("success")
        return None if success is None else bool(success)

    @property
    def states(self) -> list[Any]:
        return [turn.observation.text for turn in self.turns]

    @states.setter
    def states(self, values: Sequence[Any]) -> None:
        self._write(values, lambda turn, v: replace(turn, observation=_as_observation(v)))

    @property
    def actions(self) -> list[str]:
        return [turn.action.text for turn in self.turns]

    @actions.setter
    def actions(self, values: Sequence[Any]) -> None:
        self._write(values, lambda turn, v: replace(turn, action=v if isinstance(v, Action) else Action(text=str(v))))

    @property
    def rewards(self) -> list[float]:
        return [turn.reward for turn in self.turns]

    @rewards.setter
    def rewards(self, values: Sequence[float]) -> None:
        self._write(values, lambda turn, v: replace(turn, reward=float(v)))

    @property
    def dones(self) -> list[bool]:
        return [turn.done for turn in self.turns]

    @dones.setter
    def dones(self, values: Sequence[bool]) -> None:
        self._write(values, lambda turn, v: replace(turn, terminated=bool(v), truncated=False))
        if values and values[-1]:
            self.stop_reason = "terminated"

    def _write(self, values: Sequence[Any], put: Any) -> None:
        while len(self.turns) < len(values):
            self.turns.append(Turn(observation=Observation()))
        for i, value in enumerate(values):
            self.turns[i] = put(self.turns[i], value)


def _as_observation(value: Any) -> Observation:
    made = isinstance(value, Observation)
    return value if made else Observation(images=(value,)) if is_picture(value) else Observation(text=str(value))


@dataclass(slots=True)
class RolloutData:
    """A batch of trajectories."""

    trajectories: list[Trajectory] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.trajectories)

    @property
    def usable(self) -> list[Trajectory]:
        """The trajectories that are evidence: those without a failure."""
        return [t for t in self.trajectories if t.failure is None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence to learn from: a segment of one trajectory. All tuples align with `token_ids`."""

    token_ids: tuple[int, ...]
    response_mask: tuple[bool, ...]
    """True where the policy sampled the token: a fact, born with the token."""
    rollout_log_probs: tuple[float, ...]
    """The engine's log-prob where `response_mask`, 0.0 elsewhere (never read there)."""
    rewards: tuple[float, ...]
    """Token-level rewards: the reward of a turn stands on its last response token."""
    turn_ids: tuple[int, ...]
    """Index of the turn in its trajectory at response tokens, -1 elsewhere."""
    images: tuple[str, ...] = ()
    """Hashes of the images in `token_ids`, in order."""
    policy_version: int = 0
    """The oldest version that sampled a token of this sequence."""
    trajectory_id: str = ""
    group_id: str = ""
    segment: int = 0
    advantages: tuple[float, ...] | None = None
    """Credit of each token; None: not yet computed."""
    ends_episode: bool = True
    """The episode ended with this segment, and the state was an end. False: another segment follows, or the environment
    truncated. The run's own limits (turns, tokens, time) are ends: a policy must learn to finish in time."""
    versions: tuple[int, ...] = ()
    """The version that sampled each token, that of its turn; -1 where the policy sampled none. Empty: `policy_version`
    sampled them all."""

    def __post_init__(self) -> None:
        n = len(self.token_ids)
        for name in ("response_mask", "rollout_log_probs", "rewards", "turn_ids", "advantages"):
            got = getattr(self, name)
            if got is not None and len(got) != n:
                raise ValueError(f"Sample.{name} must align with token_ids: got {len(got)}, expected {n}")
        if self.versions and len(self.versions) != n:
            raise ValueError(f"Sample.versions must align with token_ids: got {len(self.versions)}, expected {n} or 0")
        if not any(self.response_mask):
            raise ValueError("Sample holds no sampled token; expected at least one True in response_mask")
