"""One trajectory of the runs under some paths, for commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from uirl.errors import StorageError
from uirl.viewer.episode import episode
from uirl.viewer.runs import Run, Runs
from uirl.viewer.search import line_of


@contextlib.contextmanager
def find_episode(paths: Sequence[str], id: str | None) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Return the run and the trajectory `id`, as `episode` gives it; None: the newest one of the run that was written
    last. Raises StorageError where there is none."""
    runs, unread = Runs(paths), []
    try:
        for run in sorted(runs.all(), key=Run.written, reverse=True):
            try:
                row = _row(run, id)
            except StorageError as error:  # one run that cannot be read hides none of the others
                unread.append(str(error))
                row = None
            if row is not None:
                yield run, episode(run, row["id"], row)
                return
            run.close()  # there may be more runs than files that may be open
        what = "no trajectory" if id is None else f"no trajectory {id!r}"
        why = f"there is {what} in {', '.join(map(str, paths))}; uirl view shows which there are"
        raise StorageError("; ".join([why, *unread[:3]]))
    finally:
        runs.close()


def _row(run: Run, id: str | None) -> dict[str, Any] | None:
    if not run.has_store:
        return None
    name = run.index.newest() if id is None else id
    return None if name is None else line_of(run.index, name)
