"""A value that is made once, on demand, for all who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """What `make()` returns, made once however many ask at the same time. A failure reaches all who waited for it;
    whoever asks later tries again."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._values: list[T] = []
        """None, or the one."""
        self._running: dict[asyncio.AbstractEventLoop, asyncio.Future[T]] = {}

    async def get(self) -> T:
        """Return the value. Raises what `make` raises."""
        if self._values:
            return self._values[0]
        loop = asyncio.get_running_loop()
        running = self._running.get(loop)
        if running is None or running.done():
            running = self._running[loop] = asyncio.ensure_future(self._run())
        # one who goes away must not take it from the others
        return await asyncio.shield(running)

    async def _run(self) -> T:
        value = await self._make()
        self._values[:] = [value]
        return value
