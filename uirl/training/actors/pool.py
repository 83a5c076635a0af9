"""The actors of a run: who plays which episode, who is gone, who is started again, and when to give up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from uirl.errors import ActorFailure, ContractError, ProcessLost, RolloutFailure, UirlError
from uirl.inference.base import InferenceEngine
from uirl.inference.remote import EngineDoor
from uirl.peers.codec import ToldError
from uirl.peers.gate import Gate, Visitor
from uirl.peers.greeting import NotAdmitted
from uirl.peers.peer import Peer, PeerLost
from uirl.peers.pictures import SharedPictures
from uirl.peers.way import Way
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.actors.job import ActorJob, Played, Ready
from uirl.training.actors.launcher import ActorProcess, Launcher

_LOG = logging.getLogger(__name__)

START_SECONDS = 300.0
"""That an actor has from its start until it can play: it may have to read a large tokenizer from a slow disk."""
START_ATTEMPTS = 3
"""Deaths in a row before it could play, after which the run stops."""
VAIN_DEATHS = 6
"""Deaths per actor of the run, with episodes under way and none finished by any of them meanwhile, after which the run
stops: what is played ends their processes."""
STOP_SECONDS = 20.0
"""That an actor has to close its environments when the run ends."""
END_SECONDS = 10.0
"""Until a process that is killed counts as one that cannot be."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between a death and the next start: doubled with each life in which no episode was finished."""
STUCK_CALLS = 3
"""Calls of its environments that an actor has given up and that have not come back, at which it is replaced: nothing
else ends them, and each takes from the others what it computes."""
SAY_EVERY = 30.0


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one actor, which several processes fill one after the other."""

    name: str
    incarnation: int = 0
    state: str = "to be started"
    pid: int | None = None
    host: str | None = None
    """The machine of the process `pid`; None: nobody has come in."""
    since: float = field(default_factory=time.time)
    places: int = 0
    active: int = 0
    finished: int = 0
    """Episodes that this incarnation played to their end."""
    begun: bool = False
    """Whether this incarnation was given an episode."""
    peer: Peer | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    early_deaths: int = 0
    idle_lives: int = 0
    """In a row in which no episode was finished."""
    leaving: str | None = None
    """Why it is to be replaced once it plays nothing; None: it stays."""

    @property
    def takes_more(self) -> bool:
        """Whether it can be given another episode. One whose connection has ended cannot, before anybody noted it: it
        would fail each attempt at once, and has the fewest episodes."""
        connected = self.peer is not None and self.peer.reason is None
        return connected and self.state == "ready" and self.active < self.places and self.leaving is None


class ActorPool:
    """Keeps the actors `names` alive, and plays episodes on the least busy of them.

    `launcher` starts their processes, which come in through the pool's gate and are handed `made`; `probe`: a prompt as
    the learner's chat template writes it, which theirs must write too. `on_change` hears of every change of a seat.
    """

    def __init__(
        self,
        launcher: Launcher,
        names: Sequence[str],
        job: ActorJob,
        engine: InferenceEngine,
        *,
        made: bytes | None = None,
        probe: tuple[int, ...] = (),
        host: str = "127.0.0.1",
        silence: float | None = None,
        pictures: SharedPictures | None = None,
        on_change: Callable[[Seat], None] | None = None,
    ) -> None:
        self.seats = [Seat(name) for name in names]
        self.deaths = 0
        """Of actors, those at their start included."""
        self.gate = Gate(self._admit, host=host, pictures=pictures, silence=silence)
        self.address = host
        """Where actors dial, if not where the gate listens."""
        self.on_change = on_change
        self._launcher, self._job, self._made, self._engine, self._probe = launcher, job, made, engine, probe
        self._waiting: deque[asyncio.Future[Seat]] = deque()
        self._keepers: list[asyncio.Task[None]] = []
        self._vain_deaths = 0
        """Of actors that had been given episodes and finished none, since any of them finished one."""
        self._error: BaseException | None = None
        self._closing = False
        self._leaving: set[asyncio.Future[str]] = set()

    async def start(self) -> None:
        """Open the gate and begin to start the actors; return before they are ready. Twice is fine."""
        if self._keepers or self._closing:
            return
        await self.gate.open()
        if not self._keepers:
            self._keepers = [asyncio.ensure_future(self._keep(seat)) for seat in self.seats]
            for keeper in self._keepers:
                keeper.add_done_callback(self._hear_of_end)
            self._keepers.append(asyncio.ensure_future(self._say_what_is_waited_for()))

    async def play(self, spec: EpisodeSpec, order: Order) -> Played:
        """Play one attempt on the actor that has the fewest episodes.

        Raises ActorFailure where the actor is lost meanwhile, and what ends the run: ProcessLost where actors die
        again and again before they can play, or before any of them finishes an episode; what broke an actor for good;
        what a wrong config raises in it.
        """
        seat = await self._lease()
        peer, incarnation = seat.peer, seat.incarnation
        assert peer is not None
        seat.begun = True
        try:
            played: Played = await peer.call("play", spec, order, returns=Played)
            if seat.incarnation == incarnation and played.stuck >= STUCK_CALLS:
                seat.leaving = f"{played.stuck} calls of its environments were given up and have not come back"
        except PeerLost as error:
            raise ActorFailure(f"the actor that played this episode is lost: {error}") from error
        finally:
            if seat.incarnation == incarnation:
                self._give_back(seat)
        seat.finished, self._vain_deaths = seat.finished + 1, 0
        return played

    async def close(self) -> None:
        """End all actors: they get time to close their environments. Calling it twice is fine."""
        self._closing = True
        self._break(ProcessLost("the actors were stopped"))
        if self._keepers:
            *keepers, talk = self._keepers
            for seat, keeper in zip(self.seats, keepers, strict=True):
                if seat.state == "ready" and seat.peer is not None:
                    seat.peer.close("the run has no more work for it")
                else:
                    keeper.cancel()  # it is not ready, or waits before it is started again
            talk.cancel()
            _, late = await asyncio.wait(keepers, timeout=STOP_SECONDS + 2 * END_SECONDS)
            for keeper in late:
                keeper.cancel()
            await asyncio.gather(*self._keepers, return_exceptions=True)
            self._keepers.clear()
        for seat in self.seats:  # also those whose keeper was cut off
            self._change(seat, "stopped")
        await self.gate.close()
        await self._launcher.close()

    # -- leases ----------------------------------------------------------------------------------------------------

    async def _lease(self) -> Seat:
        if self._error is not None:
            raise self._error
        seat = self._least_busy()
        if seat is not None and not self._waiting:
            seat.active += 1
            return seat
        waiter: asyncio.Future[Seat] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())  # it came too late
            raise

    def _give_back(self, seat: Seat) -> None:
        """Free a place. A seat that is to be replaced is, once it plays nothing, however its last episode ended."""
        seat.active -= 1
        if seat.leaving is not None and seat.active == 0 and seat.peer is not None:
            seat.peer.close(seat.leaving)
        self._hand_out()

    def _least_busy(self) -> Seat | None:
        free = [seat for seat in self.seats if seat.takes_more]
        return min(free, key=lambda seat: seat.active / seat.places, default=None)

    def _hand_out(self) -> None:
        """Give free places to those who wait, in the order in which they came."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()  # it was given up
                continue
            seat = self._least_busy()
            if seat is None:
                return
            seat.active += 1
            self._waiting.popleft().set_result(seat)

    def _break(self, error: BaseException) -> None:
        """Let no more episodes begin; who waits and who comes hears why."""
        if self._error is None:
            self._error = error
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(self._error)
        self._waiting.clear()

    # -- arrivals --------------------------------------------------------------------------------------------------

    def _admit(self, about: dict[str, Any]) -> Visitor:
        name, incarnation = about.get("actor"), about.get("incarnation")
        seat = next((seat for seat in self.seats if seat.name == name), None)
        if seat is None:
            raise NotAdmitted(f"there is no actor {name!r} in this run")
        if incarnation != seat.incarnation or seat.peer is not None or seat.state != "starting":
            raise NotAdmitted(f"start {incarnation} of {name} is not expected: it is {seat.state} ({seat.incarnation})")
        door = EngineDoor(self._engine)

        async def job() -> ActorJob:
            return self._job

        async def ready(words: Ready) -> None:
            if self._probe and words.probe != self._probe:
                self._break(
                    ContractError(
                        f"{name} writes a prompt as other tokens than the learner does (model.chat_template, "
                        "tokenizer, tools): a policy object was handed over that the config does not describe, or "
                        "the two machines do not have the same files; describe the model in the config alone"
                    )
                )
                return
            seat.places, seat.active = words.places, 0
            self._change(seat, "ready")
            seat.ready.set()
            self._hand_out()

        async def failed(told: ToldError) -> None:
            error = told.made()
            # a wrong config stays wrong; what the world does may pass
            if isinstance(error, UirlError) and not isinstance(error, RolloutFailure):
                self._break(error)

        def arrived(peer: Peer) -> None:
            seat.peer, seat.pid, seat.host = peer, about.get("pid"), about.get("host")
            self._change(seat, "starting")
            leaving = asyncio.ensure_future(peer.wait_closed())
            leaving.add_done_callback(lambda _: door.close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

        return Visitor(str(name), {**door.handlers, "job": job, "ready": ready, "failed": failed}, arrived)

    # -- life and death --------------------------------------------------------------------------------------------

    async def _keep(self, seat: Seat) -> None:
        """Fill a seat again and again."""
        while not self._closing and self._error is None:
            seat.incarnation += 1
            seat.peer, seat.pid, seat.places, seat.active, seat.finished = None, None, 0, 0, 0
            seat.begun, seat.leaving = False, None
            seat.ready.clear()
            self._change(seat, "starting")
            words = ""
            try:
                way = Way(self.address, self.gate.port, seat.name, seat.incarnation, self.gate.token)
                process = await self._launcher.launch(way, self._made)
                try:
                    reason = await self._live(seat, process)
                finally:
                    await _end(process)
                words = process.last_words()
            except (ProcessLost, OSError) as error:
                reason = str(error)
            except UirlError as error:  # a wrong config stays wrong
                reason = str(error)
                self._break(error)
            except Exception as error:  # a wrong config, or a mistake of ours: nobody else would hear of it
                self._break(error)
                reason = str(error)
            was_ready = seat.ready.is_set()
            self._change(seat, "lost")
            if self._closing or self._error is not None:
                break
            self._count_death(seat, was_ready, reason, words)
            if self._error is None:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(seat.idle_lives, 10))
                _LOG.warning("%s is gone: %s. It is started again in %.1f s", seat.name, reason, pause)
                await asyncio.sleep(pause)
        self._change(seat, "stopped")

    def _hear_of_end(self, keeper: asyncio.Task[None]) -> None:
        """End the run where a seat is not kept any more, which nobody else would hear of: a full disk, say."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._break(error)

    def _count_death(self, seat: Seat, was_ready: bool, reason: str, words: str) -> None:
        self.deaths += 1
        seat.idle_lives = 0 if seat.finished else seat.idle_lives + 1
        seat.early_deaths = 0 if was_ready else seat.early_deaths + 1
        self._vain_deaths += seat.begun and not seat.finished
        said = f"It said:\n{words}" if words else "It said nothing."
        if seat.early_deaths >= START_ATTEMPTS:
            self._break(
                ProcessLost(
                    f"{seat.name} died {seat.early_deaths} times in a row before it could play; the last time: "
                    f"{reason}. {said}"
                )
            )
        elif self._vain_deaths >= VAIN_DEATHS * len(self.seats):
            self._break(
                ProcessLost(
                    f"actors died {self._vain_deaths} times in a row with episodes under way, and finished none "
                    f"meanwhile; the last was {seat.name}: {reason}. Expected the environment to leave its process "
                    "alive: call its `reset` and `step` in a script of your own to see what ends it (a crash in C, "
                    f"os._exit, a signal, memory). {said}"
                )
            )

    async def _live(self, seat: Seat, process: ActorProcess) -> str:
        """Wait until the actor is gone, and say how. While the pool closes it gets time to go by itself."""
        ended = asyncio.ensure_future(process.ended())
        ready = asyncio.ensure_future(seat.ready.wait())
        lost: asyncio.Future[str] | None = None
        try:
            await asyncio.wait({ended, ready}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return ended.result()
            if not ready.done():
                return f"it was not ready to play {START_SECONDS:g} s after its start"
            assert seat.peer is not None
            lost = asyncio.ensure_future(seat.peer.wait_closed())
            await asyncio.wait({ended, lost}, return_when=asyncio.FIRST_COMPLETED)
            # who ends by itself has some time, and says more than a connection that broke
            if not ended.done():
                process.stop()
                await asyncio.wait({ended}, timeout=STOP_SECONDS if self._closing else 1.0)
            return seat.leaving or (ended.result() if ended.done() else lost.result())
        finally:
            self._change(seat, "ending")
            if seat.peer is not None:
                seat.peer.close("its process is gone")
            for future in (ended, ready, lost):
                if future is not None:
                    future.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await future

    async def _say_what_is_waited_for(self) -> None:
        while True:
            await asyncio.sleep(SAY_EVERY)
            if self._waiting and not any(seat.state == "ready" for seat in self.seats):
                now = time.time()
                states = ", ".join(f"{seat.name} {seat.state} for {now - seat.since:.0f} s" for seat in self.seats[:8])
                _LOG.warning("%d episodes wait for an actor that is ready: %s", len(self._waiting), states)

    def _change(self, seat: Seat, state: str) -> None:
        if state != seat.state:
            seat.state, seat.since = state, time.time()
        if self.on_change is not None:
            self.on_change(seat)


async def _end(process: ActorProcess) -> None:
    """Kill a process and what it started, and wait until they are gone."""
    process.kill()
    ended = asyncio.ensure_future(process.ended())
    done, _ = await asyncio.wait({ended}, timeout=END_SECONDS)
    if not done:
        ended.cancel()
        _LOG.warning("process %s does not end %g s after it was killed", process.pid, END_SECONDS)
