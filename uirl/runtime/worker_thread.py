"""One thread for work that would hold up an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkerThread:
    """Runs one call after another on a thread of its own, which begins with the first."""

    def __init__(self, name: str, on_start: Callable[[], None] | None = None) -> None:
        """`on_start`: called on the thread before anything else; settings of a thread are its own."""
        self._pool = ThreadPoolExecutor(1, name, on_start or (lambda: None))

    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns. A call under way cannot be cut off: cancelled, this waits for its end."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """End the thread once its calls have ended; do not wait."""
        self._pool.shutdown(wait=False)
