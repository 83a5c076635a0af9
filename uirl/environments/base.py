"""The environment contract: three methods to write, and what may be added to them."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from uirl.types import Action, Task


class BaseEnvironment(ABC):
    """Something an agent can use. Write `reset`, `step` and `get_state_description`; the rest is optional.

    What a subclass may return and accept:

    - `reset()` returns an observation or `(observation, info)`. An observation is a str, an `Observation`, an image
      (PIL, uint8 array [H, W, 3], PNG or JPEG bytes), or a dict with 'text' and 'image' or 'images'. `reset` is called
      with `task=` and `seed=` only where its signature has them.
    - `step(action)` returns `(observation, reward, done, info)`, the five-tuple with terminated and truncated, or a
      `StepResult`. `info['success']` (bool), where given, is the environment's own word on success.
    - Both may be `async def`. What belongs to one thread (a browser, a window) is made in `reset`, not in `__init__`.
    """

    action_format: ClassVar[str] = "text"
    """Name of the parser the policy's replies go through. 'text': `step` gets the reply as a str. Any other (for
    example 'json'): `step` gets an `Action`, whose `parse_error` says why a reply could not be read."""
    runs_inline: ClassVar[bool] = False
    """True: calls are quick and never block, so they run on the event loop, in a repeatable order. False: every
    instance has a thread of its own, and a call that hangs is cut off."""
    demonstrator_may_fail: bool = False
    """True: `expert_action` errs on purpose, for a warm start that leaves something to learn; the contract suite then
    does not ask it to succeed."""
    max_turns: int | None = None
    """Turns after which an episode of this environment is over; None: the run's limit alone. An environment that ends
    the episode itself says `truncated` then, unless the last turn came to an end of the task, or to its final score;
    with `info['out_of_turns']` (True) the limit is a part of the job, and an end for credit as the run's own is."""
    max_parallel: int | None = None
    """Instances that can be in use at the same time, where each costs much (a browser page, a phone); a run that asks
    for more episodes at a time plays so many. None: as many as the run asks for."""
    fixed_start: bool = False
    """True: every episode of a task begins in the same state, so that `reset` needs no seed. Methods that compare the
    episodes of a group need this or a `reset` that takes `seed`; a run then has no held-out instances of a task."""
    scored_at_end: bool = False
    """True: what an episode was worth is known only where the environment ends it. Of one that the run cuts before
    (turns, tokens, time) `score_now` is asked; where that does not tell, the episode is a failure: it has no score,
    which is not a score of 0."""
    mistake_reward: float = 0.0
    """Reward of a reply that is no action, at most 0 and no more than an action that does nothing is worth: to set, or
    to write as a property, where steps cost. Whoever answers such a reply in this environment's place (a
    `ToolEnvironment` around it, the adapters of TRL and verl) pays this."""
    message_style: str = "plain"
    """How the policy is told what it sees: a name of `uirl.rollout.conversation.STYLES`."""

    _done: bool = False
    """For a subclass to set; cleared before each reset."""
    _step_limit: float = math.inf
    """Seconds after which whoever plays this instance gives a step up; the session sets it."""

    def __init__(self, config: Any = None) -> None:
        self.config = config

    @abstractmethod
    def reset(self) -> Any:
        """Return the first observation of a new episode."""

    @abstractmethod
    def step(self, action: Any) -> Any:
        """Execute an action and return (observation, reward, done, info)."""

    @abstractmethod
    def get_state_description(self) -> str:
        """Return the current state as text, for the model's context."""

    def get_prompt_prefix(self) -> str:
        """Return the system prompt; empty: none."""
        return ""

    def prompt_prefix_of(self, task: Task) -> str:
        """Return the system prompt of this task before it is played: what an export writes. Default: that of all."""
        return self.get_prompt_prefix()

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """Return JSON schemas of the functions the policy may call, for chat templates that show them; empty: none, or
        they are described in the prompt prefix."""
        return ()

    def callable_tools(self) -> Sequence[Mapping[str, Any]]:
        """Return JSON schemas of the functions the policy may call, however it is told of them: what parsers look at to
        tell a call from text. Empty: not known."""
        return self.tool_schemas()

    def tasks(self) -> Sequence[Task] | None:
        """Return the tasks of this environment; None: there is one, and the seed makes its instances."""
        return None

    def expert_action(self) -> Action | str | None:
        """Return what a demonstrator would do now, for a warm start; None: this environment has no demonstrator."""
        return None

    @property
    def has_demonstrator(self) -> bool:
        """Whether `expert_action` says something: a run warm-starts from nothing else."""
        return type(self).expert_action is not BaseEnvironment.expert_action

    def state_key(self) -> str | None:
        """Return the current state as text, equal in equal states: what 'gigpo' compares the turns of a group by. None:
        what the agent sees is the state. Worth writing where one observation does not tell the whole state ("higher"),
        or tells more than it (a clock)."""
        return None

    def score_now(self) -> Any:
        """Return (reward, info) of an episode that the run ends here, as `step` gives them with the last action; may be
        `async def`, and is not followed by a step. Asked where `scored_at_end` is set. None: not known."""
        return None

    def live_views(self) -> Sequence[str]:
        """Return the addresses of pages on which people can watch its episodes while they are played; empty: there are
        none."""
        return ()

    def controls(self) -> Mapping[str, BaseEnvironment | Action | str]:
        """Return name -> variant of this environment in which a policy that uses what it should must fail (a blank
        picture, no instruction), or an action that, repeated, must fail. Evaluated beside a trained policy."""
        return {}

    def spawn(self) -> BaseEnvironment:
        """Return another, independent instance for a parallel episode. Default: a deep copy."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Free what the instance holds. Calling it twice is fine."""
