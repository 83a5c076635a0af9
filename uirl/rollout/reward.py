"""The person's reward function, applied to an episode; and what it cannot read."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from uirl.environments.base import BaseEnvironment
from uirl.errors import JudgeFailure, is_round
from uirl.types import Trajectory

_LOG = logging.getLogger(__name__)

RewardFunction = Callable[..., float]
_JUDGES: WeakSet[Any] = WeakSet()
"""Reward functions that have judged an episode in this process."""
_WARNED: Counter[str] = Counter()


def apply_reward(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment) -> None:
    """Makes the episode's total reward what `reward_fn(trajectory)` or `reward_fn(trajectory, environment)` says.

    The rewards of the turns keep their shape: what the function adds or takes stands on the last turn. Where it raises,
    or returns no finite number, and has judged another episode before, this one is what it cannot read, which is the
    policy's doing: the total is 0, or the environment's where that is less. Raises JudgeFailure where it has judged
    none; one that it raises itself passes, for what no policy can bring about.
    """
    wants = len(inspect.signature(reward_fn).parameters)
    try:
        total = float(reward_fn(record, environment) if wants >= 2 else reward_fn(record))
        if not math.isfinite(total):
            raise ValueError(f"it returned {total}; expected a finite number")
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
        if not _has_judged(reward_fn):
            raise JudgeFailure(f"the reward function failed: {type(error).__name__}: {error}") from error
        total = min(0.0, record.total_reward())
        warn("the reward function cannot read an episode, after it has read others: it counts as 0", error)
    else:
        _has_judged(reward_fn, now=True)
    if record.turns:
        last = record.turns[-1]
        record.turns[-1] = replace(last, reward=last.reward + total - record.total_reward())


def _has_judged(reward_fn: RewardFunction, *, now: bool = False) -> bool:
    """Whether the function has judged an episode; `now`: it just has."""
    known = getattr(reward_fn, "__func__", reward_fn)  # a method is another object each time it is asked for
    try:
        if now:
            _JUDGES.add(known)
        return known in _JUDGES
    except TypeError:  # an object that cannot be remembered: nothing is known of it
        return False


def warn(what: str, error: Exception) -> None:
    """Tells the person of an outcome that may be a mistake of the set-up: the first time, the 10th, the 100th."""
    _WARNED[what] += 1
    if is_round(_WARNED[what]):
        _LOG.warning("%s (time %d in this process): %s: %.300s", what, _WARNED[what], type(error).__name__, error)
