"""One event loop for the life of a trainer or an engine, on a thread of its own.

Environments and engines hold sockets and tasks that belong to a loop, while `fit`, `generate` and the rest are plain
calls, also in a notebook whose own loop is running.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for callers that are not coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="uirl-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. Ctrl-C cancels it, waits for its clean-up, and is raised here; a second Ctrl-C
        does not wait."""
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the event loop is closed; make a new trainer or engine")
        running: list[asyncio.Task[Any] | None] = []
        ended = threading.Event()

        async def whole() -> T:
            running.append(asyncio.current_task())
            try:
                return await coroutine
            finally:
                ended.set()

        def cancel() -> None:
            for task in running:
                assert task is not None
                task.cancel()
            if not running:  # the interrupt came before it was on its way
                coroutine.close()
                ended.set()

        try:
            return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()
        except KeyboardInterrupt:
            # a hop further than the first step of what may be on its way
            self._loop.call_soon_threadsafe(self._loop.call_soon, cancel)
            ended.wait()  # an update under way is finished first: nothing can cut it off
            raise

    async def hand_over(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, for a caller on another loop, which goes on meanwhile. Cancelling the caller
        cancels it."""
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the event loop is closed; make a new trainer or engine")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def close(self) -> None:
        """Stops the loop. Calling it twice is fine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # what still waits (a browser's socket, an engine's worker) ends in order, not with the interpreter
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
