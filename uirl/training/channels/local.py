"""The channel of a run in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from uirl.inference.base import InferenceEngine, SamplingParams, Weights
from uirl.inference.workers import supervisors_of
from uirl.rollout.collector import Collector
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order, Players
from uirl.training.channels.base import Channel, GroupRules
from uirl.training.record.processes import ProcessTable
from uirl.types import Trajectory


class LocalChannel(Channel):
    """Actors in this process, on this event loop.

    `collector` plays training episodes, `eval_collector` those of evaluations; None: the same.
    """

    def __init__(
        self,
        collector: Collector,
        engine: InferenceEngine,
        sampling: SamplingParams,
        rules: GroupRules | None = None,
        *,
        eval_collector: Collector | None = None,
    ) -> None:
        super().__init__(rules or GroupRules(retries=collector.retries))
        self._collectors = {"train": collector, "eval": eval_collector or collector}
        self._engine = engine
        self._table: ProcessTable | None = None
        self._players = Players(self._collectors, engine, sampling)

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        return await self._players.play_once(spec, order)

    def slots(self, split: str) -> asyncio.Semaphore:
        return self._collectors[split].slots

    @property
    def at_once(self) -> int:
        return self._collectors["train"].at_once

    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        await self._engine.update_weights(weights, version, adapter=adapter)

    async def close(self) -> None:
        await super().close()
        await self._players.close()
        if self._table is not None:
            self._table.end()

    def keep_table(self, folder: Path) -> None:
        if supervisors_of(self._engine):
            self._table = ProcessTable(folder)
            self._table.follow_engine(self._engine)
