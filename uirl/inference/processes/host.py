"""The inside of an engine process: an engine on a thread of its own, asked by the learner's process.

Messages are read on another thread than the model runs on, so that a long forward pass silences no heartbeat.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from uirl.errors import EngineFailure
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights
from uirl.peers.peer import Handler, Peer
from uirl.runtime.event_loop import EventLoopThread

_LOOK = 1.0
"""Seconds between two looks at whether the learner's process is there."""


class EngineHost:
    """Makes an engine when it is told to, and answers for it. `engine`: one that exists already, for tests."""

    def __init__(self, engine: InferenceEngine | None = None) -> None:
        self._engine = engine
        self._loop = EventLoopThread("uirl-engine")

    @property
    def handlers(self) -> dict[str, Handler]:
        """What the learner's process may call."""
        return {
            "start": self.start,
            "generate": self.generate,
            "load": self.load,
            "release": self.release,
        }

    async def start(self, config: Mapping[str, Any], threads: int | None) -> None:
        """Load the model and make its engine, as the config says."""
        await self._loop.hand_over(self._start(config, threads))

    async def generate(self, request: GenerationRequest) -> tuple[Generation, dict[str, float]]:
        """Return the reply, and the engine's counters since the last one."""
        return await self._loop.hand_over(self._generate(request))

    async def load(self, folder: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Take over the weights of a snapshot."""
        from uirl.inference.weight_files import Snapshot

        await self.take(Snapshot(Path(folder), version, adapter), version, adapter)

    async def take(self, weights: Weights, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Take over weights that this process can read."""
        await self._loop.hand_over(self._take(weights, version, adapter))

    async def release(self, session_id: str) -> None:
        """Forget what was kept for an episode."""
        await self._loop.hand_over(self._release(session_id))

    def close(self) -> None:
        """End the thread."""
        self._loop.close()

    # -- on the engine's thread --------------------------------------------------------------------------------

    async def _start(self, config: Mapping[str, Any], threads: int | None) -> None:
        import torch

        from uirl.config import ConfigStore
        from uirl.inference.models.loading import load_model
        from uirl.inference.registry import create_engine

        if threads is not None:
            torch.set_num_threads(threads)
        settings = ConfigStore.from_dict(dict(config))
        self._engine = create_engine(settings, load_model(settings.model, seed=settings.training.seed))

    async def _generate(self, request: GenerationRequest) -> tuple[Generation, dict[str, float]]:
        engine = self._made()
        return await engine.generate(request), engine.stats()

    async def _take(self, weights: Weights, version: int, adapter: Mapping[str, Any] | None) -> None:
        await self._made().update_weights(weights, version, adapter=adapter)

    async def _release(self, session_id: str) -> None:
        if self._engine is not None:
            self._engine.release(session_id)

    def _made(self) -> InferenceEngine:
        if self._engine is None:
            raise EngineFailure("the engine was asked before it was started")
        return self._engine


def main(connection: int, learner: int) -> NoReturn:
    """Serve on the socket `connection` until its other end is closed, or the process `learner` is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the learner's affair
    threading.Thread(target=_end_with, args=(learner,), daemon=True).start()
    asyncio.run(_serve(connection))
    os._exit(0)  # not through the interpreter's end, which waits for a forward pass


async def _serve(connection: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=connection))
    await Peer(reader, writer, EngineHost().handlers, name="the learner").wait_closed()


def _end_with(learner: int) -> NoReturn:
    """End this process when its parent is another one: somebody else may hold the socket open."""
    while os.getppid() == learner:
        time.sleep(_LOOK)
    os._exit(1)
