"""Many episodes at once: what a repeated attempt shares with the one that failed, and what it does not."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.rollout.worlds import Countdown, Fragile, collector, play_with, scripted, specs
from uirl.rollout import ExpertAgent, attempts, derive_seed
from uirl.rollout.attempts import play_all
from uirl.rollout.episode import EpisodeSpec, Response
from uirl.types import Failure, Task, Trajectory


@pytest.mark.parametrize(
    ("kind", "retries", "ids"),
    [
        ("environment", 9, ["a-r9", "a", *(f"a-r{i}" for i in range(1, 9))]),
        ("environment", 0, ["a"]),
        ("prompt", 9, ["a"]),  # a first prompt that is too long is so again
    ],
)
async def test_a_failed_episode_is_played_again_after_pauses_that_grow(
    monkeypatch: pytest.MonkeyPatch, kind: str, retries: int, ids: list[str]
) -> None:
    pauses: list[float] = []
    heard: list[Trajectory] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def fails(spec: EpisodeSpec) -> Trajectory:
        return Trajectory(spec.trajectory_id, spec.task, failure=Failure(kind, "broke"))

    monkeypatch.setattr(attempts.asyncio, "sleep", sleep)
    monkeypatch.setattr(attempts.random, "uniform", lambda low, high: low * high)
    spec, slots = EpisodeSpec(Task("t"), 1, 2, "a"), asyncio.Semaphore(1)
    found = await play_all([spec], fails, slots=slots, retries=retries, on_finished=heard.append)
    assert [t.id for t in found] == ids
    assert [t.id for t in heard] == sorted(ids)
    assert pauses == ([0.05 * 2**i for i in range(7)] + [5.0, 5.0])[: len(ids) - 1]


async def test_cancelled_it_cancels_all_episodes_and_waits_for_them() -> None:
    ended: list[str] = []

    async def hangs(spec: EpisodeSpec) -> Trajectory:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            ended.append(spec.trajectory_id)
        raise AssertionError

    task = asyncio.ensure_future(play_all(specs(3), hangs, slots=asyncio.Semaphore(2), retries=1))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == ["g-0", "g-1"]  # the third had not begun


@pytest.mark.parametrize("seed", [1001, None])
async def test_a_retry_has_the_instance_of_the_attempt_that_failed_and_draws_of_its_own(lm, seed: int | None) -> None:
    engine = scripted(lm, "yes")
    runner = collector(lm, Fragile(bad={1}), retries=2)
    spec = replace(specs(2)[1], sampling_seed=seed)
    found = await runner.collect([spec], play_with(engine))
    assert [t.id for t in found] == ["g-1-r2", "g-1", "g-1-r1"]
    assert {(t.seed, t.task.id, t.group_id) for t in found} == {(1, "countdown", "g")}
    # no draw twice, neither within an attempt nor between attempts; draws that need not repeat stay so
    draws = [seed, *(derive_seed(seed, "attempt", n) for n in (1, 2))] if seed else []
    expected = [derive_seed(draw, turn) for draw in draws for turn in (0, 1)]
    assert [request.sampling.seed for request in engine.requests] == (expected or [None] * 6)
    assert len(set(expected)) == len(expected)


async def test_an_instance_that_failed_is_closed_and_a_whole_one_is_used_again(lm) -> None:
    closed: list[Any] = []

    class Watched(Fragile):
        made = 0

        def spawn(self) -> Watched:
            Watched.made += 1
            return Watched(self.bad)

        def close(self) -> None:
            closed.append(self)

    runner = collector(lm, Watched(bad={1}), retries=0, parallel=1)
    await runner.collect(specs(4), play_with(scripted(lm, "yes")))
    assert (Watched.made, len(closed)) == (2, 1)
    await runner.close()
    assert len(closed) == 2


async def test_instances_are_closed_all_at_once_and_a_close_that_fails_is_told(
    lm, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(3)

    class Slow(Countdown):
        """Closes when the others do."""

        runs_inline = False

        def close(self) -> None:
            if together.wait(timeout=PATIENCE) == 0:
                raise OSError("the machine was gone")

        def spawn(self) -> Slow:
            return Slow(self.length)

    runner = collector(lm, Slow(2), parallel=3)
    runner._idle = [runner._open() for _ in range(3)]
    with caplog.at_level("WARNING"):
        await runner.close()
    assert re.search(r"of 3 environments 1 could not be closed: Slow\.close raised OSError: the machine", caplog.text)


async def test_calls_of_episodes_that_are_cut_off_are_counted_until_they_come_back(lm) -> None:
    begun, free = threading.Event(), threading.Event()

    class Hangs(Countdown):
        runs_inline = False

        def step(self, action: str) -> Any:
            begun.set()
            free.wait(timeout=PATIENCE)
            return super().step(action)

        def spawn(self) -> Hangs:
            return Hangs(self.length)

    runner = collector(lm, Hangs(1), parallel=1)
    (spec,) = specs(1)
    played = asyncio.ensure_future(replace(runner).play_once(spec, play_with(scripted(lm, "yes"))(spec)))
    assert await asyncio.to_thread(begun.wait, 60)
    played.cancel()
    with pytest.raises(asyncio.CancelledError):
        await played
    assert runner.stuck == 1, "a copy counts for all"
    free.set()
    while runner.stuck:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("parallel", "held", "most"), [(2, None, 2), (6, 2, 2), (2, 6, 2)])
async def test_so_many_episodes_are_under_way_and_no_more(lm, parallel: int, held: int | None, most: int) -> None:
    env = Countdown()
    env.max_parallel = held
    runner = collector(lm, env, parallel=parallel)
    under_way: list[int] = [0]

    class Slow(ExpertAgent):
        async def act(self, *given: Any) -> Response:
            under_way.append(under_way[-1] + 1)
            await asyncio.sleep(0)
            under_way.append(under_way[-1] - 1)
            return await super().act(*given)

    played = await runner.collect(specs(6), lambda spec: Slow(runner.chat, runner.parser))
    assert [t.id for t in played] == [f"g-{i}" for i in range(6)]
    assert max(under_way) == runner.at_once == most
