"""What a person sees of a run that goes on, in a terminal: how far it is, the newest updates, curves, what is done."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

ROWS = 8
"""Updates in the table."""
KEPT = 4096
"""Values of a curve that are kept: more than any terminal has columns."""
PACE = 20
"""The newest so many steps say how long the next one takes."""
_CURVES = {"success": "success", "reward": "reward", "eval": "eval/success"}
_COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("step", "step", ".0f", 0),
    ("success", "success", ".3f", 1),
    ("eval", "eval/success", ".3f", 3),
    ("reward", "reward", ".3f", 2),
    ("turns", "turns", ".1f", 6),
    ("entropy", "entropy", ".2g", 7),
    ("kl", "approx_kl", ".2g", 8),
    ("clip", "clip_fraction", ".2g", 9),
    ("gap", "log_prob_gap_max", ".1g", 11),
    ("FAILED", "count/failed_episodes", ".0f", 4),
    ("tok/s", "tokens_per_second", ".0f", 10),
    ("s", "seconds", ".1f", 5),
)
"""Heading, metric, format, and rank: the columns of the lowest ranks stay where a terminal is narrow."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-=+*%@"


@dataclass(slots=True)
class Progress:
    """How far a stretch of work is: updates, steps of a warm start, rounds."""

    what: str
    done: int
    total: int
    limit: float | None = None
    """Seconds after which it ends in any case; None: never."""
    spent: float = 0.0
    """Seconds of that limit that have gone by."""
    _moments: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=PACE + 1))

    def advance(self, done: int, now: float) -> None:
        """Note that so many of its steps are done at `now`, in seconds of `time.monotonic`."""
        self.done = done
        self._moments.append((now, done))

    def remaining(self, now: float) -> float | None:
        """Return the seconds until it ends, if the steps go on as fast as the newest ones; None: not known yet, or it
        has ended."""
        (begun, first), (newest, last) = self._moments[0], self._moments[-1]
        left = None
        if self.done >= self.total:
            return None
        if last > first:
            left = max(0.0, (self.total - last) * (newest - begun) / (last - first) - (now - newest))
        if self.limit is None:
            return left
        until_limit = max(0.0, self.limit - self.spent - (now - newest))
        return until_limit if left is None else min(left, until_limit)


@dataclass(slots=True)
class Board:
    """The numbers that are shown. Threads may add to it while another draws."""

    title: str = ""
    progress: Progress | None = None
    rows: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=ROWS))
    curves: dict[str, deque[float]] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    over: bool = False
    """Nothing goes on any more: what stands there stays."""

    def advance(
        self, what: str, done: int, total: int, *, limit: float | None = None, spent: float = 0.0
    ) -> float | None:
        """Note how far a stretch of work is, and return the seconds that are left of it (see `Progress.remaining`).
        Another `what` begins another stretch."""
        if self.progress is None or self.progress.what != what:
            self.progress = Progress(what, done, total)
        self.progress.total, self.progress.limit, self.progress.spent = total, limit, spent
        now = time.monotonic()
        self.progress.advance(done, now)
        return self.progress.remaining(now)

    def add(self, step: int, row: Mapping[str, Any], *, line: bool = True) -> None:
        """Note the numbers of an update. `line`: it gets a row of the table."""
        numbers = {name: float(value) for name, value in row.items() if _is_number(value)}
        numbers |= {"step": float(step), "seconds": sum(numbers.get(f"time/{n}", 0.0) for n in ("collect", "update"))}
        for name, metric in _CURVES.items():
            if metric in numbers:
                self.curves.setdefault(name, deque(maxlen=KEPT)).append(numbers[metric])
        if line:
            self.rows.append(numbers)

    def lines(self, activity: str | None, width: int, height: int, *, plain: bool = False) -> list[Text]:
        """Return what is drawn now: at most `height` lines of at most `width` columns. `activity`: what goes on;
        `plain`: of ASCII alone."""
        now = time.monotonic()
        head = [Text(_one_line(self.title), style="bold")] if self.title else []
        head += [] if self.progress is None else list(_bar(self.progress, self.begun, now, width, plain))
        foot = list(_sparklines(self.curves, width, plain))
        if activity is not None and not self.over:
            foot.append(_spinning(_one_line(activity), now, plain))
        room = max(0, height - len(head) - len(foot) - 2)
        table = _table(list(self.rows)[-room:] if room else [], width)
        lines = [*head, *table, *foot][:height]
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="crop" if plain else "ellipsis")
        return lines


def sparkline(
    values: Sequence[float], width: int, *, low: float | None = None, high: float | None = None, plain: bool = False
) -> str:
    """Return the values as `width` characters of eight heights, the mean of those that share one; fewer where there are
    fewer. `low`, `high`: the bounds; None: those of the values."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    cut = [len(values) * i // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(cut)]
    bottom = min(means) if low is None else low
    top = max(means) if high is None else high
    marks = _ASCII if plain else _BLOCKS
    scale = (len(marks) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(marks[min(len(marks) - 1, max(0, round((value - bottom) * scale)))] for value in means)


def clock(seconds: float) -> str:
    """Return '4:07', '1:04:07', or '2 d 3:04' where it is days."""
    whole = int(seconds)
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86400
    if days:
        return f"{days} d {hours}:{minutes:02}"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def _bar(progress: Progress, begun: float, now: float, width: int, plain: bool) -> Iterator[Text]:
    share = min(1.0, progress.done / progress.total) if progress.total else 1.0
    left = progress.remaining(now)
    words = f"  {progress.what} {progress.done}/{progress.total}  {clock(now - begun)}"
    words += "" if left is None else f"  ETA {clock(left)}"
    room = width - len(words)
    if room < 8:
        yield Text(words.strip())
        return
    full = int(share * room)
    done, rest = ("#", "-") if plain else ("━", "━")
    yield Text.assemble((done * full, "green"), ((rest if plain else "─") * (room - full), "dim"), words)


def _table(rows: Sequence[Mapping[str, float]], width: int) -> list[Text]:
    if not rows:
        return []
    there = [c for c in _COLUMNS if any(c[1] in row for row in rows) and (c[0] != "FAILED" or _any(rows, c[1]))]
    cells = {c[0]: [c[0], *(format(row[c[1]], c[2]) if c[1] in row else "-" for row in rows)] for c in there}
    widths = {name: max(map(len, column)) for name, column in cells.items()}
    shown: set[str] = set()
    for name, _, _, _ in sorted(there, key=lambda column: column[3]):
        if sum(widths[other] + 2 for other in (*shown, name)) <= width:
            shown.add(name)
    names = [c[0] for c in there if c[0] in shown]
    lines = ["".join(f"{cells[name][i]:>{widths[name] + 2}}" for name in names) for i in range(len(rows) + 1)]
    return [Text(line, style="bold" if i == 0 else "") for i, line in enumerate(lines)]


def _sparklines(curves: Mapping[str, Sequence[float]], width: int, plain: bool) -> Iterator[Text]:
    """Yield the curves of success and, where nobody says what success is, of the reward."""
    names = [name for name in ("success", "eval") if curves.get(name)] or ["reward"]
    for name in names:
        values = list(curves.get(name, ()))
        if len(values) < 2:
            continue
        bounds = (None, None) if name == "reward" else (0.0, 1.0)
        room = width - 20
        if room >= 4:
            drawn = sparkline(values, room, low=bounds[0], high=bounds[1], plain=plain)
            yield Text.assemble(f"{name:>9}  ", (drawn, "cyan"), f"  {values[-1]:.3f}")


def _spinning(activity: str, now: float, plain: bool) -> Text:
    mark = "|/-\\"[int(now * 4) % 4] if plain else _SPINNER[int(now * 8) % len(_SPINNER)]
    return Text.assemble((mark, "green"), " ", activity)


def _one_line(text: str) -> str:
    """Return a text without line ends and tabs, which would make the board higher and wider than it is."""
    return re.sub(r"\s*[\n\t\v\f\r]\s*", " ", text.strip())


def _any(rows: Sequence[Mapping[str, float]], metric: str) -> bool:
    return any(row.get(metric) for row in rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
