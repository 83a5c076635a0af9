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
from uirl.rollout import ExpertAgent
from uirl.rollout.episode import Response


async def test_a_retry_has_the_instance_of_the_attempt_that_failed_and_draws_of_its_own(lm) -> None:
    engine = scripted(lm, "yes")
    runner = collector(lm, Fragile(bad={1}), retries=2)
    played = await runner.collect(specs(2), play_with(engine))
    attempts = {t.id: t for t in played}
    assert set(attempts) == {"g-0", "g-1", "g-1-r1", "g-1-r2"}
    # the same problem each time ...
    of_second = [t for name, t in attempts.items() if name.startswith("g-1")]
    assert {t.seed for t in of_second} == {1}
    assert all(t.task == specs(2)[1].task for t in of_second)
    assert {t.group_id for t in of_second} == {"g"}
    # ... and no draw twice, neither within an attempt nor between attempts
    draws = [request.sampling.seed for request in engine.requests]
    assert len(set(draws)) == len(draws) == 3 + 3 * 2


async def test_draws_that_need_not_repeat_stay_so_in_a_retry(lm) -> None:
    engine = scripted(lm, "yes")
    runner = collector(lm, Fragile(bad={0}), retries=1)
    await runner.collect([replace(specs(1)[0], sampling_seed=None)], play_with(engine))
    assert [request.sampling.seed for request in engine.requests] == [None] * 4


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
