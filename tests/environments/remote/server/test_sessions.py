"""The set of sessions itself, without a server around it: nothing stays behind, whoever gives up half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl.environments import BaseEnvironment
from uirl.environments.remote.server.sessions import Counters, Lease, Progress, Sessions
from uirl.environments.remote.server.settings import ServerSettings
from uirl.errors import EnvironmentFailure
from uirl.runtime.wire import WireError
from uirl.types import Action, Observation, StepResult, Task


class Slow(BaseEnvironment):
    """Steps and closes when it is let."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.open_instances: list[Slow] = []
        self.stepping, self.closing, self.gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def spawn(self) -> Slow:
        other = Slow()
        other.stepping, other.closing, other.gate = self.stepping, self.closing, self.gate
        other.open_instances = self.open_instances
        self.open_instances.append(other)
        return other

    def reset(self, seed: int | None = None) -> Any:
        return "ready"

    async def step(self, action: Any) -> Any:
        self.stepping.set()
        await self.gate.wait()
        return "done", 0.0, False, {}

    def get_state_description(self) -> str:
        return ""

    async def close(self) -> None:  # type: ignore[override]
        if self in self.open_instances:
            self.closing.set()
            await self.gate.wait()
            self.open_instances.remove(self)


def sessions_of(environment: BaseEnvironment, clock: Callable[[], float] = lambda: 0.0) -> Sessions:
    return Sessions(environment, ServerSettings("slow", lease=10.0), Counters(), clock)


async def opened(sessions: Sessions) -> Lease:
    lease = sessions.open("native", graders=False)
    await sessions.reset(lease, None, 1)
    return lease


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_close_that_is_cancelled_while_a_step_runs_still_ends_the_session() -> None:
    slow = Slow()
    sessions = sessions_of(slow)
    async with asyncio.timeout(PATIENCE):
        lease = await opened(sessions)
        step = asyncio.create_task(sessions.step(lease, Action(text="go")))
        await slow.stepping.wait()
        closing = asyncio.create_task(sessions.close(lease, "client"))
        await asyncio.sleep(0)
        await cancelled(closing)
        assert list(sessions.active) == [lease], "it plays a step still"
        slow.gate.set()
        await step
        await sessions.close_all()
    assert (list(sessions.active), slow.open_instances) == ([], [])


async def test_the_end_waits_for_what_the_reaper_began() -> None:
    now = 0.0
    slow = Slow()
    sessions = sessions_of(slow, lambda: now)
    async with asyncio.timeout(PATIENCE):
        await opened(sessions)
        now = 11.0
        await sessions.reap()  # the session goes, its instance is kept for a while
        assert (list(sessions.active), sessions.warm) == ([], 1)
        now = 100.0
        reaping = asyncio.create_task(sessions.reap())
        await slow.closing.wait()
        await cancelled(reaping)
        ending = asyncio.create_task(sessions.close_all())
        await asyncio.sleep(0)
        assert slow.open_instances
        slow.gate.set()
        await ending
    assert slow.open_instances == []


@pytest.mark.parametrize(("task", "seed"), [(None, 2**63), (None, -(2**63) - 1), (Task("a", seed=10**300), None)])
async def test_a_seed_that_no_environment_takes(task: Task | None, seed: int | None) -> None:
    sessions = sessions_of(Slow())
    lease = sessions.open("native", graders=False)
    with pytest.raises(WireError, match="more than 64 bits"):
        await sessions.reset(lease, task, seed)
    await sessions.reset(lease, None, 2**63 - 1)


@pytest.mark.parametrize(
    ("rows", "wrong"), [([True], 0), (["1"], 0), ([-1], 0), (3, 0), ([1], -1), ([1], True), ([1], None)]
)
def test_progress_that_an_environment_counts_wrongly_is_its_failure(rows: Any, wrong: Any) -> None:
    info = {"progress": {"submitted_row_indices": rows, "num_incorrect_submissions": wrong}}
    with pytest.raises(EnvironmentFailure, match=r"info\.progress"):
        Progress().note(StepResult(Observation("", (), info)))
