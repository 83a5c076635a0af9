"""The person's reward function, applied to an episode; and what it cannot read."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from uirl.environments.base import BaseEnvironment
from uirl.environments.results import LARGEST_REWARD
from uirl.errors import JudgeFailure, is_round
from uirl.images import ImageStore
from uirl.runtime.limits import in_words
from uirl.types import Trajectory, Verdict

_LOG = logging.getLogger(__name__)

RewardFunction = Callable[..., float]


@runtime_checkable
class EpisodeVerifier(Protocol):
    """A reward function that takes its time (`uirl.verification.HybridVerifier`): other episodes go on meanwhile."""

    async def judge_episode(
        self, trajectory: Trajectory, environment: Any = None, pictures: Callable[[str], Any] | None = None
    ) -> Verdict:
        """Return the verdict. Raises JudgeFailure where there is none."""
        ...


FAILS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError)
"""What a reward function raises that cannot judge an episode."""
_JUDGED: WeakKeyDictionary[Any, Trajectory] = WeakKeyDictionary()
"""Reward function -> the last episode that it has judged in this process."""
_WARNED: Counter[str] = Counter()


def apply_reward(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment) -> None:
    """Make the episode's total reward what `reward_fn(trajectory)` or `reward_fn(trajectory, environment)` says.

    The rewards of the turns keep their shape: what the function adds or takes stands on the last turn. Where it raises,
    or returns no finite number, and still judges the last one that it has judged, this episode is what it cannot read,
    which is the policy's doing: the total is 0, or the environment's where that is less. Raises JudgeFailure where it
    has judged none, or fails with that one too; one that it raises itself passes, for what no policy can bring about.
    """
    try:
        total = _total(record, reward_fn, environment)
    except FAILS as error:
        if not _still_judges(reward_fn, environment):
            raise JudgeFailure(f"the reward function failed: {in_words(error)}") from error
        total = min(0.0, record.total_reward())
        warn("the reward function cannot read an episode, and reads another: it counts as 0", error)
    else:
        with suppress(TypeError):  # an object that cannot be remembered
            _JUDGED[_itself(reward_fn)] = replace(record, turns=list(record.turns))
    _set_total(record, total)


async def judge_episode(
    record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment, images: ImageStore
) -> None:
    """Make the episode's total reward what `reward_fn` says of it; of a verifier the verdict is recorded too. See
    `apply_reward`. Raises JudgeFailure."""
    if not isinstance(reward_fn, EpisodeVerifier):
        apply_reward(record, reward_fn, environment)
        return
    record.verdict = await reward_fn.judge_episode(record, environment, images.get)
    _set_total(record, record.verdict.score)


def _set_total(record: Trajectory, total: float) -> None:
    if record.turns:
        last = record.turns[-1]
        record.turns[-1] = replace(last, reward=last.reward + total - record.total_reward())


def _total(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment) -> float:
    wants = len(inspect.signature(reward_fn).parameters)
    total = float(reward_fn(record, environment) if wants >= 2 else reward_fn(record))
    if not abs(total) <= LARGEST_REWARD:
        raise ValueError(f"it returned {total}; expected a finite number of at most {LARGEST_REWARD:g}")
    return total


def _still_judges(reward_fn: RewardFunction, environment: BaseEnvironment) -> bool:
    """Return whether the function judges the episode that it judged last: what it depends on is there, then."""
    try:
        judged = _JUDGED.get(_itself(reward_fn))
        if judged is not None:
            _total(judged, reward_fn, environment)
    except FAILS:
        return False
    return judged is not None


def _itself(reward_fn: RewardFunction) -> Any:
    return getattr(reward_fn, "__func__", reward_fn)  # a method is another object each time it is asked for


def warn(what: str, error: Exception) -> None:
    """Tell the person of an outcome that may be a mistake of the set-up: the first time, the 10th, the 100th."""
    _WARNED[what] += 1
    if is_round(_WARNED[what]):
        _LOG.warning("%s (time %d in this process): %s", what, _WARNED[what], in_words(error, 300))
