"""Episodes that fail are played again, after a pause."""

from __future__ import annotations

import asyncio

import pytest

from uirl.rollout import attempts
from uirl.rollout.attempts import play_all
from uirl.rollout.episode import EpisodeSpec
from uirl.types import Failure, Task, Trajectory


async def test_the_pause_before_each_further_attempt_is_longer(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def fails(spec: EpisodeSpec) -> Trajectory:
        return Trajectory(spec.trajectory_id, spec.task, failure=Failure("environment", "broke"))

    monkeypatch.setattr(attempts.asyncio, "sleep", sleep)
    monkeypatch.setattr(attempts.random, "uniform", lambda low, high: low)
    spec = EpisodeSpec(Task("t"), 1, 2, "a")
    played = await play_all([spec], fails, slots=asyncio.Semaphore(1), retries=9)
    assert [t.id for t in played] == ["a-r9", "a", *(f"a-r{i}" for i in range(1, 9))]
    assert pauses == [0.05 * 2**i for i in range(7)] + [5.0, 5.0]
