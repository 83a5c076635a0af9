"""The metrics file: one JSON object per line, whole after a kill or on a full disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from uirl.errors import StorageError
from uirl.metrics.reduction import plain_row
from uirl.metrics.trackers import PHASES, Tracker
from uirl.runtime.files import storage_errors, write_atomically


class MetricsLogger:
    """Write one JSON object per line: `step`, `time` (seconds since 1970) and the metrics; and pass it to trackers.

    Rows of a `phase` before the first update (the warm start) have step 0 and count their own steps: every name in
    them begins with the phase, `warm_start/step` is the axis. A line is written in one call and flushed, so a kill
    loses no finished line. Numbers that are not finite become null and are counted in `metrics/nonfinite`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume_after: int | None = None,
        phase_after: Mapping[str, int] | None = None,
        trackers: Iterable[Tracker] = (),
    ):
        """Open `path`, which must not hold rows yet unless `resume_after` says which to keep.

        Args:
            path: The file; its folder is made.
            resume_after: Continue: rows of later steps are dropped (in one atomic replacement) before the first new
                row, so that no step stands twice. None: a new file.
            phase_after: Phase -> its own step, after which its rows are dropped. None: they stay.
            trackers: Get every row as well, and are closed with this logger.
        """
        self.path = Path(path)
        self._trackers = tuple(trackers)
        with storage_errors(f"cannot open {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if resume_after is not None:
                _keep_until(self.path, resume_after, phase_after or {})
            elif self.path.exists() and self.path.stat().st_size:
                raise StorageError(
                    f"{self.path} already holds metrics of another run; resume that run or choose another run name"
                )
            self._handle: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def log(self, step: int, metrics: Mapping[str, Any], phase: str | None = None) -> dict[str, float | None]:
        """Write a row and return it without `step` and `time`. `phase`: `step` is one of its own, before the first
        update. Raises `StorageError` where it cannot be written; the rows before then stay whole."""
        if self._handle is None:
            raise StorageError(f"{self.path} is closed; a row for step {step} came after close()")
        row = plain_row(metrics)
        if phase is None:
            written = {"step": int(step), "time": time.time(), **row}
        else:
            row = {f"{phase}/{name}": value for name, value in row.items()}
            written = {"step": 0, "time": time.time(), f"{phase}/step": int(step), **row}
        _append(self._handle, (json.dumps(written, allow_nan=False) + "\n").encode(), self.path)
        for tracker in self._trackers:
            tracker.log(step, row, phase)
        return row

    def close(self) -> None:
        """Close the file and the trackers. A second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            for tracker in self._trackers:
                tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str], phase: str | None = None) -> list[dict[str, Any]]:
    """Read the rows of the updates in a metrics file, oldest first; with `phase` ('warm_start') those of that phase.
    An unfinished last line (the writer is at work or was killed) is left out.

    Raises `StorageError` where the file is missing, or damaged before its last line.
    """
    phases = [(next((p for p in PHASES if f"{p}/step" in row), None), row) for row in _read_rows(path)]
    return [row for row_phase, row in phases if row_phase == phase]


def _read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the rows of every phase."""
    with storage_errors(f"cannot read {path}"):
        data = Path(path).read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"])})
        except (ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{path}, line {number} is no row of metrics: {line[:80]!r} ({error})") from error
    return rows


def _keep_until(path: Path, step: int, phase_after: Mapping[str, int]) -> None:
    if not path.exists():
        return
    rows = _read_rows(path)
    kept = [row for row in rows if row["step"] <= step]
    for phase, last in phase_after.items():
        kept = [row for row in kept if row.get(f"{phase}/step", last) <= last]
    whole = path.read_bytes().endswith(b"\n") or not path.stat().st_size
    if len(kept) < len(rows) or not whole:
        write_atomically(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in kept))


def _append(handle: int, line: bytes, path: Path) -> None:
    before = os.fstat(handle).st_size
    with storage_errors(f"cannot append to {path}"):
        try:
            written = os.write(handle, line)
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, before)
            raise
