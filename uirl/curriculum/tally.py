"""What a curriculum counts, between two rows of metrics and over a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class Tally:
    """Counts, by the place that the task had then."""

    draws: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    wins: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    """Groups that were compared."""
    live: Counter[str] = field(default_factory=Counter)
    """Of these, those with something to learn."""
    parked: Counter[str] = field(default_factory=Counter)
    """Tasks that were parked, by why: 'failed', or 'silent' (handed out, and never heard of)."""
    woken: int = 0
    substituted: int = 0
    """Draws of a named level that was empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data of its own."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tally:
        """Return the counts in the data of `to_dict`. Raises KeyError where one is missing."""
        found: dict[str, Any] = {field.name: values[field.name] for field in fields(cls)}
        made: dict[str, Any] = {name: Counter(v) if isinstance(v, dict) else v for name, v in found.items()}
        return cls(**made)

    def __add__(self, other: Tally) -> Tally:
        """Return the sum of both, of its own."""
        return Tally(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def draw(self, place: str) -> None:
        self.draws[place] += 1

    def park(self, why: str) -> None:
        self.parked[why] += 1

    def outcome(self, place: str, outcomes: Sequence[bool], signal: bool | None) -> None:
        """Count one group of a task at `place`; `signal` None: it was not compared."""
        self.episodes[place] += len(outcomes)
        self.wins[place] += sum(bool(outcome) for outcome in outcomes)
        if signal is not None:
            self.groups[place] += 1
            self.live[place] += bool(signal)

    def row(self) -> dict[str, float | None]:
        """Return the numbers; None where there is no evidence."""
        places = sorted(self.draws | self.episodes)
        levels = {f"curriculum/{place}/{name}": value for place in places for name, value in self.of(place).items()}
        return levels | {f"count/{name}": value for name, value in self.events().items()}

    def of(self, place: str) -> dict[str, float | None]:
        """Return the share of the draws, the success and the share of groups with something to learn at a place; None
        where there is no evidence."""
        return {
            "drawn": _share(self.draws[place], self.draws.total()),
            "success": _share(self.wins[place], self.episodes[place]),
            "live_groups": _share(self.live[place], self.groups[place]),
        }

    def events(self) -> dict[str, int]:
        """Return how often tasks were parked, fell silent and were woken, and levels replaced by another."""
        return {
            "tasks_parked": self.parked["failed"],
            "tasks_silent": self.parked["silent"],
            "tasks_woken": self.woken,
            "levels_substituted": self.substituted,
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
