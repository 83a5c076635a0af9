"""The line of a run in the list of runs: what can be said of it at a glance, and why something cannot."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.metrics import clustered_interval
from uirl.storage.summaries import Outcomes
from uirl.viewer.files import read_object
from uirl.viewer.metrics import is_number
from uirl.viewer.runs import Run, closed, modified

_LOG = logging.getLogger(__name__)
WRITING = 15.0
"""Seconds after its last write during which a run counts as live where its lock cannot be seen."""
COUNTING = 10.0
"""Seconds after which no further store is opened for a list; the next list goes on there."""
HELD_OUT = {"eval", "test"}
"""Splits of evaluations."""


def list_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the lines of runs. Whatever is wrong with one of them, it hides none of the others, and holds them up no
    longer than `COUNTING`."""
    until = time.monotonic() + COUNTING
    return [line_of(run, until) for run in runs]


def line_of(run: Run, until: float = math.inf) -> dict[str, Any]:
    """Return the line of a run in the list. What cannot be read is null, and says why in `problem`; stores are opened
    until `until`."""
    try:
        return _line_of(run, until)
    except Exception as error:  # a fault of ours: the list goes on without this run
        _LOG.exception("the run %s cannot be described", run.key)
        return _bare(run) | {"problem": f"the viewer failed: {type(error).__name__}: {error}"}


def _bare(run: Run) -> dict[str, Any]:
    unknown = ("created", "updated", "steps", "planned", "trajectories", "held_out", "training_success", "nonfinite")
    line = {"key": run.key, "path": str(run.path), "name": run.name, "state": "unknown"}
    return line | dict.fromkeys((*unknown, "serve_url", "problem"))


def _line_of(run: Run, until: float) -> dict[str, Any]:
    line = _bare(run)
    refused = closed(run.path)
    if refused is not None:
        return line | {"problem": str(refused)}
    problems: list[str] = []
    with noted(problems):
        counted = run.counted(until)
        line |= {"trajectories": counted} if isinstance(counted, int) else _of_store(counted)
    with noted(problems):
        first, newest, evaluated = run.ends()
        begun = None if first is None else first.get("time")
        if line["created"] is None:
            line["created"] = begun if is_number(begun) else modified(run.config_path)
        if run.is_folder or newest:
            line["steps"] = newest[-1]["step"] if newest else 0
        if run.is_folder:
            values = (row["success"] for row in reversed(newest) if is_number(row.get("success")))
            line["training_success"] = next(values, None)
        line["nonfinite"] = [name for name, value in newest[-1].items() if value is None][:20] if newest else []
        line["held_out"] = _evaluated(evaluated) or line["held_out"]
    summary = None
    with noted(problems):
        summary = read_object(run.directory.summary_path) if run.is_folder else None
        line["held_out"] = _at_the_end(summary) or line["held_out"]
    with noted(problems):
        line["planned"] = run.planned()
    times = run.times()
    line["updated"] = max((moment for moment in times if moment is not None), default=None)
    line["state"] = state_of(run, times, finished=summary is not None)
    line["serve_url"] = serve_url(run.folder)
    return line | {"problem": "; ".join(problems) or None}


def _of_store(found: Outcomes) -> dict[str, Any]:
    """Return what is said of a store alone: what its episodes came to."""
    step = None if found.steps is None or found.steps[0] != found.steps[1] else found.steps[1]
    line: dict[str, Any] = {"trajectories": found.episodes, "steps": step, "created": found.created}
    if found.judged:
        low, high = clustered_interval(found.by_group)
        value = found.solved / found.judged
        whole = {"value": value, "low": low, "high": high, "step": step, "episodes": found.judged}
        held_out = set(found.splits) <= HELD_OUT
        line |= {"held_out": {**whole, "groups": len(found.by_group)}} if held_out else {"training_success": value}
    return line


def _evaluated(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what an evaluation came to; the rows of earlier versions do not say its interval."""
    if row is None:
        return None
    low, high = row.get("eval/success_low"), row.get("eval/success_high")
    return {"value": row["eval/success"], "low": low, "high": high, "step": row["step"]}


def _at_the_end(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the last evaluation of a run that has ended."""
    if summary is None or not is_number(summary.get("success_after")):
        return None
    ends = summary.get("success_after_interval")
    known = isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
    low, high = ends if isinstance(ends, list) and known else (None, None)
    return {"value": summary["success_after"], "low": low, "high": high, "step": summary.get("steps")}


def state_of(run: Run, times: Sequence[float | None], *, finished: bool) -> str:
    """Return "live", "finished" (it wrote its summary), "stopped" (it did not, and nobody writes to it), or "recorded"
    (episodes without a run)."""
    if is_locked(run.folder):
        return "live"
    if finished:
        return "finished"
    if any(moment is not None and time.time() - moment < WRITING for moment in times):
        return "live"
    return "stopped" if run.is_folder else "recorded"


@contextlib.contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Put why something cannot be read to `problems`, and go on."""
    try:
        yield
    except StorageError as error:
        problems.append(str(error))


def is_locked(folder: Path) -> bool:
    """Return whether the lock of a run is held: a process writes to it. The lock itself is not tried: a run that
    begins at that moment would find it taken."""
    with contextlib.suppress(OSError):
        inode = str((folder / ".lock").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "FLOCK" in words and any(word.rpartition(":")[2] == inode for word in words if word.count(":") == 2):
                return True
    return False


def serve_url(folder: Path) -> str | None:
    """Return the address of the live view of the run's `uirl serve`, which it writes to `serve.json`; None: there is
    none. Only addresses of pages are believed."""
    try:
        url = (read_object(folder / "serve.json") or {}).get("url")
    except StorageError:
        return None
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None
