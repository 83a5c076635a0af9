"""An engine in a process of its own, here or on another machine, started again when it dies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from uirl.errors import EngineFailure, EngineLost, ProcessLost, UirlError
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights
from uirl.inference.counters import Counters
from uirl.inference.processes.life import ChildProcesses, Launch, Life
from uirl.inference.weight_files import KeptWeights, WeightStore
from uirl.peers.peer import PeerLost
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


class EngineProcess(InferenceEngine):
    """Starts the process with its first use and asks it over a connection.

    `config`: that of the run, as a dict; its model is loaded there. `files`: where weights are written that do not come
    from such a store. `threads`: of the model's arithmetic; None: torch's own choice. `silence`: seconds without a sign
    of life after which the process is killed. `launch`: what starts it, closed with this; None: as a child of this
    process. A process that was started again raises EngineLost until it got weights by `update_weights`, where there
    was an update before.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        files: WeightStore,
        name: str = "engine",
        threads: int | None = None,
        silence: float = 60.0,
        launch: Launch | None = None,
    ) -> None:
        self.name, self.state, self.since, self.incarnation = name, "not started", time.time(), 0
        self.policy_version = 0
        self._config, self._files, self._threads, self._silence = config, files, threads, silence
        self._counters = Counters()
        self._launch = launch or ChildProcesses()
        self._life: Life | None = None
        """The newest process, until it has ended."""
        self._running: Life | None = None
        """The process that can be asked."""
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
        """Of the process; None: there is none now, or it is on another machine."""
        return None if self._life is None else self._life.pid

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        life = await self._reach()
        if self._bare:
            raise EngineLost(f"{self.name} was started again and got no weights yet")
        replied = life.peer.call("generate", request, returns=tuple[Generation, dict[str, float]])
        generation, counts = await self._told(life, replied)
        for counter, value in counts.items():
            self._counters.add(counter, value)
        made: Generation = generation
        return made

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        if weights is None:
            raise EngineFailure("an engine process has a model of its own; send it weights")
        life = await self._reach()
        mine = None
        if not isinstance(weights, KeptWeights):
            weights = mine = await asyncio.to_thread(self._files.write_snapshot, weights, version, adapter)
        try:
            await self._told(life, life.load(weights, version, adapter))
        finally:
            if mine is not None:
                mine.remove()
        if life is self._running:
            self._bare, self._updated, self.policy_version = False, True, version

    async def probe(self) -> None:
        await self._reach()

    def release(self, session_id: str) -> None:
        if self._running is not None:
            self._running.peer.notify("release", session_id)

    def stats(self) -> dict[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._launch.close()
        self._note("ended")

    # -- the process -------------------------------------------------------------------------------------------

    async def _reach(self) -> Life:
        """Return the process; the first use starts it and waits for it. Raises EngineLost where it is down,
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
        if self._running is None:
            raise EngineLost(f"{self.name} is down and started again ({self._why})")
        return self._running

    async def _told(self, life: Life, answer: Awaitable[Any]) -> Any:
        """Return what the process answers. Raises EngineLost where it is lost meanwhile."""
        try:
            return await answer
        except PeerLost as error:
            raise EngineLost(f"{error}; {self._why}" if life is not self._running else str(error)) from error

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
        self._note("starting")
        life = self._life = await self._launch.begin(self.name, self.incarnation)
        self._note("starting")
        peer = life.peer
        try:
            start = peer.call("start", self._config, self._threads)
            await wait_for(f"{self.name} to load its model", start, START_SECONDS)
            peer.silence = self._silence  # not before: what loads a model may say nothing for minutes
            self._bare, self._running = self._updated, life
            self._begun.set()
            self._note("running")
            reason = await peer.wait_closed()
        except PeerLost as error:
            reason = str(error)
        finally:
            self._running = None
            peer.close()
            how = await asyncio.shield(self._end(life))
        return f"{reason}; {how}"

    async def _end(self, life: Life) -> str:
        how = await life.end()
        if self._life is life:
            self._life = None
        return how

    def _refuse(self, error: UirlError) -> None:
        self._refused = error
        self._begun.set()
        self._note("given up")

    def _note(self, state: str) -> None:
        self.state, self.since = state, time.time()
        if self.on_change is not None:
            self.on_change()
