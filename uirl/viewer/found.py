"""One trajectory of the runs under some paths, for commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from uirl.errors import StorageError
from uirl.viewer.episode import episode
from uirl.viewer.runs import Run, Runs
from uirl.viewer.search import line_of

FOREVER = 3600.0
"""Seconds that a command takes to read the list of a run: all of it."""


@contextlib.contextmanager
def find_episode(paths: Sequence[str], id: str | None) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Return the run and the trajectory `id`, as `episode` gives it; None: the newest one of the first run that has
    some. Raises StorageError where there is none."""
    runs = Runs(paths)
    try:
        for run in runs.all():
            if not run.has_store:
                continue
            run.index.catch_up(FOREVER)
            name = id if id is not None else _newest(run)
            row = None if name is None else line_of(run.index, name)
            if row is not None:
                yield run, episode(run, row["id"], row)
                return
        what = "no trajectory" if id is None else f"no trajectory {id!r}"
        raise StorageError(f"there is {what} in {', '.join(map(str, paths))}; uirl view shows which there are")
    finally:
        runs.close()


def _newest(run: Run) -> str | None:
    found = run.index.read("SELECT id FROM rows ORDER BY number DESC LIMIT 1")
    return found[0][0] if found else None
