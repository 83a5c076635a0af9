"""The line of a run in the list of runs: what can be said of it at a glance, and why something cannot."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.errors import StorageError
from uirl.viewer.files import read_object
from uirl.viewer.finding import closed
from uirl.viewer.runs import Run, modified
from uirl.viewer.tail import is_number

_LOG = logging.getLogger(__name__)
WRITING = 15.0
"""Seconds after its last write during which a run counts as live where its lock cannot be seen."""


def list_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the lines of runs. Whatever is wrong with one of them, it hides none of the others."""
    return [line_of(run) for run in runs]


def line_of(run: Run) -> dict[str, Any]:
    """Return the line of a run in the list. What cannot be read is null, and says why in `problem`."""
    try:
        return _line_of(run)
    except Exception as error:  # a fault of ours: the list goes on without this run
        _LOG.exception("the run %s cannot be described", run.key)
        return _bare(run) | {"problem": f"the viewer failed: {type(error).__name__}: {error}"}


def _bare(run: Run) -> dict[str, Any]:
    unknown = dict.fromkeys(("created", "updated", "steps", "trajectories", "success", "serve_url", "problem"))
    return {"key": run.key, "path": str(run.path), "name": run.path.name, "live": False, **unknown}


def _line_of(run: Run) -> dict[str, Any]:
    line = _bare(run)
    problems: list[str] = []
    refused = closed(run.path)
    if refused is not None:
        return line | {"problem": str(refused)}
    with noted(problems):
        line["trajectories"] = run.count()
    with noted(problems):
        first, newest = run.ends()
        begun = None if first is None else first.get("time")
        line["created"] = begun if is_number(begun) else modified(run.config_path)
        line["steps"] = newest[-1]["step"] if newest else 0
        line["success"] = _newest(newest, "eval/success", "success")
    times = run.times()
    line["updated"] = max((moment for moment in times if moment is not None), default=None)
    line["live"] = is_live(run.folder, times)
    line["serve_url"] = serve_url(run.folder)
    return line | {"problem": "; ".join(problems) or None}


@contextlib.contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Put why something cannot be read to `problems`, and go on."""
    try:
        yield
    except StorageError as error:
        problems.append(str(error))


def is_live(folder: Path, times: Sequence[float | None] = ()) -> bool:
    """Return whether a process writes to a run now: whether its lock is held. The lock itself is not tried: a run that
    begins at that moment would find it taken."""
    with contextlib.suppress(OSError):
        inode = str((folder / ".lock").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "FLOCK" in words and any(word.rpartition(":")[2] == inode for word in words if word.count(":") == 2):
                return True
    return any(moment is not None and time.time() - moment < WRITING for moment in times)


def serve_url(folder: Path) -> str | None:
    """Return the address of the live view of the run's `uirl serve`, which it writes to `serve.json`; None: there is
    none. Only addresses of pages are believed."""
    try:
        url = (read_object(folder / "serve.json") or {}).get("url")
    except StorageError:
        return None
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None


def _newest(rows: Sequence[Mapping[str, Any]], *names: str) -> float | None:
    """Return the newest value of the first name that has one."""
    return next((row[name] for name in names for row in reversed(rows) if is_number(row.get(name))), None)
