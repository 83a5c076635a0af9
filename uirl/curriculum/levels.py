"""How often a task is solved now, how sure that is, the level that follows from both, and the mix of the levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from uirl.metrics.success_rate import success_interval

LEVELS = {"frontier": 0.25, "exploration": 0.5, "near_mastery": 0.75, "exploitation": 1.0}
"""Level -> the success rates up to which a task belongs to it, exclusive but for the last."""
NEW = "new"
"""Where a task is that has no level: too seldom tried to say."""
_LEAST_WEIGHT = 1e-6
"""Below so many episodes nothing is known."""


@dataclass(slots=True)
class Evidence:
    """What is known of one task. Old episodes count less: the policy that played them is gone."""

    wins: float = 0.0
    """Successes, each times what it still counts."""
    weight: float = 0.0
    """Episodes, each times what it still counts."""
    step: int = 0
    """Of the newest episode."""
    attempts: int = 0
    """Episodes, all of them."""
    heard: int = -1
    """How much had been heard when it was last handed out."""

    @property
    def rate(self) -> float | None:
        """The success rate of the episodes that count; None: there are none."""
        return self.wins / self.weight if self.weight > _LEAST_WEIGHT else None

    def add(self, success: bool, step: int, *, window: int, half_life: float) -> None:
        """Count one episode of update `step`.

        The weights of all before it are multiplied by 1 - 1 / window, so that they sum to at most `window`, and by 0.5
        per `half_life` updates since the newest of them.
        """
        fade = (1 - 1 / window) * _faded(step - self.step, half_life)
        self.wins = self.wins * fade + success
        self.weight = self.weight * fade + 1.0
        self.step = max(self.step, step)
        self.attempts += 1

    def interval(self, step: int, *, half_life: float, z: float) -> tuple[float, float]:
        """Return (low, high): the Wilson interval of the success rate as seen from update `step`. It widens while the
        task is not played, to (0, 1)."""
        fade = _faded(step - self.step, half_life)
        if self.weight * fade <= _LEAST_WEIGHT:
            return 0.0, 1.0
        return success_interval(self.wins * fade, self.weight * fade, z)

    def level(self, step: int, *, half_life: float, z: float) -> str:
        """Return the level of the most instructive rate that the evidence leaves possible: the one in the interval that
        is nearest to 1/2, where the outcomes of a group differ most.

        So a task leaves the middle only for good reasons, and comes back to it when these have aged (optimism in the
        face of uncertainty, as of the bounds of bandits).
        """
        low, high = self.interval(step, half_life=half_life, z=z)
        if low <= 0.5 <= high:
            return "near_mastery" if (self.rate or 0.0) >= 0.5 else "exploration"
        return level_of(high if high < 0.5 else low)


def level_of(rate: float) -> str:
    """Return the level of a success rate that is known."""
    return next((level for level, bound in LEVELS.items() if rate < bound), "exploitation")


def _faded(steps: int, half_life: float) -> float:
    return 0.5 ** (max(0, steps) / half_life)


def progress_of(value: float, start: float, end: float) -> float:
    """Return how far `value` is on the way from `start` to `end`, within [0, 1]. Raises ValueError for no way."""
    if not end > start:
        raise ValueError(f"expected end above start, got {start} to {end}")
    return min(1.0, max(0.0, (value - start) / (end - start)))


def mixed(initial: Mapping[str, float], final: Mapping[str, float], progress: float) -> dict[str, float]:
    """Return level -> share: `initial` at a progress of 0, `final` at 1, between them a weighted mean. Both are made to
    sum to 1 first; a level that is left out has 0."""
    ends = [{level: mix.get(level, 0.0) / sum(mix.values()) for level in LEVELS} for mix in (initial, final)]
    return {level: (1 - progress) * ends[0][level] + progress * ends[1][level] for level in LEVELS}


def shares(mix: Mapping[str, float], tasks: Mapping[str, int], oversampling: float) -> dict[str, float]:
    """Return level -> share of the draws, summing to 1, for the levels that have tasks.

    No level gets more than `oversampling` times its share of the tasks, so that a level of one task is not played over
    and over. What is over, and the share of an empty level, goes to the nearest level with room; of two equally near
    ones to the one nearer to a success of 1/2, since there is more to learn. Where only levels without a share have
    tasks, these are drawn as often as they have tasks. Empty where there are no tasks.
    """
    total = sum(tasks.values())
    sizes = {level: count / total for level, count in tasks.items() if count}
    if not any(mix.get(level, 0.0) > 0 for level in sizes):
        return sizes
    room = {level: oversampling * sizes[level] for level in sizes if mix.get(level, 0.0) > 0}
    given, whole = dict.fromkeys(room, 0.0), sum(mix.values())
    left = {level: share / whole for level, share in mix.items() if share > 0}
    for wave in range(len(LEVELS)):  # each level keeps what it has room for before others hand theirs on
        for level in left:
            for other in _by_nearness(level)[: wave + 1]:
                part = min(left[level], room.get(other, 0.0))
                if part > 0:
                    given[other], room[other], left[level] = given[other] + part, room[other] - part, left[level] - part
    taken = sum(given.values())  # below 1 where every level is at its cap: the caps decide
    return {level: share / taken for level, share in given.items()}


def _by_nearness(level: str) -> list[str]:
    """Return all levels, the nearest to `level` first."""
    order = list(LEVELS)
    middle, at = (len(order) - 1) / 2, order.index(level)
    return sorted(order, key=lambda other: (abs(order.index(other) - at), abs(order.index(other) - middle)))
