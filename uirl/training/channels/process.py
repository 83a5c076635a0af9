"""The channel of a run whose episodes are played by actors in other processes of this machine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uirl.errors import ActorFailure
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, Weights
from uirl.peers.pictures import SharedImageStore
from uirl.rollout.collector import not_begun
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.actors.job import job_for, probe_of
from uirl.training.actors.launch_processes import ForkLauncher
from uirl.training.actors.launcher import Launcher
from uirl.training.actors.pool import ActorPool
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel, GroupRules
from uirl.training.record.processes import ProcessTable
from uirl.training.record.progress import say
from uirl.types import Trajectory


class PoolChannel(Channel):
    """Episodes are played by the actors of a pool; the engine is the learner's. `launcher` starts their processes."""

    def __init__(
        self,
        parts: Assembly,
        launcher: Launcher,
        count: int,
        rules: GroupRules | None = None,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """`count` actors share the places for episodes; they come in at `host`. Raises ConfigError for what
        other processes cannot make."""
        super().__init__(rules or GroupRules(retries=parts.collector.retries))
        collectors = {"train": parts.collector, "eval": parts.eval_collector}
        self._table: ProcessTable | None = None
        self._engine: InferenceEngine = parts.engine
        self._images: ImageStore = parts.images
        self._at_once = parts.collector.at_once
        self._slots = {split: asyncio.Semaphore(collector.at_once) for split, collector in collectors.items()}
        places = {split: math.ceil(collector.at_once / count) for split, collector in collectors.items()}
        job, made = job_for(
            parts.config,
            places,
            environment=parts.environment if parts.config.environment.is_object else None,
            reward_fn=parts.collector.options.reward_fn,
        )
        self.pool = ActorPool(
            launcher,
            [f"actor-{i}" for i in range(count)],
            job,
            parts.engine,
            made=made,
            probe=probe_of(parts.chat),
            host=host,
            silence=parts.config.actors.silence,
            pictures=self._images.shared if isinstance(self._images, SharedImageStore) else None,
            on_change=lambda seat: self._note(),
        )

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        await self.pool.start()
        try:
            played = await self.pool.play(spec, order)
        except ActorFailure as error:
            return not_begun(spec, error)
        for picture in played.pictures:
            self._images.put(picture)
        return played.trajectory

    def slots(self, split: str) -> asyncio.Semaphore:
        return self._slots[split]

    @property
    def at_once(self) -> int:
        return self._at_once

    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        await self.pool.start()  # they get ready meanwhile
        await self._engine.update_weights(weights, version, adapter=adapter)

    def keep_table(self, folder: Path) -> None:
        self._table = ProcessTable(folder)
        self._table.follow_engine(self._engine)
        self._note()

    async def close(self) -> None:
        await super().close()
        await self.pool.close()
        self._note()
        if self._table is not None:
            self._table.end()

    def _note(self) -> None:
        if self._table is not None:
            self._table.set("actor", self.pool.seats)


class ProcessChannel(PoolChannel):
    """Actors are processes of this machine, `actors.processes` of them."""

    def __init__(self, parts: Assembly, rules: GroupRules | None = None) -> None:
        super().__init__(parts, ForkLauncher(_say), parts.config.actors.processes, rules)


def _say(actor: str, line: str) -> None:
    say(f"[{actor}] {line}")
