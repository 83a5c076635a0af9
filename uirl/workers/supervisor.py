"""What keeps one worker alive: it starts its process, waits until that can work, and starts it again when it ends.

Where the process is and how it is started is a `Transport`: a child on this machine (`children`), or an actor of Ray
anywhere in a cluster (`ray`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from uirl.errors import ProcessLost, RolloutFailure, UirlError
from uirl.workers.peer import Handler, Peer, PeerLost, Pictures

_LOG = logging.getLogger(__name__)
START_ATTEMPTS = 3
"""Deaths in a row before it could work, after which it is given up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between a death and the next start: doubled with each life in a row that was of no use."""
STOP_SECONDS = 20.0
"""That a worker has to free what it holds when the run ends."""
END_SECONDS = 10.0
"""Until a process that is killed counts as one that cannot be."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Process(Protocol):
    """One process that was started."""

    @property
    def node(self) -> str | None:
        """The node of the Ray cluster that it is on; None: it is on this machine."""
        ...

    async def ended(self) -> str:
        """Wait for its end and say how it ended; cancelling the wait ends nothing."""
        ...

    def stop(self) -> None:
        """Ask it to end, with all it started; it has some seconds."""
        ...

    def kill(self) -> None:
        """End it and all it started, at once. Calling it twice is fine."""
        ...

    def last_words(self) -> str:
        """Return the last lines that it printed."""
        ...


class Transport(Protocol):
    """Starts processes, and carries bytes to and from them."""

    async def start(self, name: str, program: str, /) -> tuple[Process, Streams]:
        """Start the worker `name`, which runs 'module:Class'. Raises ProcessLost where it cannot be started now, and
        ConfigError where it never can."""
        ...

    async def close(self) -> None:
        """Free what is shared between processes. Calling it twice is fine."""
        ...


class Supervisor:
    """Keeps the worker `name` alive from `begin` to `close`.

    `program`: what it runs, 'module:Class' of a `Worker`. `start`: called with each new process; when it returns, the
    worker can work. What it raises that a new process would not mend ends the attempts: see `refused`. `handlers`: what
    the worker may call. `pictures`: where those lie that it names. `silence`: seconds without a sign of life after
    which it is killed, once it works. `persistent`: one that has worked is started again however often it fails then.
    `on_change`: called whenever `state`, `pid` or `incarnation` changed.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        program: str,
        start: Callable[[Peer], Awaitable[Any]],
        *,
        handlers: Mapping[str, Handler] | None = None,
        pictures: Pictures | None = None,
        silence: float | None = None,
        start_seconds: float = 300.0,
        persistent: bool = False,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.name, self.state, self.since, self.incarnation = name, "not started", time.time(), 0
        self.pid: int | None = None
        self.host: str | None = None
        """The machine of the process `pid`; None: nobody is there yet."""
        self.node: str | None = None
        """The node of the Ray cluster that the newest process is on; None: it is on this machine."""
        self.process: Process | None = None
        self.peer: Peer | None = None
        """What asks the worker; None: there is none that can work."""
        self.useful = False
        """Whether the present process did what it is there for; whoever asks it says so."""
        self.leaving: str | None = None
        """Why the present process is replaced; None: it is not."""
        self.refused: BaseException | None = None
        """Why it is not started again; None: it is."""
        self.why = "it was not started"
        """How the process before ended."""
        self.words = ""
        """What it printed last, in a sentence."""
        self.on_change = on_change
        self.begun = asyncio.Event()
        """It could work once, or was refused."""
        self._transport, self._program, self._start = transport, program, start
        self.handlers = {**(handlers or {}), "here": self._here}
        """What the worker may call."""
        self._pictures = pictures
        self._silence, self._start_seconds, self._persistent = silence, start_seconds, persistent
        self._worked = self._closing = False
        self._early = self._idle = 0
        """Lives in a row before it could work, and in which it was of no use."""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def waits_for(self) -> str:
        """What is missing until it can work, in words."""
        if self.process is None:
            return "it has no process yet" if self.state == "starting" else self.why
        return "its process imports what it needs" if self.pid is None else "its process gets ready"

    def begin(self) -> None:
        """Start the process, and return before it can work. Calling it twice is fine."""
        if self._keeping is None and not self._closing:
            self._keeping = asyncio.ensure_future(self._keep())

    def replace(self, reason: str) -> None:
        """End the present process, and start another one."""
        self.leaving = reason
        if self.peer is not None:
            self.peer.close(reason)

    async def close(self) -> None:
        """End the process for good; one that works gets time to free what it holds. Calling it twice is fine."""
        self._closing = True
        if self._keeping is not None:
            if self.peer is not None:
                self.peer.close("the run has no more work for it")
            else:
                self._keeping.cancel()  # it cannot work yet, or waits before it is started again
            await asyncio.wait({self._keeping}, timeout=STOP_SECONDS + 2 * END_SECONDS)
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        self._note("stopped")

    # -- life and death --------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        try:
            while not self._closing:
                self.incarnation += 1
                self.pid, self.useful, self.leaving, self.words = None, False, None, ""
                self._note("starting")
                ready = await self._live()
                if self._closing:
                    return
                self._early = 0 if ready else self._early + 1
                self._idle = 0 if self.useful else self._idle + 1
                self._note("lost")
                if self._early >= START_ATTEMPTS and not (self._persistent and self._worked):
                    raise ProcessLost(
                        f"{self.name} died {self._early} times in a row before it could work; the last time: "
                        f"{self.why}. {self.words}"
                    )
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._idle, 10))
                _LOG.warning("%s is gone: %s. It is started again in %.1f s", self.name, self.why, pause)
                await asyncio.sleep(pause)
        except Exception as error:  # nobody else would hear of it
            self.refused = error
            self.begun.set()
            with suppress(Exception):  # where it is the note itself that cannot be made
                self._note("given up")

    async def _live(self) -> bool:
        """Be one process from its start to its end; return whether it could work. Raises what a new process would not
        mend."""
        try:
            self.process, streams = await self._transport.start(self.name, self._program)
        except (ProcessLost, PeerLost, OSError) as error:
            self.why = str(error)
            return False
        self.node = self.process.node
        process, peer = self.process, Peer(*streams, self.handlers, pictures=self._pictures, name=self.name)
        ended = asyncio.ensure_future(process.ended())
        try:
            ready, why = await self._made_ready(peer, ended)
            if ready:
                await asyncio.wait({ended, asyncio.ensure_future(peer.wait_closed())}, return_when="FIRST_COMPLETED")
                why = "" if ended.done() else peer.reason or ""
                self._leave()
            if not ended.done():  # who ends by itself has some time, and says more than a connection that broke
                peer.close(self.leaving or "the learner gives it up")
                process.stop()
                await asyncio.wait({ended}, timeout=STOP_SECONDS if self._closing else 1.0)
            how = ended.result() if ended.done() else ""
            self.why = self.leaving or "; ".join(filter(None, [why, how])) or peer.reason or ""
            words = process.last_words()
            self.words = f"It said:\n{words}" if words else "It said nothing."
            return ready
        finally:
            try:
                self._leave()
            finally:
                peer.close("its process is gone")
                await _end(process, ended, self.name)
                self.process = self.pid = None

    async def _made_ready(self, peer: Peer, ended: asyncio.Future[str]) -> tuple[bool, str]:
        """Return whether the worker came so far that it can work, and why it did not; empty: it ended. Raises what a
        new process would not mend."""
        starting = asyncio.ensure_future(self._start(peer))
        try:
            await asyncio.wait({starting, ended}, timeout=self._start_seconds, return_when="FIRST_COMPLETED")
            if not starting.done():
                return False, "" if ended.done() else f"it could not work {self._start_seconds:g} s after its start"
            starting.result()
        except PeerLost:
            return False, ""
        except Exception as error:
            passes = isinstance(error, RolloutFailure) or not isinstance(error, UirlError)  # the world may mend
            if not passes and not (self._persistent and self._worked):
                raise
            return False, f"{type(error).__name__}: {error}"
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        peer.silence = self._silence  # not before: who loads a model may say nothing for minutes
        self.peer, self._worked = peer, True
        self.begun.set()
        self._note("ready")
        if self.incarnation > 1:  # that the one before is gone was said
            _LOG.warning("%s works again", self.name)
        return True, ""

    def _leave(self) -> None:
        if self.peer is not None:
            self.peer = None
            self._note("ending")

    async def _here(self, pid: int, host: str) -> None:
        self.pid, self.host = pid, host
        self._note(self.state)

    def _note(self, state: str) -> None:
        if state != self.state:
            self.state, self.since = state, time.time()
        if self.on_change is not None:
            self.on_change()


async def _end(process: Process, ended: asyncio.Future[str], name: str) -> None:
    """Kill a process and what it started, and wait until they are gone."""
    process.kill()
    done, _ = await asyncio.wait({ended}, timeout=END_SECONDS)
    if not done:
        ended.cancel()
        _LOG.warning("the process of %s does not end %g s after it was killed", name, END_SECONDS)
