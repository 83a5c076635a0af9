"""An engine in a process of its own, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from uirl.errors import EngineFailure, EngineLost, ProcessLost, UirlError
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights
from uirl.inference.counters import Counters
from uirl.inference.weight_files import Snapshot, WeightFiles
from uirl.peers.peer import Peer, PeerLost
from uirl.runtime.time_limits import TimedOut
from uirl.runtime.waiting import wait_for

_LOG = logging.getLogger(__name__)
START_SECONDS = 1800.0
"""That a model may take to load."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_STEADY = 60.0
"""Seconds of life after which a death counts as the first again."""
_STILLBORN = 3
"""Deaths in a row, before the model was loaded once, after which no further start is tried."""
_CODE = """
import sys
sys.path[:] = {path!r}
from uirl.inference.processes.host import main
main({connection}, {learner})
"""


class EngineProcess(InferenceEngine):
    """Starts the process with its first use and asks it over a socket.

    `config`: that of the run, as a dict; its model is loaded there. `files`: where weights are written that do not come
    as a `Snapshot`. `threads`: of the model's arithmetic; None: torch's own choice. `silence`: seconds without a sign
    of life after which the process is killed. A process that was started again raises EngineLost until it got weights
    by `update_weights`, where there was an update before.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        files: WeightFiles,
        name: str = "engine",
        threads: int | None = None,
        silence: float = 60.0,
    ) -> None:
        self.name, self.state, self.since, self.incarnation = name, "not started", time.time(), 0
        self.policy_version = 0
        self._config, self._files, self._threads, self._silence = config, files, threads, silence
        self._counters = Counters()
        self._process: subprocess.Popen[bytes] | None = None
        self._peer: Peer | None = None
        self._bare = False
        """Weights were sent before this process was started, and none since."""
        self._updated = False
        self._why = "it was not started"
        self._begun = asyncio.Event()
        """The model was loaded once, or never will be."""
        self._refused: UirlError | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self.on_change: Callable[[], None] | None = None
        """Called whenever `state`, `pid` or `incarnation` changed."""

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none now."""
        return None if self._process is None else self._process.pid

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        peer = await self._reach()
        if self._bare:
            raise EngineLost(f"{self.name} was started again and got no weights yet")
        generation, counts = await self._call(peer, "generate", request)
        for counter, value in counts.items():
            self._counters.add(counter, value)
        made: Generation = generation
        return made

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        if weights is None:
            raise EngineFailure("an engine process has a model of its own; send it weights")
        peer = await self._reach()
        mine = None
        if not isinstance(weights, Snapshot):
            weights = mine = await asyncio.to_thread(self._files.write_snapshot, weights, version, adapter)
        try:
            await self._call(peer, "load", str(weights.folder), version, adapter)
        finally:
            if mine is not None:
                mine.remove()
        if peer is self._peer:
            self._bare, self._updated, self.policy_version = False, True, version

    async def probe(self) -> None:
        await self._reach()

    def release(self, session_id: str) -> None:
        if self._peer is not None:
            self._peer.notify("release", session_id)

    def stats(self) -> dict[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._note("ended")

    # -- the process -------------------------------------------------------------------------------------------

    async def _reach(self) -> Peer:
        """Return the way to the process; the first use starts it and waits for it. Raises EngineLost where it is down,
        and what the process could not be started for."""
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        if not self._begun.is_set():
            try:
                await wait_for(f"{self.name} to load its model", self._begun.wait(), START_SECONDS)
            except TimedOut as error:
                raise EngineLost(str(error)) from error
        if self._refused is not None:
            raise self._refused
        if self._peer is None:
            raise EngineLost(f"{self.name} is down and started again ({self._why})")
        return self._peer

    async def _call(self, peer: Peer, method: str, *args: Any) -> Any:
        try:
            return await peer.call(method, *args)
        except PeerLost as error:
            raise EngineLost(f"{error}; {self._why}" if peer is not self._peer else str(error)) from error

    async def _keep(self) -> None:
        """Start the process, and start it again whenever it ended."""
        pause = _FIRST_PAUSE
        while True:
            begun = time.monotonic()
            try:
                self._why = await self._live()
            except Exception as error:
                if isinstance(error, UirlError) and not isinstance(error, PeerLost) and not self._begun.is_set():
                    self._refuse(error)  # a model that cannot be loaded: it would be the same the next time
                    return
                self._why = f"{type(error).__name__}: {error}"
            if not self._begun.is_set() and self.incarnation >= _STILLBORN:
                self._refuse(
                    ProcessLost(
                        f"{self.name} ended {self.incarnation} times before its model was loaded ({self._why}); see "
                        "above what it said, and whether the machine has memory for actors.engines models"
                    )
                )
                return
            pause = _FIRST_PAUSE if time.monotonic() - begun > _STEADY else pause
            _LOG.warning("%s is gone (%s); it is started again in %.1f s", self.name, self._why, pause)
            self._note("down")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _live(self) -> str:
        """Be one process from its start to its end; return how it ended."""
        self.incarnation += 1
        ours, theirs = socket.socketpair()
        code = _CODE.format(
            path=[os.path.abspath(p) for p in sys.path], connection=theirs.fileno(), learner=os.getpid()
        )
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is this process's affair
            )
        finally:
            theirs.close()
        self._note("starting")
        reader, writer = await asyncio.open_connection(sock=ours)
        peer = Peer(reader, writer, {}, name=self.name)
        try:
            start = peer.call("start", self._config, self._threads)
            await wait_for(f"{self.name} to load its model", start, START_SECONDS)
            peer.silence = self._silence  # not before: what loads a model may say nothing for minutes
            self._peer, self._bare = peer, self._updated
            self._begun.set()
            self._note("running")
            reason = await peer.wait_closed()
        except PeerLost as error:
            reason = str(error)
        finally:
            self._peer = None
            peer.close()
            how = await asyncio.shield(self._end(process))
        return f"{reason}; {how}"

    async def _end(self, process: subprocess.Popen[bytes]) -> str:
        """Kill what is left of the process, and say how it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 1.0)  # it may be ending by itself
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        status = await asyncio.to_thread(process.wait)
        if self._process is process:
            self._process = None
        with contextlib.suppress(ValueError):
            if status < 0:
                return f"it was killed by {signal.Signals(-status).name}"
        return f"it ended with status {status}"

    def _refuse(self, error: UirlError) -> None:
        self._refused = error
        self._begun.set()
        self._note("given up")

    def _note(self, state: str) -> None:
        self.state, self.since = state, time.time()
        if self.on_change is not None:
            self.on_change()
