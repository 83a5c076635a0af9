"""Between actors and learner: groups of episodes go out, whole groups come back, weights go out with a version.

The synchronous run, many processes and Ray differ in the channel alone. What comes back may be older than the newest
version; every turn says which version sampled it, and whoever receives decides how much staleness it takes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uirl.inference.base import InferenceEngine, SamplingParams, Weights
from uirl.rollout.collector import Collector
from uirl.rollout.episode import EngineAgent, EpisodeSpec
from uirl.types import Trajectory


@dataclass(frozen=True, slots=True)
class Group:
    """One group that was played to its end."""

    id: str
    trajectories: list[Trajectory]
    """One per episode that was ordered; those that failed for good say so."""
    attempts: list[Trajectory]
    """Failed attempts that were repeated: for the record only."""


class Channel(ABC):
    """Carries orders to actors, groups back, and weights out."""

    @abstractmethod
    def submit(self, specs: Sequence[EpisodeSpec]) -> None:
        """Order one group; return at once."""

    @abstractmethod
    async def receive(self) -> Group:
        """Return the next group that is complete, in any order. Raises what broke an actor."""

    @abstractmethod
    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        """Make `version` what actors sample from now on: see `InferenceEngine.update_weights`."""

    async def close(self) -> None:
        """Stop the actors. Groups under way are dropped."""

    async def exchange(self, groups: Sequence[Sequence[EpisodeSpec]]) -> list[Group]:
        """Order all `groups` and wait for them; in the order they were ordered."""
        for specs in groups:
            self.submit(specs)
        received = {}
        for _ in groups:
            group = await self.receive()
            received[group.id] = group
        return [received[specs[0].group_id] for specs in groups]


class LocalChannel(Channel):
    """Actors in this process, on this event loop."""

    def __init__(self, collector: Collector, engine: InferenceEngine, sampling: SamplingParams) -> None:
        self._collector, self._engine, self._sampling = collector, engine, sampling
        self._running: set[asyncio.Task[None]] = set()
        self._done: asyncio.Queue[Group | BaseException] = asyncio.Queue()

    def submit(self, specs: Sequence[EpisodeSpec]) -> None:
        task = asyncio.ensure_future(self._play(list(specs)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def receive(self) -> Group:
        result = await self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result

    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        await self._engine.update_weights(weights, version, adapter=adapter)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _play(self, specs: list[EpisodeSpec]) -> None:
        try:
            trajectories = await self._collector.collect(
                specs, lambda spec: EngineAgent(self._engine, self._sampling, spec.trajectory_id)
            )
            self._done.put_nowait(Group(specs[0].group_id, trajectories[: len(specs)], trajectories[len(specs) :]))
        except Exception as error:
            # handed to whoever receives; a task's own exception would be seen by nobody
            self._done.put_nowait(error)
