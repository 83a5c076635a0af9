"""How many groups to order beyond those an update needs, so that it rarely waits for the slowest: chosen by replaying
the times that the run's own episodes took."""

from __future__ import annotations

import bisect
import heapq
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DURATIONS = 512
"""Episodes whose times are replayed, the newest."""
ENOUGH = 64
"""Before so many have ended nothing is chosen."""
EVERY = 8
"""Updates between two choices."""
REPLAYED = 24
"""Updates of one replay."""
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""The numbers of spare groups that are tried."""
WORTH = 0.03
"""Spares that buy less throughput than this are not ordered; of those that buy nearly the most, the fewest are."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an update consists of."""

    groups: int
    """Groups that it learns from."""
    members: int
    """Episodes of each."""
    slots: int
    """Episodes that are played at the same time."""
    staleness: int = 0
    """Updates that a group may be ordered ahead. 0: what is under way when an update has its groups is given up."""
    update_seconds: float = 0.0
    """From the last group to new weights."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of a replay."""

    seconds: float
    """Per update."""
    played: int
    """Episodes that were begun."""


def replay(durations: Sequence[float], work: Work, spares: int, *, updates: int = REPLAYED, seed: int = 0) -> Replay:
    """Play `updates` updates whose episodes take times drawn from `durations`, with `spares` groups beyond each.

    Groups are ordered by the capacity rule of `Flow`, wait in a queue for `work.slots` places, and are dropped where
    they are too old when they end.
    """
    return _Replayed(durations, work, spares, random.Random(seed)).play(updates)


class _Replayed:
    """One replay: a clock, the episodes that wait and run, the groups that wait for the learner."""

    def __init__(self, durations: Sequence[float], work: Work, spares: int, draw: random.Random) -> None:
        self._durations, self._work, self._spares, self._draw = durations, work, spares, draw
        self._waiting: deque[int] = deque()
        """The group of each episode that has no place yet."""
        self._running: list[tuple[float, int]] = []
        """(end, group) of each episode that is played; a heap."""
        self._left: dict[int, int] = {}
        """Group under way -> its episodes that have not ended."""
        self._begun: dict[int, int] = {}
        """Group under way -> the updates that were done when it began."""
        self._now, self._ready, self._done, self._ordered, self._played = 0.0, 0, 0, 0, 0

    def play(self, updates: int) -> Replay:
        """Take so many updates."""
        for _ in range(updates):
            self._order()
            while self._ready < self._work.groups:
                self._end_next()
                self._order()
            self._ready -= self._work.groups
            if not self._work.staleness:
                self._give_up()
            self._learn()
        return Replay(self._now / updates, self._played)

    def _give_up(self) -> None:
        for under_way in (self._waiting, self._running, self._left, self._begun):
            under_way.clear()
        self._ready = 0

    def _learn(self) -> None:
        """Let the actors play on while the learner learns."""
        until = self._now + self._work.update_seconds
        while self._running and self._running[0][0] <= until:
            self._end_next()
        self._now, self._done = until, self._done + 1

    def _order(self) -> None:
        work = self._work
        accepted = self._done * work.groups + self._ready
        for _ in range((work.staleness + self._done + 1) * work.groups + self._spares - accepted - len(self._left)):
            self._left[self._ordered] = work.members
            self._waiting.extend([self._ordered] * work.members)
            self._ordered += 1
        self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._work.slots:
            group = self._waiting.popleft()
            self._begun.setdefault(group, self._done)
            heapq.heappush(self._running, (self._now + self._draw.choice(self._durations), group))
            self._played += 1

    def _end_next(self) -> None:
        self._now, group = heapq.heappop(self._running)
        self._left[group] -= 1
        if not self._left[group]:
            del self._left[group]
            self._ready += self._done - self._begun.pop(group) <= self._work.staleness
        self._begin()


def with_censored(ended: Sequence[float], given_up: Sequence[float]) -> list[float]:
    """Return times from which to draw: those that ended, and for every episode that was given up after some seconds
    one that took at least as long.

    Of the ended ones that took longer each stands for it in turn, the first beyond first; where none did, its own time
    does. (The redistribution to the right that makes the estimator of Kaplan and Meier, 1958, rounded to whole ones.)
    Left out, the slowest episodes would be those of which nothing is known.
    """
    known = sorted(ended)
    drawn = list(known)
    for turn, seconds in enumerate(sorted(given_up)):
        longer = known[bisect.bisect_right(known, seconds) :]
        drawn.append(longer[turn % len(longer)] if longer else seconds)
    return drawn


def choose_spares(durations: Sequence[float], work: Work) -> tuple[int, Replay, Replay]:
    """Return how many spare groups to order, and the replays without and with them.

    Of 0 and those of `SIZES` that are no more than an update needs, it is the fewest whose throughput is within `WORTH`
    of the best; 0, where the best buys less than that.
    """
    candidates = [0, *(n for n in SIZES if n <= work.groups)]
    replays = {spares: replay(durations, work, spares) for spares in candidates}
    best = min(one.seconds for one in replays.values())
    alone = replays[0]
    if alone.seconds <= best * (1 + WORTH):
        return 0, alone, alone
    chosen = next(spares for spares in candidates if replays[spares].seconds <= best * (1 + WORTH))
    return chosen, alone, replays[chosen]


@dataclass(slots=True)
class SpareGroups:
    """The spare groups of a run: a number that is given, or one that follows the times of its episodes."""

    count: int = 0
    adapts: bool = False
    """Whether `observe` may change `count`."""
    _ended: deque[float] = field(default_factory=lambda: deque(maxlen=DURATIONS))
    _given_up: deque[float] = field(default_factory=lambda: deque(maxlen=DURATIONS))
    _updates: int = 0
    """Since the last choice."""

    def note(self, ended: Iterable[float], given_up: Iterable[float] = ()) -> None:
        """Take the seconds of episodes into account, and for how long those were played that were given up."""
        self._ended.extend(ended)
        self._given_up.extend(given_up)

    def observe(self, work: Work) -> str | None:
        """Choose again every `EVERY` updates; return what the spares buy where their number changes."""
        self._updates += 1
        if not self.adapts or self._updates < EVERY or len(self._ended) < ENOUGH:
            return None
        self._updates = 0
        newest = list(self._given_up)[-len(self._ended) :]
        chosen, without, with_them = choose_spares(with_censored(self._ended, newest), work)
        if chosen == self.count:
            return None
        before, self.count = self.count, chosen
        if not chosen:
            return f"spare groups {before} -> 0: none buys more than {100 * WORTH:.0f} % throughput"
        return f"spare groups {before} -> {chosen}: {bought(chosen, without, with_them)}"

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` continues from, as plain data."""
        return {
            "count": self.count if self.adapts else 0,
            "ended": list(self._ended),
            "given_up": list(self._given_up),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; a number that is given stays what it is."""
        if not self.adapts:
            return
        self.count, self._updates = state["count"], state["updates"]
        self._ended, self._given_up = (deque(state[name], maxlen=DURATIONS) for name in ("ended", "given_up"))


def bought(spares: int, without: Replay, with_them: Replay) -> str:
    """Return '3 spares bought 18 % throughput (4.20 instead of 4.96 s per update) for 9 % more episodes'."""
    gain = 100 * (without.seconds / with_them.seconds - 1)
    more = 100 * (with_them.played / without.played - 1)
    noun = "spare" if spares == 1 else "spares"
    return (
        f"{spares} {noun} bought {gain:.0f} % throughput ({with_them.seconds:.3g} instead of {without.seconds:.3g} s "
        f"per update) for {more:.0f} % more episodes, in a replay of the times that the run's episodes took"
    )
