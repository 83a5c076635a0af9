"""How often a task is solved now, how sure that is, and the level that follows from both."""

from __future__ import annotations

from dataclasses import dataclass

from uirl.metrics.success_rate import success_interval

LEVELS = {"frontier": 0.25, "exploration": 0.5, "near_mastery": 0.75, "exploitation": 1.0}
"""Level -> the success rates up to which a task belongs to it, exclusive but for the last."""
NEW, PARKED = "new", "parked"
"""Where a task is that has no level: too seldom tried to say, or resting because it was only failed."""
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
    streak: int = 0
    """Newest episodes in a row that failed, in groups from which nothing could be learned."""
    rests: int = 0
    """How often it was parked since it was last solved."""
    until: int = 0
    """Step in which it is due again, while it is parked."""
    unanswered: int = 0
    """How often it was handed out since it was last heard of; draws between which nothing was heard of any task (those
    of one update) count once."""
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
