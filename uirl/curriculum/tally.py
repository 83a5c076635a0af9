"""What a curriculum counts between two rows of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(slots=True)
class Tally:
    """Counts since the last row, by the place that the task had then."""

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
        total = sum(self.draws.values())
        row: dict[str, float | None] = {}
        for place in sorted(self.draws | self.episodes):
            row[f"curriculum/{place}/drawn"] = self.draws[place] / total if total else None
            row[f"curriculum/{place}/success"] = _share(self.wins[place], self.episodes[place])
            row[f"curriculum/{place}/live_groups"] = _share(self.live[place], self.groups[place])
        row["count/tasks_parked"] = self.parked["failed"]
        row["count/tasks_silent"] = self.parked["silent"]
        row["count/tasks_woken"] = self.woken
        row["count/levels_substituted"] = self.substituted
        return row


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
