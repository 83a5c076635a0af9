"""When a GPU or a machine is fullest, and what lies there then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 2**30
FREE = 0.1
"""Share of a GPU and of a host that stays free, for fragments, communication buffers and what is not counted."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What lies on a GPU or a host at one moment, in bytes."""

    where: str
    """'GPU' or 'host'."""
    name: str
    parts: Mapping[str, float]
    limit: float | None
    """Bytes that may be used; None: unknown."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.limit is None or self.total <= self.limit

    @property
    def problem(self) -> str:
        """Return by how much it does not fit, in words."""
        return f"{self.name}: {gib(self.total)} GiB of a {self.where}, and {gib(self.limit or 0)} may be used"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" of {gib(self.limit)}"
        lines = [f"{self.where}, {self.name}: {gib(self.total)}{limit} GiB"]
        return "\n".join(lines + [f"  {gib(size):>8}  {name}" for name, size in self.parts.items() if size])


def gib(size: float) -> str:
    """Return bytes as GiB, in digits that tell small ones from nothing."""
    amount = size / GIB
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.1f}" if amount >= 1 else f"{amount:.3f}"
