"""What an audit compared, what did not agree, and what it could not see."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uirl.errors import UirlError
from uirl.runtime.limits import shown

NEAR = 1e-6
"""Relative difference of numbers that were made of the same digits in another order."""


@dataclass(slots=True)
class AuditReport:
    """What an audit of a run found."""

    run: str
    compared: Counter[str] = field(default_factory=Counter)
    """Kind of what was made again -> how much of it."""
    problems: list[str] = field(default_factory=list)
    """Where what is stored is not what follows from the rest of the record."""
    unseen: dict[str, str] = field(default_factory=dict)
    """What could not be made again -> why."""

    def same(self, kind: str, where: str, stored: Any, again: Any, near: float = NEAR) -> None:
        """Compare what is stored with what was made again; note it where they differ by more than a relative `near`."""
        self.compared[kind] += 1
        if not _alike(stored, again, near):
            self.problems.append(f"{where}: stored {shown(stored, 80)}, made again {shown(again, 80)}")

    @contextlib.contextmanager
    def part(self, where: str) -> Iterator[None]:
        """Note what a part of a run raises while it is read: changed by hand, it may raise anything."""
        try:
            yield
        except (UirlError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            self.problems.append(f"{where} cannot be read: {type(error).__name__}: {error}")
        except (OSError, RuntimeError, AssertionError, sqlite3.Error) as error:
            self.problems.append(f"{where} cannot be read: {type(error).__name__}: {error}")

    def __str__(self) -> str:
        lines = [f"audit of {self.run}"]
        lines += [f"  made again  {count} {kind}" for kind, count in sorted(self.compared.items())]
        lines += [f"  not seen    {what}: {why}" for what, why in sorted(self.unseen.items())]
        lines += [f"  DIFFERS     {problem}" for problem in self.problems]
        return "\n".join([*lines, f"  {len(self.problems)} differences"])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"run": self.run, "compared": self.compared, "problems": self.problems, "unseen": self.unseen}


def _alike(one: Any, other: Any, near: float) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(value, other[name], near) for name, value in one.items())
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(_alike(a, b, near) for a, b in zip(one, other, strict=True))
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=near, abs_tol=near / 10) or (one != one and other != other)
    return bool(one == other)
