"""Episodes at the same time, and again where they failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from uirl.errors import PromptTooLong
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.types import Trajectory

PlayEpisode = Callable[[EpisodeSpec], Awaitable[Trajectory]]


async def play_all(
    specs: Sequence[EpisodeSpec],
    play: PlayEpisode,
    *,
    slots: asyncio.Semaphore,
    retries: int,
    on_finished: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Return the trajectories of all `specs`, in their order; then those of failed attempts that were repeated.

    Each episode holds one of the `slots`. One that failed is played again up to `retries` times; `on_finished` hears
    of every attempt the moment it ends. Cancelled, it cancels all episodes and waits for them.
    """
    failed: list[Trajectory] = []

    async def one(spec: EpisodeSpec) -> Trajectory:
        async with slots:
            for attempt in range(retries + 1):
                trajectory = await play(attempt_of(spec, attempt))
                if on_finished is not None:
                    on_finished(trajectory)
                failure = trajectory.failure
                # a first prompt that is too long is so again
                if failure is None or attempt == retries or failure.kind == PromptTooLong.kind:
                    break
                failed.append(trajectory)
            return trajectory

    tasks = [asyncio.ensure_future(one(spec)) for spec in specs]
    try:
        done = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    return done + failed


def attempt_of(spec: EpisodeSpec, attempt: int) -> EpisodeSpec:
    """Return the same task and instance with other draws, under an id that tells the attempts apart."""
    if attempt == 0:
        return spec
    seed = None if spec.sampling_seed is None else derive_seed(spec.sampling_seed, "attempt", attempt)
    return replace(spec, sampling_seed=seed, trajectory_id=f"{spec.trajectory_id}-r{attempt}")
