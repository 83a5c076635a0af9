"""When which kind of process is killed: a pure function of the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

from uirl.errors import ConfigError

T = TypeVar("T")

GAPS = {"actor": 10.0, "server": 15.0, "engine": 25.0, "learner": 50.0, "node": 60.0}
"""Role -> seconds between two kills of it, on average."""
_EARLY, _LATE = 0.3, 0.9
"""A kill comes in this part of its stretch, so that every role is hit and no two kills of it come at once."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that will be killed, with SIGKILL."""

    at: float
    """Seconds after the run has begun."""
    role: str
    draw: float
    """0 to 1: which of those of the role there are by then."""

    def choose(self, candidates: list[T]) -> T | None:
        """Return the one that it hits; None: there is none."""
        return candidates[int(self.draw * len(candidates))] if candidates else None


def kills_of(seconds: float, seed: int) -> list[Kill]:
    """Return the kills of the first `seconds`, in their order: at least one of every role.

    The kills of a role do not depend on which other roles a run has. Raises ConfigError for a time that is none.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"chaos: got {seconds!r} seconds, expected a positive number")
    kills = []
    for role, usual in GAPS.items():
        draw, gap = random.Random(f"{seed}/{role}"), min(usual, seconds)
        for i in range(int(seconds / gap)):
            at = gap * (i + draw.uniform(_EARLY, _LATE))
            kills.append(Kill(at, role, draw.random()))
    return sorted(kills, key=lambda kill: (kill.at, kill.role))
