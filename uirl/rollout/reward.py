"""The user's reward function, applied to an episode, and what happens where it raises."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from uirl.environments.base import BaseEnvironment
from uirl.errors import ConfigError, JudgeFailure, UirlError, is_round
from uirl.images import ImageStore
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.limits import in_words, read_score, shown
from uirl.tools.registry import run_at_once
from uirl.types import Trajectory, Verdict

_LOG = logging.getLogger(__name__)

RewardFunction = Callable[..., float | Awaitable[float]]
"""See `read_reward_function` for how it is called."""
_Wait = Callable[[Awaitable[Any]], Coroutine[Any, Any, Any]]
_ENVIRONMENT = ("environment", "env")


@runtime_checkable
class EpisodeVerifier(Protocol):
    """A reward function that takes its time (`uirl.verification.HybridVerifier`): other episodes go on meanwhile."""

    async def judge_episode(
        self, trajectory: Trajectory, environment: Any = None, pictures: Callable[[str], Any] | None = None
    ) -> Verdict:
        """Return the verdict. Raises JudgeFailure where there is none."""
        ...


_JUDGED: WeakKeyDictionary[Any, tuple[Trajectory, float]] = WeakKeyDictionary()
"""Reward function -> the last episode that it has judged in this process, and the lowest total that it gave."""
_WARNED: Counter[str] = Counter()


def read_reward_function(reward_fn: Any) -> Callable[[Trajectory, BaseEnvironment], Any]:
    """Return `reward_fn` as a function of the episode and its environment.

    It is called with the episode; and with the environment where it has a parameter `environment` or `env`, or
    requires a second one. All others keep their defaults. What it returns may be awaitable. Raises ConfigError for what
    cannot be called so.
    """
    if not callable(reward_fn):
        raise ConfigError(f"reward_fn must be a function, got {shown(reward_fn, 80)}; expected f(trajectory)")
    try:
        signature = inspect.signature(reward_fn)
    except (TypeError, ValueError):  # written in C, without one
        return lambda record, environment: reward_fn(record)
    parameters = list(signature.parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = reward_fn.keywords if isinstance(reward_fn, partial) else {}
    named = [p for p in parameters if p.name in _ENVIRONMENT and p.name not in given]
    required = [p for p in places[1:] if p.default is p.empty]
    target = named[0] if named else required[0] if required else None
    open_ones = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY and p is not target]
    open_ones += [p.name for p in required if p is not target]
    takes_record = bool(places) or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not takes_record or open_ones or (places and target is places[0]):
        name = getattr(reward_fn, "__qualname__", type(reward_fn).__qualname__)
        raise ConfigError(
            f"reward_fn cannot be called: got {name}{signature}; expected (trajectory) or (trajectory, environment). "
            "Give other parameters a default, or bind them with functools.partial"
        )
    if target is None:
        return lambda record, environment: reward_fn(record)
    if len(places) > 1 and target is places[1]:
        return lambda record, environment: reward_fn(record, environment)
    return lambda record, environment: reward_fn(record, **{target.name: environment})


def apply_reward(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment) -> None:
    """Set the episode's total reward to what `reward_fn` returns; see `judge_episode`, for callers that cannot wait."""
    run_at_once(_apply(record, reward_fn, environment, _wait_on_a_thread), "this coroutine never waits")


async def judge_episode(
    record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment, images: ImageStore
) -> None:
    """Set the episode's total reward to what `reward_fn` returns; of a verifier the verdict is recorded too.

    The rewards of the turns keep their shape: what the function adds or takes stands on the last turn. Where it raises,
    or returns no finite number, and still judges the last one that it has judged, this episode is what it cannot read,
    which is the policy's doing: the total is 0, or the environment's or the lowest that the function gave in this
    process where that is less. Raises JudgeFailure where it has judged none, or fails with that one too; one that it
    raises itself passes, for what no policy can bring about.
    """
    if not isinstance(reward_fn, EpisodeVerifier):
        await _apply(record, reward_fn, environment, _wait)
        return
    verdict = await reward_fn.judge_episode(record, environment, images.get)
    try:
        _set_total(record, read_score(verdict.score, "it"))
    except (TypeError, ValueError) as error:
        raise JudgeFailure(f"the verifier {type(reward_fn).__name__} gave no score: {error}") from None
    record.verdict = verdict


async def _wait(said: Awaitable[Any]) -> Any:
    return await said


async def _wait_on_a_thread(said: Awaitable[Any]) -> Any:
    loop = EventLoopThread("uirl-reward")
    try:
        return loop.run(_wait(said))
    finally:
        loop.close()


async def _apply(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment, wait: _Wait) -> None:
    judged, lowest = _last_judged(reward_fn)
    try:
        total = await _total(record, reward_fn, environment, wait)
    except UirlError:
        raise
    except Exception as error:  # a reply can make it raise anything: `assert`, `ast.literal_eval`, `re.compile`
        if judged is None or not await _judges(judged, reward_fn, environment, wait):
            raise JudgeFailure(f"the reward function failed: {in_words(error)}") from error
        total = min(0.0, record.total_reward(), lowest)
        warn("the reward function cannot read an episode, and reads another: it counts as 0, or less", error)
    else:
        with suppress(TypeError):  # an object that cannot be remembered
            _JUDGED[_itself(reward_fn)] = replace(record, turns=list(record.turns)), min(lowest, total)
    _set_total(record, total)


def _set_total(record: Trajectory, total: float) -> None:
    if record.turns:
        last = record.turns[-1]
        record.turns[-1] = replace(last, reward=last.reward + total - record.total_reward())


async def _total(record: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment, wait: _Wait) -> float:
    said = read_reward_function(reward_fn)(record, environment)
    return read_score(await wait(said) if inspect.isawaitable(said) else said, "it")


def _last_judged(reward_fn: RewardFunction) -> tuple[Trajectory | None, float]:
    with suppress(TypeError):  # an object that cannot be remembered
        return _JUDGED.get(_itself(reward_fn), (None, 0.0))
    return None, 0.0


async def _judges(judged: Trajectory, reward_fn: RewardFunction, environment: BaseEnvironment, wait: _Wait) -> bool:
    """Return whether the function judges this episode, as it did before: what it depends on is there, then."""
    try:
        await _total(judged, reward_fn, environment, wait)
    except UirlError:
        raise
    except Exception:
        return False
    return True


def _itself(reward_fn: RewardFunction) -> Any:
    return getattr(reward_fn, "__func__", reward_fn)  # a method is another object each time it is asked for


def warn(what: str, error: Exception) -> None:
    """Log a warning of an outcome that may be a mistake of the set-up: the first time, the 10th, the 100th."""
    _WARNED[what] += 1
    if is_round(_WARNED[what]):
        _LOG.warning("%s (time %d in this process): %s", what, _WARNED[what], in_words(error, 300))
