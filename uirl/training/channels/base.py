"""Between actors and learner: groups of episodes go out, whole groups come back, weights go out with a version.

The run in one process, many processes and Ray differ in who plays an episode; everything else is here. What comes back
may be older than the newest version: every turn says which version sampled it, and whoever receives decides how much
staleness it takes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uirl.inference.base import Weights
from uirl.inference.workers import supervisors_of
from uirl.rollout.attempts import Attempts, cancel_all, play_all
from uirl.rollout.collector import EpisodePlayer
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order, Players
from uirl.training.assembly import Assembly, sampling_of
from uirl.training.record.processes import ProcessTable
from uirl.types import Trajectory

DURATIONS = 256
"""The median time of an episode is that of so many, the newest."""
ENOUGH_DURATIONS = 16
"""Before so many have ended no group is closed early."""


TRAINING = Order()


@dataclass(frozen=True, slots=True)
class GroupRules:
    """When a group is whole."""

    size: int | None = None
    """Usable episodes that it needs; more are spares. None: all that are ordered."""
    floor: int = 1
    """Usable episodes without which it is not learned from."""
    close_after: float | None = None
    """Times the median time of an episode; None: it waits for all."""
    retries: int = 0
    """How often an episode that failed is played again."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group that was played to its end."""

    id: str
    trajectories: list[Trajectory]
    """What it may be learned from, in the order ordered; those that failed for good say so."""
    episodes: list[str] = field(default_factory=list)
    """Ids of the episodes that these are of, in the same order; a repeated attempt has an id of its own."""
    attempts: list[Trajectory] = field(default_factory=list)
    """Failed attempts that were repeated: for the record only."""
    unused: dict[str, str] = field(default_factory=dict)
    """Id of an episode that was ordered and is not needed -> why: 'surplus' or 'straggler'."""
    spares: list[Trajectory] = field(default_factory=list)
    """Of these, those that ended all the same."""

    @property
    def usable(self) -> list[Trajectory]:
        """The trajectories that are evidence."""
        return [trajectory for trajectory in self.trajectories if trajectory.failure is None]

    @property
    def oldest_version(self) -> int | None:
        """Of the weights that sampled a turn of it; None: nothing was sampled."""
        return min((turn.policy_version for one in self.usable for turn in one.turns), default=None)


@dataclass(slots=True, eq=False)
class _Ordered:
    """A group that was ordered and not yet received."""

    specs: list[EpisodeSpec]
    at: float
    task: asyncio.Task[None] | None = None


class Channel(ABC):
    """Carries orders to actors, groups back, and weights out."""

    def __init__(self, parts: Assembly, rules: GroupRules) -> None:
        self.rules = rules
        self.on_finished: Callable[[Trajectory], None] | None = None
        """Hears of every training episode the moment it ends, failed attempts and spares included: the place to write
        it down."""
        self._engine, self._collectors = parts.engine, {"train": parts.collector, "eval": parts.eval_collector}
        self._table: ProcessTable | None = None
        self._ordered: dict[str, _Ordered] = {}
        self._done: asyncio.Queue[Group | BaseException] = asyncio.Queue()
        self._seconds: deque[float] = deque(maxlen=DURATIONS)

    @abstractmethod
    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        """Play one attempt at one episode. What fails says so in the trajectory; it raises what ends the run."""

    def slots(self, split: str) -> asyncio.Semaphore:
        """Return the places for episodes of a split: one per episode that is played at the same time."""
        return self._collectors[split].slots

    @property
    def at_once(self) -> int:
        """Training episodes that are played at the same time, at most."""
        return self._collectors["train"].at_once

    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        """Make `version` what actors sample from now on: see `InferenceEngine.update_weights`."""
        await self._engine.update_weights(weights, version, adapter=adapter)

    def keep_table(self, folder: Path) -> None:
        """Write to the run directory `folder` which processes there are, whenever that changes."""
        self._table = ProcessTable(folder)
        self._table.follow_engine(self._engine)

    # -- groups ----------------------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> list[str]:
        """Ids of the groups that were ordered and not yet received, the oldest first."""
        return list(self._ordered)

    @property
    def episodes_outstanding(self) -> set[str]:
        """Ids of the episodes of these groups."""
        return {spec.trajectory_id for ordered in self._ordered.values() for spec in ordered.specs}

    @property
    def oldest_order(self) -> float | None:
        """When the oldest of these groups was ordered, in seconds since 1970; None: there is none."""
        return min((ordered.at for ordered in self._ordered.values()), default=None)

    def waits_for(self) -> str:
        """Return what a receiver waits for, in words: how many groups, and the oldest."""
        groups = list(self._ordered.items())  # a thread that watches asks
        if not groups:
            return ""
        id, oldest = min(groups, key=lambda one: one[1].at)
        noun = "group" if len(groups) == 1 else f"{len(groups)} groups, the oldest"
        return f"{noun} {id}, ordered {time.time() - oldest.at:.0f} s ago"

    def submit(self, specs: Sequence[EpisodeSpec]) -> None:
        """Order one group; return at once."""
        ordered = _Ordered(list(specs), time.time())
        self._ordered[specs[0].group_id] = ordered
        ordered.task = asyncio.ensure_future(self._play(ordered))

    async def receive(self) -> Group:
        """Return the next group that is complete, in any order. Raises what broke an actor."""
        result = await self._done.get()
        if isinstance(result, BaseException):
            raise result
        self._ordered.pop(result.id, None)
        return result

    async def exchange(self, groups: Sequence[Sequence[EpisodeSpec]]) -> list[Group]:
        """Order all `groups` and wait for them; in the order they were ordered."""
        for specs in groups:
            self.submit(specs)
        received = {}
        for _ in groups:
            group = await self.receive()
            received[group.id] = group
        return [received[specs[0].group_id] for specs in groups]

    def player(self, order: Order) -> EpisodePlayer:
        """Return a player of episodes that no update learns from, by these actors."""
        return _Player(self, order)

    async def give_up(self) -> set[str]:
        """Drop every group that was not received, played or not; return the ids of their episodes."""
        ids = self.episodes_outstanding
        tasks = [ordered.task for ordered in self._ordered.values() if ordered.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ordered.clear()
        self._done = asyncio.Queue()
        return ids

    async def close(self) -> None:
        """Stop the actors. Groups under way are dropped."""
        await self.give_up()
        if self._table is not None:
            self._table.end()

    async def _play(self, ordered: _Ordered) -> None:
        try:
            self._done.put_nowait(await self._play_group(ordered))
        except Exception as error:
            # handed to whoever receives; a task's own exception would be seen by nobody
            self._done.put_nowait(error)

    async def _play_group(self, ordered: _Ordered) -> Group:
        """Play a group until it is whole, and give up what is not needed then."""
        specs, started = ordered.specs, time.monotonic()
        failed: list[Trajectory] = []
        attempts = Attempts(
            lambda spec: self._timed(spec), self.slots(TRAINING.split), self.rules.retries, self.on_finished
        )
        tasks = {spec.trajectory_id: asyncio.ensure_future(attempts.of(spec, failed)) for spec in specs}
        reason = ""
        try:
            while pending := [task for task in tasks.values() if not task.done()]:
                await asyncio.wait(pending, timeout=self._until_close(started), return_when=asyncio.FIRST_COMPLETED)
                if reason := self._whole(list(tasks.values()), started):
                    break
        finally:
            await cancel_all(list(tasks.values()))
        return self._group_of(ordered, tasks, failed, reason)

    async def _timed(self, spec: EpisodeSpec) -> Trajectory:
        started = time.monotonic()
        trajectory = await self.play_once(spec, TRAINING)
        if trajectory.failure is None:
            self._seconds.append(time.monotonic() - started)
        return trajectory

    def _group_of(
        self, ordered: _Ordered, tasks: Mapping[str, asyncio.Task[Trajectory]], failed: list[Trajectory], reason: str
    ) -> Group:
        """Return the group; of more usable episodes than it needs, those ordered last are left out."""
        size = len(tasks) if self.rules.size is None else self.rules.size
        kept: dict[str, Trajectory] = {}
        spares: list[Trajectory] = []
        unused: dict[str, str] = {}
        usable = 0
        for id, task in tasks.items():
            if task.cancelled():
                unused[id] = reason or "surplus"
                continue
            trajectory = task.result()
            if trajectory.failure is None and usable >= size:
                unused[id] = "surplus"
                spares.append(trajectory)
                continue
            usable += trajectory.failure is None
            kept[id] = trajectory
        return Group(ordered.specs[0].group_id, list(kept.values()), list(kept), failed, unused, spares)

    def _whole(self, tasks: list[asyncio.Task[Trajectory]], started: float) -> str:
        """Return why a group need not wait for the others; empty: it does. Raises what broke an actor."""
        usable = sum(task.result().failure is None for task in tasks if task.done())
        if self.rules.size is not None and usable >= self.rules.size:
            return "surplus"
        limit = self._close_seconds()
        if limit is not None and usable >= self.rules.floor and time.monotonic() - started >= limit:
            return "straggler"
        return ""

    def _close_seconds(self) -> float | None:
        """Return after how many seconds a group that has its floor is closed; None: never, or not known yet."""
        if self.rules.close_after is None or len(self._seconds) < ENOUGH_DURATIONS:
            return None
        return self.rules.close_after * statistics.median(self._seconds)

    def _until_close(self, started: float) -> float | None:
        limit = self._close_seconds()
        if limit is None:
            return None if self.rules.close_after is None else 1.0
        left = started + limit - time.monotonic()
        return left if left > 0 else None


class _Player:
    """Episodes outside groups."""

    def __init__(self, channel: Channel, order: Order) -> None:
        self.on_finished: Callable[[Trajectory], None] | None = None
        self._channel, self._order = channel, order

    async def collect(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        return await play_all(
            specs,
            lambda spec: self._channel.play_once(spec, self._order),
            slots=self._channel.slots(self._order.split),
            retries=self._channel.rules.retries,
            on_finished=self.on_finished,
        )


class LocalChannel(Channel):
    """Actors in this process, on this event loop."""

    def __init__(self, parts: Assembly, rules: GroupRules) -> None:
        super().__init__(parts, rules)
        self._players = Players(self._collectors, parts.engine, sampling_of(parts.config.inference))

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        return await self._players.play_once(spec, order)

    def keep_table(self, folder: Path) -> None:
        if supervisors_of(self._engine):
            super().keep_table(folder)

    async def close(self) -> None:
        await super().close()
        await self._players.close()
