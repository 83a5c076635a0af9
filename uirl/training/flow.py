"""The flow of groups: how many are ordered ahead of the learner, and which of those that come back an update learns
from."""

from __future__ import annotations

import copy
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from uirl.config import ActorsConfig
from uirl.errors import RolloutFailure, is_round
from uirl.learner.settings import LearnerSettings
from uirl.training.channels.base import Channel, Group
from uirl.training.evaluation.evaluation import require_evidence
from uirl.training.groups_with_signal import is_kept, live_groups, why_no_signal
from uirl.training.record.ledger import Ledger
from uirl.training.record.progress import Activity, say
from uirl.training.record.run_state import RunState
from uirl.training.tasks.sources import TaskSource
from uirl.types import Trajectory

WINDOW = 4
"""Updates whose median decides."""
MARGIN = 0.8
"""The bound rises only where no more than this share of a limit is used up."""
PATIENCE = 8
"""Updates between a bound that was too large and the next attempt to raise it; twice as many after each failed one."""
LONGEST_PATIENCE = 512
LARGEST = 64
"""No bound is larger, however close to the policy the data are."""


@dataclass(frozen=True, slots=True)
class StalenessLimits:
    """What stale data may cost."""

    max_gap: float
    """Mean |learner - engine| over stale tokens, in nats (`stale/gap`), at most."""
    min_ess: float
    """Effective sample size of stale tokens (`stale/ess`), at least."""

    def broken_by(self, gap: float, ess: float) -> str:
        """Return which limit does not hold; empty: none."""
        if gap > self.max_gap:
            return f"the log-prob gap of stale tokens is {gap:.3g} nats, above actors.max_gap={self.max_gap:g}"
        if ess < self.min_ess:
            return f"the effective sample size of stale tokens is {ess:.3g}, below actors.min_ess={self.min_ess:g}"
        return ""

    def leave_room(self, gap: float, ess: float) -> bool:
        """Return whether older data might still be inside the limits."""
        return gap <= MARGIN * self.max_gap and 1 - ess <= MARGIN * (1 - self.min_ess)


@dataclass(slots=True)
class StalenessBound:
    """The number of versions that data may be old; `limits` None: it is fixed.

    With limits it doubles from 1 until one breaks, returns to the last that held, and from there rises by 1 at a time.
    A bound that fails again is tried half as often. The median of `WINDOW` updates decides; before the bound rises
    again, and before it falls a second time, the data that were ordered under the earlier bound are waited for; between
    `MARGIN` and a limit it stays. So it cannot move every update, whatever it measures.
    """

    bound: int = 1
    limits: StalenessLimits | None = None
    _held: int = 0
    """The bound from which the present one was reached upwards, because it was inside the limits; 0: it was not."""
    _doubles: bool = True
    """No bound was too large yet."""
    _patience: int = PATIENCE
    _wait: int = 0
    """Updates before the next decision to raise it."""
    _settling: int = 1
    """Updates to come whose data may have been ordered under another bound."""
    _rose: bool = True
    """The last move was upwards."""
    _seen: list[list[float]] = field(default_factory=list)
    """[gap, effective sample size, largest age] of the updates since."""
    _said: bool = False
    """That the limits do not hold at 1 either."""

    def observe(self, update: Mapping[str, float | None]) -> str | None:
        """Take the metrics of an update into account; return why the bound moved, None: it did not."""
        if self.limits is None or (gap := update.get("stale/gap")) is None:
            return None
        self._wait = max(0, self._wait - 1)
        settling, self._settling = self._settling > 0, max(0, self._settling - 1)
        if settling and not self._rose:
            return None
        self._seen.append([gap, update.get("stale/ess") or 0.0, update.get("stale/age_max") or 0.0])
        del self._seen[:-WINDOW]
        if len(self._seen) < WINDOW:
            return None
        gap, ess = (statistics.median(values) for values in list(zip(*self._seen, strict=True))[:2])
        return self._decide(self.limits, gap, ess, settling)

    def _decide(self, limits: StalenessLimits, gap: float, ess: float, settling: bool) -> str | None:
        if broken := limits.broken_by(gap, ess):
            return self._lower(broken)
        self._said = False
        reached = max(age for _, _, age in self._seen) >= self.bound  # else a larger one would change nothing
        if settling or not reached or self._wait or self.bound >= LARGEST or not limits.leave_room(gap, ess):
            return None
        self._held = self.bound
        measured = f"log-prob gap {gap:.3g} of at most {limits.max_gap:g} nats, effective sample size {ess:.3g} of at "
        return self._move(
            min(LARGEST, 2 * self.bound if self._doubles else self.bound + 1),
            f"{measured}least {limits.min_ess:g}, over {WINDOW} updates",
        )

    def _lower(self, broken: str) -> str | None:
        if self.bound == 1:
            if self._said:
                return None
            self._said = True
            return f"staleness stays 1, its least, although {broken}; a lower learning rate or staleness=0 helps"
        if not self._doubles:
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)
        self._doubles, self._wait = False, self._patience
        lower = self._held or self.bound // 2  # one that held and fails now: the policy moves faster than it did
        self._held = 0
        return self._move(lower, broken)

    def _move(self, bound: int, why: str) -> str:
        words = f"staleness {self.bound} -> {bound}: {why}"
        self._settling, self._rose = max(self.bound, bound) + 1, bound > self.bound
        self.bound = bound
        self._seen.clear()
        return words

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` continues from, as plain data; nothing of a bound that is fixed."""
        names = () if self.limits is None else self._kept()
        return {name.lstrip("_"): copy.deepcopy(getattr(self, name)) for name in names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; a bound that is fixed stays what it is, and one that was fixed before says nothing."""
        for name in self._kept() if self.limits is not None and state.get("bound") else ():
            setattr(self, name, copy.deepcopy(state[name.lstrip("_")]))

    def _kept(self) -> list[str]:
        return [field.name for field in fields(self) if field.name != "limits"]


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
        self, channel: Channel, tasks: TaskSource, actors: ActorsConfig, settings: LearnerSettings, state: RunState
    ) -> None:
        self.channel, self._state = channel, state
        self._tasks, self._actors, self._settings = tasks, actors, settings
        self._gamma = settings.training.gamma if settings.spec.needs_turns else None
        limits = StalenessLimits(actors.max_gap, actors.min_ess)
        bound = actors.staleness
        self._bound = StalenessBound(limits=limits) if bound == "auto" else StalenessBound(bound)
        if state.pace:
            self._bound.load_state_dict(state.pace["staleness"])
        self._batch = settings.training.groups
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
        taken = await self._take(self._batch, updates, version, collection, activity)
        for _ in range(self._settings.algorithm.max_resamples if self._settings.spec.needs_group else 0):
            alive = {group.id for group in live_groups(taken, turn_gamma=self._gamma)}
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
        if not self._actors.run_ahead:
            collection.given_up["surplus"] += len(self.channel.episodes_outstanding)
            await self.give_up("surplus")
        return collection

    def book(self, collection: Collection, update: Mapping[str, Any]) -> None:
        """Book the episodes of an update that is done, by its metrics. Raises LedgerError where the ledger does not
        balance."""
        algorithm = self._settings.algorithm
        alive = {group.id for group in live_groups(collection.groups, turn_gamma=self._gamma)}
        for group in collection.groups:
            usable = _usable(group)
            if update.get("skipped"):
                self.ledger.drop(usable, "update skipped")
            elif self._settings.spec.needs_group and algorithm.skip_dead_groups and group.id not in alive:
                self.ledger.drop(usable, "no signal")
            elif self._settings.spec.loss == "rejection_sampling":
                low = {id for id, t in usable.items() if not is_kept(t, algorithm.reward_threshold)}
                self.ledger.drop(low, "below reward_threshold")
                self.ledger.train(usable.keys() - low)
            else:
                self.ledger.train(usable)
        self.ledger.require_balance(self.channel.episodes_outstanding)
        self._skipped = self._skipped + 1 if update.get("skipped") else 0
        if self._skipped and is_round(self._skipped):
            what = "an update was" if self._skipped == 1 else f"{self._skipped} updates in a row were"
            say(f"{what} skipped. {why_no_signal(collection.groups)}")

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
        actors, running = self._actors, len(self.channel.outstanding)
        room = capacity(self.staleness, updates, self._batch, self._accepted, running) + actors.spare_groups
        if room <= 0:
            return
        members = self._settings.training.episodes_per_group + actors.spare_members
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
