"""The flow of groups: how many are ordered ahead of the learner, and which of those that come back an update learns
from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uirl.algorithms import AlgorithmSpec
from uirl.config import ConfigStore
from uirl.errors import RolloutFailure, is_round
from uirl.training.channels.base import Channel, Group
from uirl.training.evaluation.evaluation import require_evidence
from uirl.training.groups_with_signal import NO_SIGNAL, is_kept, live_groups
from uirl.training.record.ledger import Ledger
from uirl.training.record.progress import Activity, say
from uirl.training.record.run_state import RunState
from uirl.training.staleness import StalenessBound, StalenessLimits
from uirl.training.tasks.sources import TaskSource
from uirl.types import Trajectory


@dataclass(slots=True)
class Collection:
    """What was played for one update."""

    groups: list[Group] = field(default_factory=list)
    """What is learned from."""
    left_out: list[Group] = field(default_factory=list)
    """Groups that came back and are not learned from: stale, without a signal and replaced by fresh ones, or below
    their floor. They are on the record and in the metrics like all others: left out, a success rate would be that of a
    selection."""
    replaced: int = 0
    """Of these, the ones without a signal."""
    given_up: Counter[str] = field(default_factory=Counter)
    """'surplus', 'straggler' -> episodes of which nothing is known, since nobody waited for them: the slow ones."""

    @property
    def learned(self) -> list[Trajectory]:
        """The episodes that the update learns from."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def played(self) -> list[Trajectory]:
        """All episodes, first those that are learned from."""
        groups = self.groups + self.left_out
        return (
            self.learned
            + [t for group in self.left_out for t in group.trajectories]
            + [t for group in groups for t in group.spares]
        )

    @property
    def attempts(self) -> list[Trajectory]:
        """Failed attempts that were repeated."""
        return [trajectory for group in self.groups + self.left_out for trajectory in group.attempts]


def capacity(staleness: int, updates: int, batch: int, accepted: int, running: int) -> int:
    """Return how many more groups may be ordered: `(staleness + updates + 1) batch - (accepted + running)`.

    `updates` are done, each on `batch` groups; `accepted` came back in time since the run began, `running` are under
    way. What is ordered then is learned from at most `staleness` updates later, if groups are learned from in their
    order (AReaL, arXiv 2505.24298, equation 3).
    """
    return (staleness + updates + 1) * batch - (accepted + running)


class Flow:
    """Orders groups of `tasks` from `channel` and hands out those of one update after another.

    Every episode is booked in the ledger of `state`: by `collect` what comes back and is not learned from, the rest by
    `book`.
    """

    def __init__(
        self, channel: Channel, tasks: TaskSource, config: ConfigStore, spec: AlgorithmSpec, state: RunState
    ) -> None:
        self.channel, self._state = channel, state
        self._tasks, self._config, self._spec = tasks, config, spec
        self._bound = _bound_of(config)
        if state.pace:
            self._bound.load_state_dict(state.pace["staleness"])
        self._batch = config.training.batch_size // config.training.episodes_per_group
        self._accepted = state.step * self._batch  # so that no burst follows a resume
        self._order: dict[str, int] = {}
        self._count = 0
        self._skipped = 0
        """Updates in a row that took no step."""

    @property
    def staleness(self) -> int:
        """How many versions older than the learner's the weights may be that began an episode."""
        return self._bound.bound

    @property
    def ledger(self) -> Ledger:
        """The accounts of the run."""
        return self._state.ledger

    async def collect(self, updates: int, version: int, activity: Activity | None = None) -> Collection:
        """Return the groups of the next update, in the order in which they were ordered.

        `updates` are done; `version` is that of the learner. The update keeps its size: groups without a signal are
        replaced up to `algorithm.max_resamples` times; where no fresh group has one either, the last of them stay in
        it. Raises RolloutFailure where nothing is left to learn from.
        """
        collection = Collection()
        gamma = self._config.training.gamma if self._spec.needs_turns else None
        taken = await self._take(self._batch, updates, version, collection, activity)
        for _ in range(self._config.algorithm.max_resamples if self._spec.needs_group else 0):
            alive = {group.id for group in live_groups(taken, turn_gamma=gamma)}
            dead = [i for i, group in enumerate(taken) if group.id not in alive]
            if not dead:
                break
            self._accepted -= len(dead)
            collection.replaced += len(dead)
            for i, fresh in zip(dead, await self._take(len(dead), updates, version, collection, activity), strict=True):
                self._leave_out(collection, taken[i], "no signal")
                taken[i] = fresh
        require_evidence(
            [t for g in taken for t in g.trajectories], "of this update, which leave nothing to learn from,"
        )
        floor = self.channel.rules.floor
        for group in taken:
            if len(group.usable) < floor:
                self._leave_out(collection, group, "below floor")
            else:
                collection.groups.append(group)
        if not collection.groups:
            raise RolloutFailure(
                f"none of the {len(taken)} groups of this update has {floor} usable episodes (actors.group_floor); the "
                "failures of the run's episodes say why"
            )
        if not self._config.actors.run_ahead:
            collection.given_up["surplus"] += len(self.channel.episodes_outstanding)
            await self.give_up("surplus")
        return collection

    def book(self, collection: Collection, update: Mapping[str, Any]) -> None:
        """Book the episodes of an update that is done, by its metrics. Raises LedgerError where the ledger does not
        balance."""
        algorithm, gamma = self._config.algorithm, self._config.training.gamma if self._spec.needs_turns else None
        alive = {group.id for group in live_groups(collection.groups, turn_gamma=gamma)}
        for group in collection.groups:
            usable = _usable(group)
            if update.get("skipped"):
                self.ledger.drop(usable, "update skipped")
            elif self._spec.needs_group and algorithm.skip_dead_groups and group.id not in alive:
                self.ledger.drop(usable, "no signal")
            elif self._spec.loss == "rejection_sampling":
                low = {id for id, t in usable.items() if not is_kept(t, algorithm.reward_threshold)}
                self.ledger.drop(low, "below reward_threshold")
                self.ledger.train(usable.keys() - low)
            else:
                self.ledger.train(usable)
        self.ledger.require_balance(self.channel.episodes_outstanding)
        self._skipped = self._skipped + 1 if update.get("skipped") else 0
        if self._skipped and is_round(self._skipped):
            what = "an update was" if self._skipped == 1 else f"{self._skipped} updates in a row were"
            say(f"{what} skipped. {NO_SIGNAL}")

    def adapt(self, update: Mapping[str, float | None]) -> None:
        """Choose how far ahead to order from now on, by the metrics of an update; say what changed and why."""
        change = self._bound.observe(update)
        self._state.pace = {"staleness": self._bound.state_dict()}
        if change:
            say(change)

    def row(self) -> dict[str, float]:
        """Return what the metrics of an update say."""
        return self.ledger.row() | {"actors/staleness": self.staleness}

    async def give_up(self, reason: str) -> None:
        """Drop what is under way."""
        self.ledger.drop(await self.channel.give_up(), reason)
        self._order.clear()

    async def _take(
        self, count: int, updates: int, version: int, collection: Collection, activity: Activity | None
    ) -> list[Group]:
        """Return the next `count` groups that are not too old, in the order in which they were ordered."""
        taken: list[Group] = []
        while len(taken) < count:
            self._top_up(updates)
            group = await self.channel.receive()
            self._book_received(group)
            ended = {one.id for one in group.spares}
            collection.given_up.update(reason for id, reason in group.unused.items() if id not in ended)
            if activity is not None:
                activity.done += len(group.trajectories)
            oldest = group.oldest_version
            if oldest is not None and version - oldest > self.staleness:
                self._leave_out(collection, group, "stale")
                continue
            self._accepted += 1
            taken.append(group)
        return sorted(taken, key=lambda group: self._order.pop(group.id))

    def _top_up(self, updates: int) -> None:
        """Order as many groups as the capacity allows."""
        config, running = self._config, len(self.channel.outstanding)
        room = capacity(self.staleness, updates, self._batch, self._accepted, running) + config.actors.spare_groups
        if room <= 0:
            return
        members = config.training.episodes_per_group + config.actors.spare_members
        for specs in self._tasks.groups(room, members):
            self.ledger.order(spec.trajectory_id for spec in specs)
            self._order[specs[0].group_id], self._count = self._count, self._count + 1
            self.channel.submit(specs)

    def _book_received(self, group: Group) -> None:
        for id, reason in group.unused.items():
            self.ledger.drop([id], reason)
        for id, trajectory in zip(group.episodes, group.trajectories, strict=True):
            if trajectory.failure is not None:
                self.ledger.fail(id, trajectory.failure.kind)

    def _leave_out(self, collection: Collection, group: Group, reason: str) -> None:
        self._order.pop(group.id, None)
        collection.left_out.append(group)
        self.ledger.drop(_usable(group), reason)


def _usable(group: Group) -> dict[str, Trajectory]:
    """Return id of the episode ordered -> its trajectory, of those that are evidence."""
    pairs = zip(group.episodes, group.trajectories, strict=True)
    return {id: trajectory for id, trajectory in pairs if trajectory.failure is None}


def _bound_of(config: ConfigStore) -> StalenessBound:
    actors = config.actors
    if actors.staleness == "auto":
        return StalenessBound(limits=StalenessLimits(actors.max_gap, actors.min_ess))
    return StalenessBound(actors.staleness)
