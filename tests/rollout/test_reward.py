"""How the person's reward function is called: what it is given, and what is refused before an episode is played."""

from __future__ import annotations

import ast
import asyncio
import re
from fractions import Fraction
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from uirl.errors import ConfigError, JudgeFailure
from uirl.images import ImageStore
from uirl.rollout.episode import EpisodeOptions
from uirl.rollout.reward import apply_reward, judge_episode
from uirl.types import Action, Observation, Task, Trajectory, Turn, Verdict

WORLD: Any = object()


def seen(record: Any, environment: Any = None, option: Any = None) -> float:
    """1 for the episode alone, 2 with its environment; an option that was touched is an error."""
    assert isinstance(record, Trajectory)
    assert option is None
    assert environment is None or environment is WORLD
    return 1.0 if environment is None else 2.0


async def waits(record: Any, environment: Any) -> float:
    await asyncio.sleep(0)
    return seen(record, environment)


class Judge:
    def __call__(self, record: Any, *, environment: Any) -> float:
        return seen(record, environment)

    def method(self, record: Any, env: Any = None) -> float:
        return seen(record, env)


class AsyncJudge:
    async def __call__(self, record: Any) -> float:
        return await waits(record, None)


def bound(record: Any, threshold: float, environment: Any) -> float:
    assert threshold == 3
    return seen(record, environment)


@wraps(waits)
def wrapped(*args: Any, **keys: Any) -> Any:
    return waits(*args, **keys)


def with_keywords(record: Any, **keys: Any) -> float:
    return seen(record, **keys)


FITTING: list[tuple[Any, float]] = [
    (lambda t: seen(t), 1),
    (lambda t, strict=None: seen(t, None, strict), 1),
    (lambda t, strict=None, environment=None: seen(t, environment, strict), 2),
    (lambda t, world: seen(t, world), 2),
    (lambda t, env=None: seen(t, env), 2),
    (lambda t, /, environment=None, *more: seen(t, environment), 2),
    (lambda *args: seen(*args), 1),
    (with_keywords, 1),
    (waits, 2),
    (wrapped, 2),
    (Judge(), 2),
    (Judge().method, 2),
    (AsyncJudge(), 1),
    (partial(bound, threshold=3), 2),
    (partial(seen, environment=None), 1),
    (partial(seen, option=None), 2),
    (partial(lambda bonus, t, world: seen(t, world), 3), 2),
]


@pytest.mark.parametrize("way", ["awaited", "at once"])
@pytest.mark.parametrize("number", range(len(FITTING)))
def test_a_reward_function_gets_what_it_asks_for(number: int, way: str) -> None:
    reward_fn, total = FITTING[number]
    EpisodeOptions(reward_fn=reward_fn)
    record = Trajectory()
    record.rewards = [0.5]
    if way == "awaited":
        asyncio.run(judge_episode(record, reward_fn, WORLD, ImageStore()))
    else:
        apply_reward(record, reward_fn, WORLD)
    assert record.total_reward() == total


@pytest.mark.parametrize(
    "reward_fn",
    [
        lambda: 1.0,
        lambda t, environment, threshold: 1.0,
        lambda t, *, threshold: 1.0,
        lambda environment, t: 1.0,
        lambda env: 1.0,
        partial(lambda t, environment: 1.0, 1, 2),
        bound,
        "accuracy",
    ],
)
def test_what_cannot_be_called_so_is_refused_before_an_episode(reward_fn: Any) -> None:
    with pytest.raises(ConfigError, match=r"reward_fn .*got .*expected .*trajectory"):
        EpisodeOptions(reward_fn=reward_fn)


class Mine(Exception):
    """What a reward function may call its own."""


def strict(record: Trajectory) -> float:
    """1 for the reply 1; for others it raises what libraries and `assert` raise, by the reply."""
    reply = record.actions[-1]
    if reply == "mine":
        raise Mine("no answer")
    if reply == "slow":
        raise TimeoutError
    if reply.startswith("("):
        re.compile(reply)
    value = ast.literal_eval(reply)
    assert value == 1
    return float(value)


def said(reply: str) -> Trajectory:
    turn = Turn(Observation("?"), action=Action(reply), reward=0.5, terminated=True)
    return Trajectory(reply, Task("t"), [turn], "terminated")


@pytest.mark.parametrize("reply", ["2", "1 +", "[" * 5000, "(", "mine", "slow", "word"])
def test_a_reply_that_the_function_cannot_read_is_worth_nothing_whatever_it_raises(reply: str) -> None:
    def judge(record: Trajectory) -> float:
        return strict(record)

    with pytest.raises(JudgeFailure, match="the reward function failed"):  # it has read none yet: it may be broken
        apply_reward(said(reply), judge, WORLD)
    apply_reward(said("1"), judge, WORLD)
    record = said(reply)
    apply_reward(record, judge, WORLD)
    assert record.total_reward() == 0.0


def test_what_cannot_be_read_is_worth_no_more_than_the_worst_that_was_read() -> None:
    def judge(record: Trajectory) -> float:
        return float(record.actions[-1])

    totals = []
    for reply in ("2", "-3", "1", "x", "nan", "2e15"):
        record = said(reply)
        apply_reward(record, judge, WORLD)
        totals.append(record.total_reward())
    assert totals == [2.0, -3.0, 1.0, -3.0, -3.0, -3.0]


async def test_of_a_verifier_the_verdict_is_recorded() -> None:
    images = ImageStore()

    class Eye:
        async def judge_episode(self, trajectory: Trajectory, environment: Any = None, pictures: Any = None) -> Verdict:
            assert (environment, pictures) == (WORLD, images.get)
            return Verdict(0.25, False, "half of it", "eye")

    record = said("1")
    await judge_episode(record, Eye(), WORLD, images)
    assert (record.verdict, record.rewards) == (Verdict(0.25, False, "half of it", "eye"), [0.25])


def repr_of(score: object) -> str:
    return repr(score)[:20]


class Verifier:
    """A verifier of somebody's own, which gives every episode this score."""

    def __init__(self, score: Any) -> None:
        self.score = score

    async def judge_episode(self, trajectory: Trajectory, environment: Any = None, pictures: Any = None) -> Verdict:
        return Verdict(self.score, True)


@pytest.mark.parametrize("score", [1e30, -1e30, 10**400, Fraction(10**400), float("nan"), "much", None], ids=repr_of)
async def test_a_score_beyond_all_bounds_is_refused_by_name(score: Any, tmp_path: Path) -> None:
    for judge, name in ((lambda record: score, "reward function"), (Verifier(score), "the verifier Verifier")):
        record = said("1")
        with pytest.raises(JudgeFailure, match=name) as caught:
            await judge_episode(record, judge, WORLD, ImageStore(tmp_path))
        assert isinstance(score, str | None) or "expected a finite number of at most 1e+15" in str(caught.value)
        assert (record.total_reward(), record.verdict) == (0.5, None)
