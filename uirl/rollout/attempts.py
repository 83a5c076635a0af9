"""Episodes in parallel, with retries of those that failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from uirl.errors import PromptTooLong
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.types import Trajectory

PAUSE = 0.1
"""Seconds before a failed episode is played again; each further attempt waits twice as long. Up to half of it is left
out at random, so that episodes that failed together do not come back together."""
LONGEST_PAUSE = 10.0

PlayEpisode = Callable[[EpisodeSpec], Awaitable[Trajectory]]


@dataclass(frozen=True, slots=True)
class Attempts:
    """How an episode is played: as often as it takes, each attempt on record."""

    play: PlayEpisode
    """Plays one attempt; what fails says so in its trajectory."""
    slots: asyncio.Semaphore
    """Each episode holds one, from its first attempt to its last."""
    retries: int
    """How often an episode that failed is played again."""
    on_finished: Callable[[Trajectory], None] | None = None
    """Callback: called with every attempt as it ends."""

    async def of(self, spec: EpisodeSpec, failed: list[Trajectory]) -> Trajectory:
        """Return the last attempt at an episode; those before it, which failed, are added to `failed`."""
        async with self.slots:
            for attempt in range(self.retries + 1):
                trajectory = await self.play(attempt_of(spec, attempt))
                if self.on_finished is not None:
                    self.on_finished(trajectory)
                failure = trajectory.failure
                # a first prompt that is too long is so again
                if failure is None or attempt == self.retries or failure.kind == PromptTooLong.kind:
                    break
                failed.append(trajectory)
                await asyncio.sleep(random.uniform(0.5, 1.0) * min(PAUSE * 2.0**attempt, LONGEST_PAUSE))
            return trajectory


async def play_all(
    specs: Sequence[EpisodeSpec],
    play: PlayEpisode,
    *,
    slots: asyncio.Semaphore,
    retries: int,
    on_finished: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Return the trajectories of all `specs`, in their order; then those of failed attempts that were repeated.

    See `Attempts`. Cancelled, it cancels all episodes and waits for them.
    """
    failed: list[Trajectory] = []
    attempts = Attempts(play, slots, retries, on_finished)
    tasks = [asyncio.ensure_future(attempts.of(spec, failed)) for spec in specs]
    try:
        done = await asyncio.gather(*tasks)
    except BaseException:
        await cancel_all(tasks)
        raise
    return done + failed


async def cancel_all(tasks: Sequence[asyncio.Task[Trajectory]]) -> None:
    """Cancel `tasks` and wait until each has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def attempt_of(spec: EpisodeSpec, attempt: int) -> EpisodeSpec:
    """Return the same task and instance with other draws, under an id that tells the attempts apart."""
    if attempt == 0:
        return spec
    seed = None if spec.sampling_seed is None else derive_seed(spec.sampling_seed, "attempt", attempt)
    return replace(spec, sampling_seed=seed, trajectory_id=f"{spec.trajectory_id}-r{attempt}")
