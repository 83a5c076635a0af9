"""The metrics file while it grows: rows from a place on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from uirl.metrics import success_interval
from uirl.viewer.files import opened

ROWS = 2000
"""Rows of one answer."""
CHUNK = 1 << 20
_OFFSET_BITS = 40
"""A place is the offset in the file and, above it, a mark of the file: a resumed run replaces its metrics file by a
shorter one, and a place in the old file means nothing in the new one. Both fit into the whole numbers of JavaScript."""
_MARK = 0xFFF


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows from a place on."""

    rows: list[dict[str, Any]]
    next: int
    """Place behind them."""
    restart: bool = False
    """The place that was given is of a file that is gone: read from 0."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the page is answered."""
        return {"rows": self.rows, "next": self.next} | ({"restart": True} if self.restart else {})


def read_from(path: Path, since: int = 0, limit: int = ROWS) -> Piece:
    """Return the whole rows from the place `since` on, at most `limit`. A file that is not there has none; lines that
    are no rows are left out. Raises StorageError where it cannot be read."""
    try:
        with opened(path) as file:
            status = os.fstat(file.fileno())
            mark, offset = status.st_ino & _MARK, since & ((1 << _OFFSET_BITS) - 1)
            if since and (since >> _OFFSET_BITS != mark or not _begins_line(file, offset, status.st_size)):
                return Piece([], 0, restart=True)
            rows, end = [], offset
            for line in _lines(file, offset):
                end += len(line)
                row = _row(line)
                if row is not None:
                    rows.append(row)
                if len(rows) >= limit:
                    break
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
                    file.readline()  # the rest of the line before
                place, line = file.tell(), file.readline()
                row = _row(line) if line.endswith(b"\n") else None
                if row is not None:
                    places[place] = row
            last = max(places, default=0)
            rest = read_from(path, _place(status.st_ino, last), limit=1 << 30) if last else Piece([], 0)
            if rest.rows:
                places[status.st_size] = rest.rows[-1]
            return Piece([places[place] for place in sorted(places)], rest.next or read_from(path, 0).next)
    except FileNotFoundError:
        return Piece([], 0)


def _place(inode: int, offset: int) -> int:
    return offset | (inode & _MARK) << _OFFSET_BITS


def newest_rows(path: Path, size: int = CHUNK) -> list[dict[str, Any]]:
    """Return the rows in the last `size` bytes of the file, oldest first. Raises StorageError where it cannot be
    read."""
    try:
        with opened(path) as file:
            start = max(0, os.fstat(file.fileno()).st_size - size)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = [_row(line) for line in (lines[1:] if start else lines)]
    return [row for row in rows if row is not None]


def first_row(path: Path, size: int = CHUNK) -> dict[str, Any] | None:
    """Return the row in the first line of the file; None: that is none, or is longer than `size` bytes. Raises
    StorageError where it cannot be read."""
    try:
        with opened(path) as file:
            return _row(file.readline(size))
    except FileNotFoundError:
        return None


def _lines(file: Any, offset: int) -> Iterator[bytes]:
    """Return the finished lines from `offset` on."""
    file.seek(offset)
    for line in file:
        if not line.endswith(b"\n"):
            return
        yield line


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
    row = {name: _scalar(value) for name, value in row.items() if not isinstance(value, (dict, list))}
    return row | _band(row)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number that fits into 64 bits of float."""
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and value.bit_length() <= 1023


def _scalar(value: Any) -> Any:
    return None if isinstance(value, (int, float)) and not isinstance(value, bool) and not is_number(value) else value


def _band(row: dict[str, Any]) -> dict[str, float]:
    """Return the interval (Wilson, 95 %) of the success of an update, where it says over how many episodes it is the
    mean. Rows of earlier versions say how many were learned from (`trajectories`), which is at most as many."""
    success = row.get("success")
    episodes = row.get("count/judged_episodes", row.get("trajectories"))
    if "success_low" in row or not is_number(success) or not is_number(episodes):
        return {}
    if not 0 <= success <= 1 or not 1 <= episodes < 1 << 53:
        return {}
    count = int(episodes)
    low, high = success_interval(round(success * count), count)
    return {"success_low": low, "success_high": high}
