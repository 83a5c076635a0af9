"""What Ray runs for one engine: a process that dials the learner, and answers it as an engine process does.

Requests, replies and pictures go over that connection. Weights come from Ray's store of objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from uirl.errors import EngineFailure, UirlError
from uirl.inference.processes.host import EngineHost
from uirl.inference.ray.weights import Shard, tensors_of
from uirl.peers.greeting import dial
from uirl.peers.peer import Peer
from uirl.peers.way import Place, Way

if TYPE_CHECKING:
    from torch import Tensor

CALLS = 4
"""That run side by side: being an engine, taking over weights, saying where it is."""


class EngineWorker:
    """The class of the Ray actors that are engines."""

    def __init__(self) -> None:
        self._host: EngineHost | None = None

    def place(self) -> Place:
        """Return where this process is."""
        return Place.here()

    def serve(self, way: Way) -> str:
        """Be an engine for the learner until the connection ends; return why it did."""
        return asyncio.run(_serve(way, self._connected))

    def load(self, version: int, adapter: Mapping[str, Any] | None, *shards: Shard) -> UirlError | None:
        """Take over weights; return what is wrong with them."""
        host = self._host
        if host is None:
            return EngineFailure("the engine got weights before it was connected")
        weights: Iterator[tuple[str, Tensor]] = chain.from_iterable(map(tensors_of, shards))
        try:
            asyncio.run(host.take(weights, version, adapter))
        except UirlError as error:
            return error
        return None

    def _connected(self, host: EngineHost) -> None:
        self._host = host


async def _serve(way: Way, connected: Callable[[EngineHost], None]) -> str:
    # not a method: one that is a coroutine function would have Ray call them all on one event loop
    about = {"role": "engine", "engine": way.name, "incarnation": way.incarnation}
    streams, _ = await dial(way.host, way.port, way.token, about)
    host = EngineHost()
    connected(host)
    try:
        return await Peer(*streams, host.handlers, name="the learner").wait_closed()
    finally:
        host.close()
