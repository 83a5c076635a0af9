"""How far actors may run ahead of the learner: a bound that is given, or one that is found and kept."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    _seen: list[tuple[float, float, float]] = field(default_factory=list)
    """(gap, effective sample size, largest age) of the updates since."""
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
        self._seen.append((gap, update.get("stale/ess") or 0.0, update.get("stale/age_max") or 0.0))
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
        if self.limits is None:
            return {}
        return {
            "bound": self.bound,
            "held": self._held,
            "doubles": self._doubles,
            "patience": self._patience,
            "wait": self._wait,
            "settling": self._settling,
            "rose": self._rose,
            "seen": [list(one) for one in self._seen],
            "said": self._said,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; a bound that is fixed stays what it is, and one that was fixed before says nothing."""
        if self.limits is None or not state.get("bound"):
            return
        self.bound, self._held, self._doubles = state["bound"], state["held"], state["doubles"]
        self._patience, self._wait, self._settling = state["patience"], state["wait"], state["settling"]
        self._seen = [(gap, ess, age) for gap, ess, age in state["seen"]]
        self._rose, self._said = state["rose"], state["said"]
