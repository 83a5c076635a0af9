"""Episodes that end together are written down together: a transaction for each would take longer than to play a small
one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from uirl.errors import StorageError
from uirl.types import Trajectory


class WrittenTogether:
    """Writes all episodes that end in one turn of the event loop at once, in the next turn, some milliseconds later.

    An engine answers many episodes in one step, so they end together. An error of such a write is raised by the next
    `add` or `flush`.
    """

    def __init__(self, write: Callable[[Sequence[Trajectory]], None]) -> None:
        """`write` puts episodes on the disk, all or none. Raises StorageError where it cannot."""
        self._write = write
        self._waiting: list[Trajectory] = []
        self._failure: StorageError | None = None

    def add(self, trajectory: Trajectory) -> None:
        """Have an episode written down. Call it on the event loop. Raises StorageError where an earlier one could not
        be."""
        self._raise()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write_waiting)
        self._waiting.append(trajectory)

    def flush(self) -> None:
        """Write down what waits; on return it survives a kill. Raises StorageError where something could not be
        written."""
        self._write_waiting()
        self._raise()

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._write(waiting)
        except StorageError as error:
            self._failure = error
            if len(waiting) > 1:
                self._write_each(waiting)

    def _write_each(self, trajectories: Sequence[Trajectory]) -> None:
        """Write them one by one: what cannot be stored takes no other with it."""
        failures = []
        for trajectory in trajectories:
            try:
                self._write([trajectory])
            except StorageError as error:
                failures.append(error)
        self._failure = failures[0] if failures else None

    def _raise(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
