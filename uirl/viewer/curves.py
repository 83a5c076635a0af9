"""The curves of a long run in few points: of each stretch of rows the lowest and the highest value of every metric."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uirl.viewer.files import is_file
from uirl.viewer.tail import Piece, is_number, read_from, sampled_rows

SHORT = 8 << 20
"""Bytes of a metrics file whose rows are shown as they are."""
STRETCHES = 1000
"""Stretches at least of a file that is longer, two rows each; twice as many at most."""
SAMPLE = 1000
"""Rows that stand for a long file until all of it was read."""
PATIENCE = 0.2
"""Seconds that a page waits for more than a sample."""
ROWS = 500
"""Rows that are read at once."""


@dataclass(slots=True)
class Stretch:
    """Neighbouring rows."""

    first: tuple[int, Any]
    """Step and time of the first row."""
    last: tuple[int, Any]
    rows: int = 1
    extremes: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    """Metric -> its lowest value, its highest, and whether the lowest came first."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Stretch:
        """Return the stretch of one row."""
        place = (row["step"], row.get("time"))
        values = {name: (value, value, True) for name, value in row.items() if name not in _PLACE and is_number(value)}
        return cls(place, place, 1, values)

    def add(self, other: Stretch) -> None:
        """Put the rows behind these to them."""
        self.last, self.rows = other.last, self.rows + other.rows
        mine = self.extremes
        for name, (low, high, order) in other.extremes.items():
            known = mine.get(name)
            if known is None:
                mine[name] = (low, high, order)
            elif low < known[0] or high > known[1]:
                lower, higher = low < known[0], high > known[1]
                rising = order if lower and higher else not lower
                mine[name] = (min(low, known[0]), max(high, known[1]), rising)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a row at each end, with the extremes in the order in which they came; of one row that row."""
        ends = [{"step": step, "time": time} for step, time in (self.first, self.last)[: min(self.rows, 2)]]
        for name, (low, high, rising) in self.extremes.items():
            for row, value in zip(ends, (low, high) if rising else (high, low), strict=False):
                row[name] = value
        return ends


class Curves:
    """What the rows of one metrics file come to, read piece by piece while it grows. Any thread may call its methods.

    Every value counts: no peak is lost, however long the run. A point stands within its stretch, at one of its ends.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0
        self._names: dict[str, None] = {}
        self._stretches: list[Stretch] = []
        self._each = 1
        self._newest: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self.begun = False
        """Whether somebody asked for it."""
        self.complete = False
        """Whether the whole file was read at the last look."""

    def catch_up(self, seconds: float = math.inf) -> bool:
        """Read rows that are new, for `seconds` at most; return whether some are left."""
        self.begun = True
        until = time.monotonic() + seconds
        with self._lock:
            while True:
                piece = read_from(self._path, self._place, ROWS)
                if piece.restart:
                    self._forget()
                    if not is_file(self._path):
                        return False
                    continue
                for row in piece.rows:
                    self._add(row)
                self._place = piece.next
                self.complete = len(piece.rows) < ROWS
                if self.complete or time.monotonic() > until:
                    return not self.complete

    def opening(self) -> tuple[Piece, bool]:
        """Return what a page draws first, and whether it is only a sample: `complete` says when there is more."""
        try:
            short = self._path.stat().st_size <= SHORT
        except OSError:
            short = True
        if short:
            return read_from(self._path), False
        if self.catch_up(PATIENCE):
            return sampled_rows(self._path, SAMPLE), True
        with self._lock:
            rows = [row for stretch in self._stretches for row in stretch.to_rows()]
            if self._newest is not None:
                rows[-1] = self._newest if self._stretches[-1].rows == 1 else rows[-1] | self._newest
            return Piece(rows, self._place), False

    def names(self, seconds: float = PATIENCE) -> Sequence[str]:
        """Return the names of the metrics in the order of their first appearance, as far as they are known in time."""
        found = {}
        if self.catch_up(seconds):
            found = {name: None for row in sampled_rows(self._path, SAMPLE).rows for name in row}
        with self._lock:
            return [name for name in {**self._names, **found} if name not in _PLACE]

    def _forget(self) -> None:
        self._place, self._each, self._newest = 0, 1, None
        self._names.clear()
        self._stretches.clear()
        self.complete = False

    def _add(self, row: dict[str, Any]) -> None:
        self._newest = row
        self._names.update(dict.fromkeys(row))
        if self._stretches and self._stretches[-1].rows < self._each:
            self._stretches[-1].add(Stretch.of(row))
            return
        self._stretches.append(Stretch.of(row))
        if len(self._stretches) > 2 * STRETCHES:
            self._each *= 2
            pairs = self._stretches
            for left, right in zip(pairs[::2], pairs[1::2], strict=False):
                left.add(right)
            self._stretches = pairs[::2]


_PLACE = ("step", "time")
