"""The metrics file while it grows: rows from a place on, and the names that were seen."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.metrics import success_interval

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
    are no rows are left out."""
    try:
        with path.open("rb") as file:
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
            return Piece(rows, end | mark << _OFFSET_BITS if end else 0)
    except FileNotFoundError:
        return Piece([], 0, restart=since > 0)


def newest_rows(path: Path, size: int = CHUNK) -> list[dict[str, Any]]:
    """Return the rows in the last `size` bytes of the file, oldest first."""
    try:
        with path.open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - size)
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    rows = [_row(line) for line in (lines[1:] if start else lines)]
    return [row for row in rows if row is not None]


class Names:
    """The names of the metrics of a growing file, in the order of their first appearance."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0
        self._names: dict[str, None] = {}
        self._lock = threading.Lock()

    def read(self) -> list[str]:
        """Return the names, those of new rows included."""
        with self._lock:
            while True:
                piece = read_from(self._path, self._place)
                if piece.restart:
                    self._names.clear()
                for row in piece.rows:
                    self._names.update(dict.fromkeys(row))
                self._place = piece.next
                if not piece.rows and not piece.restart:
                    return [name for name in self._names if name not in ("step", "time")]
                if piece.restart and not self._path.exists():
                    return []


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
    try:
        row = json.loads(line, parse_constant=lambda _: None)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    return row | _band(row)


def _band(row: dict[str, Any]) -> dict[str, float]:
    """Return the interval (Wilson, 95 %) of the success of an update, where it says of how many episodes:
    `trajectories` are those learned from, at most as many as were played, so it is never too narrow."""
    success, episodes = row.get("success"), row.get("trajectories")
    if "success_low" in row or not isinstance(success, (int, float)) or not isinstance(episodes, (int, float)):
        return {}
    if not 0 <= success <= 1 or episodes < 1:
        return {}
    low, high = success_interval(round(success * episodes), int(episodes))
    return {"success_low": low, "success_high": high}
