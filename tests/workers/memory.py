"""A transport in memory: its processes are coroutines of this one, behind a real pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from uirl.workers.supervisor import Streams
from uirl.workers.worker import Worker, serve


class Life:
    """One start of a worker."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.stopped = self.killed = 0
        self.node: str | None = None
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving: asyncio.Task[str] | None = None

    async def connect(self) -> Streams:
        ours, theirs = socket.socketpair()
        self._serving = asyncio.ensure_future(serve(self.worker, theirs))
        self._serving.add_done_callback(lambda _: self.end("it ended with status 0"))
        return await asyncio.open_connection(sock=ours)

    def end(self, how: str = "it was killed by SIGKILL") -> None:
        """End as a process does: with its connection."""
        if not self._end.done():
            self._end.set_result(how)
        if hasattr(self.worker, "learner"):
            self.worker.learner.close()

    def freeze(self) -> None:
        """Say nothing any more."""
        self.worker.learner._write = lambda *frame: None

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed += not self._end.done()
        assert self._serving is not None
        self._serving.cancel()
        self.end()

    def last_words(self) -> str:
        return "out of memory"


class InMemory:
    """`make`: called with the number of each start, for its worker; it may raise what a start raises."""

    def __init__(self, make: Callable[[int], Worker]) -> None:
        self._make = make
        self.starts = 0
        self.lives: list[Life] = []
        self.closed = False

    async def start(self, name: str, program: str) -> tuple[Life, Streams]:
        self.starts += 1
        life = Life(self._make(self.starts - 1))
        self.lives.append(life)
        return life, await life.connect()

    async def close(self) -> None:
        self.closed = True
