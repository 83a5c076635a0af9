"""The rows to copy, and the rules that count what was sent."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, str]
"""Field -> value."""

LABELS = {"code": "Code", "first": "First name", "last": "Last name", "email": "E-mail"}
"""Field -> what the page calls it, in the order of the form."""

FIRST_NAMES = (
    "Ada", "Ben", "Cleo", "Dana", "Eli", "Fay", "Gus", "Hana", "Ivo", "Jana", "Kai", "Lea", "Max", "Nia", "Otto",
    "Pia", "Quinn", "Rosa", "Sam", "Tess", "Uma", "Vera", "Wim", "Yara", "Zoe", "Alba", "Bruno", "Clara", "David",
    "Elena", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Leon", "Marta", "Noah", "Olga",
)  # fmt: skip
LAST_NAMES = (
    "Abel", "Bauer", "Costa", "Duran", "Engel", "Faber", "Garcia", "Haas", "Ito", "Jansen", "Kraus", "Lopez", "Moreau",
    "Novak", "Olsen", "Perez", "Quist", "Rossi", "Silva", "Tanaka", "Urban", "Vidal", "Weber", "Young", "Zeman",
    "Brandt", "Carter", "Fischer", "Hansen", "Keller", "Larsen", "Marino", "Nguyen", "Petrov", "Santos",
)  # fmt: skip
DOMAINS = ("example.com", "example.org", "example.net")


def distinct_rows(fields: Sequence[str]) -> int:
    """Return how many rows of these fields there can be."""
    if tuple(fields) == ("code",):
        return 10**9
    kinds = {"code": 10, "first": len(FIRST_NAMES), "last": len(LAST_NAMES), "email": len(FIRST_NAMES) * 90}
    return math.prod(kinds[name] for name in fields)


def draw_rows(rng: random.Random, fields: Sequence[str], count: int) -> list[dict[str, str]]:
    """Return `count` rows, no two of them alike. A code is one digit, of more only where the digits are used up."""
    if tuple(fields) == ("code",):
        digits = len(str(max(0, count - 1)))
        return [{"code": f"{code:0{digits}d}"} for code in rng.sample(range(10**digits), count)]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    while len(rows) < count:
        first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
        email = f"{first.lower()}{rng.randrange(10, 100)}@{rng.choice(DOMAINS)}"
        row = {"code": str(rng.randrange(10)), "first": first, "last": last, "email": email}
        kept = {name: row[name] for name in fields}
        rows[tuple(kept.values())] = kept
    return list(rows.values())


@dataclass(slots=True)
class Progress:
    """What was sent, as user interface servers report it."""

    submitted_row_indices: list[int] = field(default_factory=list)
    """Index of the row, from 0, of every submission that equals one in all fields; twice where it was sent twice."""
    num_incorrect_submissions: int = 0

    @property
    def done(self) -> set[int]:
        """Rows that were sent at least once."""
        return set(self.submitted_row_indices)

    def add(self, sent: Row, rows: Sequence[Row]) -> None:
        """Count one submission: an exact match of all fields of any row, or a wrong one."""
        for index, row in enumerate(rows):
            if row == sent:
                self.submitted_row_indices.append(index)
                return
        self.num_incorrect_submissions += 1

    def as_json(self) -> dict[str, Any]:
        return {
            "submitted_row_indices": list(self.submitted_row_indices),
            "num_incorrect_submissions": self.num_incorrect_submissions,
        }
