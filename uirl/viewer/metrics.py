"""The metrics of a run: the rows of its file while it grows, a long run in few points, and which charts there are."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from uirl.metrics import PHASES
from uirl.storage.labels import inert
from uirl.viewer.files import is_file, opened

ROWS = 2000
"""Rows of one answer."""
CHUNK = 1 << 20
END = 1 << 16
"""Bytes at the end of the file in which the newest values are looked for."""
MOST_BACK, MOST_TRIES = 1 << 26, 100
"""Bytes and rows in which the newest row with one metric is looked for."""
SHORT = 8 << 20
"""Bytes of a file whose rows are shown as they are."""
STRETCHES = 1000
"""Stretches at least of a file that is longer, two rows each; twice as many at most."""
SAMPLE = 1000
"""Rows that stand for a long file until all of it was read."""
PATIENCE = 0.2
"""Seconds that a page waits for more than a sample."""
READ_AT_ONCE = 500
"""Rows of a long file that are read at once."""
_OFFSET_BITS = 40
"""A place is the offset in the file and, above it, a mark of the file: a resumed run replaces its metrics file by a
shorter one, and a place in the old file means nothing in the new one. Both fit into the whole numbers of JavaScript."""
_MARK = 0xFFF
_PLACE = ("step", "time")


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows from a place on."""

    rows: list[dict[str, Any]]
    next: int
    """Place behind them."""
    restart: bool = False
    """The place that was given is of a file that is gone, or there is more than the sample that was: read from 0."""
    sample: bool = False
    """The rows are but a sample."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the page is answered."""
        more = {name: True for name in ("restart", "sample") if getattr(self, name)}
        return {"rows": self.rows, "next": self.next, **more}


# -- the file --------------------------------------------------------------------------------------------------------


def read_from(path: Path, since: int = 0, limit: int = ROWS) -> Piece:
    """Return the whole rows from the place `since` on, at most `limit`. A file that is not there has none; lines that
    are no rows are left out. Raises StorageError where it cannot be read."""
    try:
        with opened(path) as file:
            status = os.fstat(file.fileno())
            mark, offset = status.st_ino & _MARK, since & ((1 << _OFFSET_BITS) - 1)
            if since and (since >> _OFFSET_BITS != mark or not _begins_line(file, offset, status.st_size)):
                return Piece([], 0, restart=True)
            rows: list[dict[str, Any]] = []
            end = offset
            file.seek(offset)
            # up to a line that is not finished, or longer than any that a run writes
            while len(rows) < limit and (line := file.readline(CHUNK)).endswith(b"\n"):
                end += len(line)
                row = _row(line)
                if row is not None:
                    rows.append(row)
            return Piece(rows, _place(mark, end) if end else 0)
    except FileNotFoundError:
        return Piece([], 0, restart=since > 0)


def sampled_rows(path: Path, count: int) -> Piece:
    """Return about `count` rows at equal distances in the file, the first and the newest among them, without reading
    what lies between. Raises StorageError where it cannot be read."""
    try:
        with opened(path) as file:
            status = os.fstat(file.fileno())
            places: dict[int, dict[str, Any]] = {}
            for part in range(count):
                file.seek(max(0, part * status.st_size // count - 1))
                if part:
                    file.readline(CHUNK)  # the rest of the line before
                place, line = file.tell(), file.readline(CHUNK)
                row = _row(line) if line.endswith(b"\n") else None
                if row is not None:
                    places[place] = row
            last = max(places, default=0)
            rest = read_from(path, _place(status.st_ino, last), limit=1 << 30) if last else Piece([], 0)
            if rest.rows:
                places[status.st_size] = rest.rows[-1]
            rows = [places[place] for place in sorted(places)]
            return Piece(rows, rest.next or read_from(path, 0).next, sample=True)
    except FileNotFoundError:
        return Piece([], 0)


class Ends(NamedTuple):
    """What the list of runs says of the metrics of one."""

    first: Mapping[str, Any] | None = None
    """The first row; None: there is none."""
    newest: Sequence[Mapping[str, Any]] = ()
    """The rows in the last `END` bytes, the oldest first."""
    evaluated: Mapping[str, Any] | None = None
    """The newest row with a success in evaluations."""


def ends_of(path: Path) -> Ends:
    """Return both ends of a file. Raises StorageError where it cannot be read."""
    try:
        with opened(path) as file:
            first = _row(file.readline(CHUNK))
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - END))
            lines = file.read().split(b"\n")
            rows = [_row(line) for line in (lines[1:] if start else lines)]
            return Ends(first, [row for row in rows if row is not None], _newest_with(file, "eval/success", size))
    except FileNotFoundError:
        return Ends()


def _newest_with(file: Any, name: str, size: int) -> dict[str, Any] | None:
    """Return the newest whole row in which a metric has a value, looked for from the end back."""
    pattern, end, rest, tries = json.dumps(name).encode(), size, b"", 0
    while end > max(0, size - MOST_BACK):
        start = file.seek(max(0, end - CHUNK))
        data = file.read(end - start) + rest
        begin = data.find(b"\n") + 1 if start else 0  # where the first line that is wholly in it begins
        at = len(data)
        while (at := data.rfind(pattern, begin, at)) >= 0 and tries < MOST_TRIES:
            tries += 1
            line_end = data.find(b"\n", at)
            row = _row(data[data.rfind(b"\n", 0, at) + 1 : line_end]) if line_end >= 0 else None
            if row is not None and is_number(row.get(name)):
                return row
        end, rest = start, data[: begin or len(data)][-CHUNK:]
    return None


def _place(inode: int, offset: int) -> int:
    return offset | (inode & _MARK) << _OFFSET_BITS


def _begins_line(file: Any, offset: int, size: int) -> bool:
    if not 0 < offset <= size:
        return False
    file.seek(offset - 1)
    return bool(file.read(1) == b"\n")


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None: it is none. A value is a number that others can compute with, a text, or None:
    not a finite number, which a file may say in three ways. Values of other kinds are left out."""
    try:
        row = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("step")) is not int or not is_number(row["step"]):
        return None
    kept = ((name, value) for name, value in row.items() if not isinstance(value, (dict, list)))
    return {name: value if isinstance(value, (str, bool)) or is_number(value) else None for name, value in kept}


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number that fits into 64 bits of float."""
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and value.bit_length() <= 1023


# -- a long run in few points ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stretch:
    """Neighbouring rows."""

    first: tuple[int, Any]
    """Step and time of the first row."""
    last: tuple[int, Any]
    rows: int = 1
    extremes: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    """Metric -> its lowest value, its highest, and whether the lowest came first."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Stretch:
        place = (row["step"], row.get("time"))
        values = {name: (value, value, True) for name, value in row.items() if name not in _PLACE and is_number(value)}
        return cls(place, place, 1, values)

    def add(self, other: _Stretch) -> None:
        """Put the rows behind these to them."""
        self.last, self.rows = other.last, self.rows + other.rows
        for name, (low, high, order) in other.extremes.items():
            known = self.extremes.get(name)
            if known is None:
                self.extremes[name] = (low, high, order)
            elif low < known[0] or high > known[1]:
                lower, higher = low < known[0], high > known[1]
                rising = order if lower and higher else not lower
                self.extremes[name] = (min(low, known[0]), max(high, known[1]), rising)

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
        self._path, self._lock = path, threading.Lock()
        self.begun = False
        """Whether somebody asked for it."""
        self._forget()

    def _forget(self) -> None:
        self._place, self._each = 0, 1
        self._names: dict[str, None] = {}
        self._stretches: list[_Stretch] = []
        self._newest: dict[str, Any] | None = None
        self._complete = False
        """Whether the whole file was read at the last look."""

    def catch_up(self, seconds: float = math.inf) -> bool:
        """Read rows that are new, for `seconds` at most; return whether some are left."""
        self.begun = True
        until = time.monotonic() + seconds
        with self._lock:
            while True:
                piece = read_from(self._path, self._place, READ_AT_ONCE)
                if piece.restart:
                    self._forget()
                    if not is_file(self._path):
                        return False
                    continue
                for row in piece.rows:
                    self._add(row)
                self._place = piece.next
                self._complete = len(piece.rows) < READ_AT_ONCE
                if self._complete or time.monotonic() > until:
                    return not self._complete

    def read(self, since: int, has_sample: bool = False) -> Piece:
        """Return the rows from a place on; from 0 on those of a long run in few points, or a sample of them until all
        was read. One who has but a sample (`has_sample`) is told to begin again once there is more."""
        if since:
            return Piece([], 0, restart=True) if has_sample and self._complete else read_from(self._path, since)
        try:
            short = self._path.stat().st_size <= SHORT
        except OSError:
            short = True
        if short:
            return read_from(self._path)
        if self.catch_up(PATIENCE):
            return sampled_rows(self._path, SAMPLE)
        with self._lock:
            rows = [row for stretch in self._stretches for row in stretch.to_rows()]
            if self._newest is not None:
                rows[-1] = self._newest if self._stretches[-1].rows == 1 else rows[-1] | self._newest
            return Piece(rows, self._place)

    def names(self, seconds: float = PATIENCE) -> Sequence[str]:
        """Return the names of the metrics in the order of their first appearance, as far as they are known in time."""
        found = {}
        if self.catch_up(seconds):
            found = {name: None for row in sampled_rows(self._path, SAMPLE).rows for name in row}
        with self._lock:
            return [name for name in {**self._names, **found} if name not in _PLACE]

    def csv(self) -> Iterator[bytes]:
        """Return all rows as CSV, piece by piece, a column for each name that the run has: an environment writes names
        too, and no spreadsheet shall compute them."""
        columns = [*_PLACE, *self.names(math.inf)]

        def pieces() -> Iterator[bytes]:
            head, place = io.StringIO(), 0
            csv.writer(head).writerow([inert(name) for name in columns])
            yield head.getvalue().encode("utf-8", "replace")
            while (piece := read_from(self._path, place)).rows:
                out = io.StringIO()
                csv.DictWriter(out, columns, restval="", extrasaction="ignore").writerows(piece.rows)
                yield out.getvalue().encode("utf-8", "replace")
                place = piece.next

        return pieces()

    def _add(self, row: dict[str, Any]) -> None:
        self._newest = row
        self._names.update(dict.fromkeys(row))
        if self._stretches and self._stretches[-1].rows < self._each:
            self._stretches[-1].add(_Stretch.of(row))
            return
        self._stretches.append(_Stretch.of(row))
        if len(self._stretches) > 2 * STRETCHES:
            self._each *= 2
            pairs = self._stretches
            for left, right in zip(pairs[::2], pairs[1::2], strict=False):
                left.add(right)
            self._stretches = pairs[::2]


# -- which charts there are ------------------------------------------------------------------------------------------


class _Chart(NamedTuple):
    title: str
    unit: str
    names: str
    """Regular expression of the whole name."""
    band: tuple[str, str] | None = None
    kind: str = "line"
    along: str | None = None
    """The metric that counts its steps; None: those of the run."""


_CHARTS = (
    _Chart("Success", "share", r"success|eval/success", ("success_low", "success_high")),
    _Chart("Reward", "", r"reward|reward_max|reward_min|eval/reward"),
    _Chart("Losses", "", r"(?:policy|value|entropy|kl|total)_loss|loss(?:/.*)?"),
    _Chart("Numbers that are none (NaN, infinite)", "in a row", r"metrics/nonfinite"),
    _Chart("KL", "nats", r"approx_kl|kl(?:/.*|_(?!loss_coef).*)?|reference_kl|mismatch_kl"),
    _Chart("Entropy", "nats", r"(?:bonus_|target_)?entropy(?:/.*)?"),
    _Chart("Clipped share", "share", r"clip_fraction(?:_.*)?"),
    _Chart("Ratio", "", r"ratio_(?:mean|max|min)|mismatch_weight_.*"),
    _Chart("Log-prob gap, learner to engine", "nats", r"log_prob_gap_.*"),
    _Chart("Staleness", "versions", r"staleness|actors/staleness|staleness_.*|stale/.*"),
    _Chart("Ledger", "episodes", r"ledger/(?:trained|dropped|failed|in_flight)", kind="stack"),
    _Chart("Ledger, why not trained", "episodes", r"ledger/(?:dropped|failed)/.*"),
    _Chart("Time of an update", "s", r"time/(?:collect|update|publish|record|save|evaluate)", kind="stack"),
    _Chart("Time inside of it", "s", r"time/(?!elapsed).*"),
    _Chart("Share of what the machine gave at the start", "share", r"limit/.*"),
    _Chart("Tokens per second", "tokens/s", r".*tokens_per_second"),
    _Chart("Screenshots per second of an environment", "1/s", r"screenshots_per_second"),
    _Chart("Failures", "episodes", r"failures?/.*|count/failed_.*|count/failures?/.*|eval/failed.*"),
    _Chart("Stop reasons", "share", r"stop/.*", kind="stack"),
    _Chart("Curriculum levels", "tasks", r"curriculum/[^/]+/tasks", kind="stack"),
    _Chart("Curriculum, success by level", "share", r"curriculum/[^/]+/success|curriculum/mean_success"),
    _Chart("Judge", "share", r"judge/(?:precision|false_accept_rate|kappa|agreement)",
           ("judge/precision_low", "judge/precision_high")),
    _Chart("Episodes", "", r"turns|response_tokens|eval/turns|parse_error_rate"),
    *(
        _Chart(f"{phase.replace('_', ' ').capitalize()}, {name}", f"by step of the {phase.replace('_', ' ')}",
               f"{phase}/{name}", along=f"{phase}/step")
        for phase in PHASES for name in ("loss", "success")
    ),
    _Chart("Learning", "", r"learning_rate|grad_norm|kl_loss_coef"),
)  # fmt: skip


def charts_of(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the charts of these metrics, {"title", "unit", "kind", "series", "band", "along"}, the important ones
    first; what belongs to none stands under the title "more", one series each."""
    axes = {f"{phase}/step" for phase in PHASES}
    left = dict.fromkeys(name for name in names if name not in axes)
    charts = []
    for chart in (*_CHARTS, _Chart("more", "", ".*")):
        series = [name for name in left if re.fullmatch(chart.names, name, re.DOTALL)]
        if not series:
            continue
        band = list(chart.band) if chart.band and all(name in left for name in chart.band) else None
        for name in [*series, *(band or [])]:
            left.pop(name, None)
        charts.append(
            {"title": chart.title, "unit": chart.unit, "kind": chart.kind, "series": series, "band": band}
            | {"along": chart.along}
        )
    return charts
