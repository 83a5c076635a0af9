"""Ctrl-C, SIGTERM and SIGHUP: a run that is asked to stop gives up what can be repeated and keeps what cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from uirl.training.record.progress import say

T = TypeVar("T")


class Interrupted(Exception):
    """The run was asked to stop, at a place where its state is that of a boundary."""


class Interrupt:
    """A wish to stop, heard where work can be given up: episodes are played again, an update is not cut off."""

    def __init__(self) -> None:
        self._wanted = asyncio.Event()

    def ask(self) -> None:
        """Make every `give_up`, under way or to come, end with Interrupted. Called in the loop's thread."""
        say("stopping: an update under way is finished, then the run is saved; once more ends it without saving")
        self._wanted.set()

    def clear(self) -> None:
        """Forget the wish, for the next call of `fit`."""
        self._wanted.clear()

    async def give_up(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns; when the wish comes first, it is cancelled, its clean-up is awaited, and
        Interrupted is raised."""
        if self._wanted.is_set():
            coroutine.close()
            raise Interrupted
        work, stopped = asyncio.ensure_future(coroutine), asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise Interrupted
        finally:
            stopped.cancel()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
