"""The inside of a process that works for a learner: what it runs, and how that is asked."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping

from uirl.runtime.time_limits import TimedOut, within
from uirl.workers.peer import Handler, Peer

_LOG = logging.getLogger(__name__)
CLOSE_SECONDS = 8.0
"""That a worker has to end when the learner is gone or is done with it."""


class Worker(ABC):
    """What runs in a process of its own: it plays episodes, or it is an engine. It is made there without arguments."""

    learner: Peer
    """The other end of the connection; it is there before the first call."""

    @property
    @abstractmethod
    def handlers(self) -> Mapping[str, Handler]:
        """What the learner may call. The first call tells the worker what it works on; until then it holds nothing."""

    async def close(self) -> None:
        """Free what it holds: the learner is gone, or done with it."""


async def serve(worker: Worker, connection: socket.socket) -> str:
    """Have `worker` work until the other end of `connection` is closed; return why it was."""
    streams = await asyncio.open_connection(sock=connection)
    worker.learner = peer = Peer(*streams, worker.handlers, name="the learner")
    peer.notify("here", os.getpid(), socket.gethostname())
    reason = await peer.wait_closed()
    try:
        await within(worker.close(), CLOSE_SECONDS)
    except TimedOut:
        _LOG.warning("what this process held did not close within %g s", CLOSE_SECONDS)
    return reason


def made(program: str) -> Worker:
    """Return a new worker of the class 'module:Class'."""
    module, _, name = program.partition(":")
    worker: Worker = getattr(importlib.import_module(module), name)()
    return worker


def run(program: str, connection: socket.socket) -> None:
    """Be a worker in this process, until the learner is gone or done with it."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", force=True)
    asyncio.run(serve(made(program), connection))


def program_of(kind: type[Worker]) -> str:
    """Return how a class is named to another process."""
    return f"{kind.__module__}:{kind.__qualname__}"
