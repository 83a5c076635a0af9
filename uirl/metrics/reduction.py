"""Named numbers of one step, each reduced to one number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Reduction = Literal["mean", "sum", "max", "min", "last", "rate"]

REDUCTION_OF_PREFIX: dict[str, Reduction] = {"time/": "sum", "count/": "sum"}
REDUCTION_OF_SUFFIX: dict[str, Reduction] = {
    "max": "max",
    "min": "min",
    "sum": "sum",
    "total": "sum",
    "count": "sum",
    "last": "last",
    "learning_rate": "last",
    "version": "last",
    "per_second": "rate",
}
"""How a metric is reduced, by the beginning of its name or by its last word (after '/' or '_'); else 'mean'."""

NONFINITE = "metrics/nonfinite"
"""How many values of a row were NaN or infinite. The row has it only where there were some."""


def reduction_of(name: str) -> Reduction:
    """Return how values of this name become one number. A suffix beats a prefix, 'mean' is the rest."""
    for suffix, reduction in REDUCTION_OF_SUFFIX.items():
        if name == suffix or name.endswith(("/" + suffix, "_" + suffix)):
            return reduction
    for prefix, reduction in REDUCTION_OF_PREFIX.items():
        if name.startswith(prefix):
            return reduction
    return "mean"


class Metrics:
    """Collect named numbers of one step and reduce each name to one.

    - mean: sum(weight * value) / sum(weight)
    - rate: sum(value) / sum(weight), as tokens per second with weight = seconds
    - sum, max, min, last of the values; the weight is not read

    Sums are exactly rounded, so the order in which values arrive (episodes end in any order) changes no digit, except
    for 'last'. A value of None is no evidence: a name that has only such, or weights of zero, reduces to None, which is
    not 0. A NaN or an infinity makes its name None and is counted in `metrics/nonfinite`.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, float]]] = {}
        self._reductions: dict[str, Reduction] = {}

    def add(self, name: str, value: Any, weight: float = 1.0, reduction: Reduction | None = None) -> None:
        """Add one value (anything `float` accepts, or None).

        Raises TypeError for another value, ValueError for a negative weight and for a name whose reduction changes.
        """
        chosen = reduction or self._reductions.get(name) or reduction_of(name)
        if self._reductions.setdefault(name, chosen) != chosen:
            raise ValueError(f"metric {name!r} is already reduced by {self._reductions[name]!r}, got {chosen!r}")
        if not weight >= 0:
            raise ValueError(f"metric {name!r}: the weight must be 0 or more, got {weight}")
        pairs = self._values.setdefault(name, [])
        if value is not None:
            pairs.append((as_number(name, value), float(weight)))

    def add_all(self, values: Mapping[str, Any], weight: float = 1.0, prefix: str = "") -> None:
        """Add every entry of a mapping, with `prefix` before its name."""
        for name, value in values.items():
            self.add(prefix + name, value, weight)

    def collected(self) -> dict[str, tuple[Reduction, list[tuple[float, float]]]]:
        """Return what was added, as plain data: name -> (its reduction, pairs of value and weight)."""
        return {name: (self._reductions[name], pairs) for name, pairs in self._values.items()}

    def merge(self, data: Mapping[str, tuple[Reduction, list[tuple[float, float]]]]) -> None:
        """Add what other metrics have `collected`."""
        for name, (reduction, pairs) in data.items():
            self.add(name, None, reduction=reduction)
            self._values[name].extend(pairs)

    def reduce(self) -> dict[str, float | None]:
        """Return one number per name, in the order of first appearance."""
        row: dict[str, float | None] = {}
        nonfinite = 0
        for name, pairs in self._values.items():
            bad = sum(not math.isfinite(value) or not math.isfinite(weight) for value, weight in pairs)
            reduced = None if bad else _reduced(self._reductions[name], pairs)
            if reduced is not None and not math.isfinite(reduced):
                reduced, bad = None, 1
            row[name] = reduced
            nonfinite += bad
        if nonfinite:
            row[NONFINITE] = float(nonfinite)
        return row

    def __len__(self) -> int:
        return len(self._values)


def _reduced(reduction: Reduction, pairs: list[tuple[float, float]]) -> float | None:
    if not pairs:
        return None
    values = [value for value, _ in pairs]
    if reduction == "sum":
        return _sum(values)
    if reduction == "max":
        return max(values)
    if reduction == "min":
        return min(values)
    if reduction == "last":
        return values[-1]
    weight = _sum(weight for _, weight in pairs)
    total = _sum(values) if reduction == "rate" else _sum(value * weight for value, weight in pairs)
    return total / weight if weight else None


def _sum(values: Iterable[float]) -> float:
    """Sum with exact rounding; NaN where the sum is larger than a float."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.nan


def as_number(name: str, value: Any) -> float:
    """Convert the value of the metric `name` to a float. Raises TypeError for what is no number."""
    if isinstance(value, str | bytes):
        raise TypeError(f"metric {name!r} must be a number, got the text {value!r:.40}")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r} must be a number or None, got {type(value).__name__}: {error}") from error


def plain_row(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers as they are written: what is not finite is None, and counted in `metrics/nonfinite`."""
    row: dict[str, float | None] = {}
    nonfinite = 0
    for name, value in metrics.items():
        if name in ("step", "time"):
            raise ValueError(f"a metric may not be called {name!r}: the row has that column already")
        number = None if value is None else as_number(name, value)
        if number is not None and not math.isfinite(number):
            number, nonfinite = None, nonfinite + 1
        row[name] = number
    if nonfinite:
        row[NONFINITE] = nonfinite + (row.get(NONFINITE) or 0.0)
    return row
