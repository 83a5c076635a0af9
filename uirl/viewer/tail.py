"""The metrics file while it grows: rows from a place on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from uirl.viewer.files import opened

ROWS = 2000
"""Rows of one answer."""
CHUNK = 1 << 20
MOST_BACK, MOST_TRIES = 1 << 28, 100
"""Bytes and rows in which the newest value of a metric is looked for."""
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
                    file.readline(CHUNK)  # the rest of the line before
                place, line = file.tell(), file.readline(CHUNK)
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


class Newest:
    """The newest row of a metrics file in which one metric has a value, however far back that is. Each look reads only
    what came since the last one."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._inode, self._end = 0, 0
        self._row: dict[str, Any] | None = None

    def row(self) -> dict[str, Any] | None:
        """Return the row; None: there is none. Raises StorageError where the file cannot be read."""
        try:
            with opened(self._path) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._end:
                    self._inode, self._end, self._row = status.st_ino, 0, None
                self._row = self._newest(file, status.st_size) or self._row
        except FileNotFoundError:
            self._inode, self._end, self._row = 0, 0, None
        return self._row

    def _newest(self, file: Any, size: int) -> dict[str, Any] | None:
        """Look for the metric from the end back to where the last look ended, in whole lines."""
        pattern, begun, end, tries = json.dumps(self._name).encode(), self._end, size, 0
        while end > max(begun, size - MOST_BACK):
            start = max(begun, end - CHUNK)
            file.seek(start)
            data = file.read(end - start + (len(pattern) if end < size else 0))
            if self._end == begun:
                self._end = start + data.rfind(b"\n") + 1 if b"\n" in data else begun
            at = len(data)
            while (at := data.rfind(pattern, 0, at)) >= 0 and tries < MOST_TRIES:
                tries += 1
                row = _row_around(file, start + at)
                if row is not None and is_number(row.get(self._name)):
                    return row
            end = start
        return None


def _row_around(file: Any, place: int) -> dict[str, Any] | None:
    """Return the row of the line in which a place lies."""
    before = max(0, place - CHUNK)
    file.seek(before)
    start = before + file.read(place - before).rfind(b"\n") + 1
    file.seek(start)
    line = file.readline(2 * CHUNK)
    return _row(line) if line.endswith(b"\n") else None


def _lines(file: Any, offset: int) -> Iterator[bytes]:
    """Return the finished lines from `offset` on, up to one that is longer than `CHUNK`: no run writes such."""
    file.seek(offset)
    while (line := file.readline(CHUNK)).endswith(b"\n"):
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
    return {name: _scalar(value) for name, value in row.items() if not isinstance(value, (dict, list))}


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number that fits into 64 bits of float."""
    if isinstance(value, float):
        return math.isfinite(value)
    return type(value) is int and value.bit_length() <= 1023


def _scalar(value: Any) -> Any:
    return None if isinstance(value, (int, float)) and not isinstance(value, bool) and not is_number(value) else value
