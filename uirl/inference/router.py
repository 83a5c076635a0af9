"""Several engines as one: an episode stays where its cache is, and an engine that dies costs time, not episodes.

A request goes to the engine that holds the cache of its episode, else to the one with the fewest episodes. Seed, prompt
and weights decide a reply, so that another engine can repeat what a lost one was asked. An engine that fails is taken
out, tried again after growing pauses, and gets the newest weights before it serves. Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from uirl.errors import ContractError, EngineFailure, EngineLost, PromptTooLong, SamplingRefused, UirlError
from uirl.inference.base import Counters, Generation, GenerationRequest, InferenceEngine, Weights
from uirl.runtime.time_limits import TimedOut
from uirl.runtime.waiting import SAY_EVERY, wait_for

if TYPE_CHECKING:
    from uirl.inference.weight_files import KeptWeights, WeightStore

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """How long a router waits, and how often it tries. Times are in seconds."""

    patience: float = 120.0
    """A request waits this long for an engine, where all are out."""
    stall: float = 600.0
    """An engine that has requests and answers none of them for this long is lost."""
    update: float = 600.0
    """An engine may take this long to load weights."""
    first_pause: float = 0.5
    """Before an engine that was taken out is tried again; doubled with each failure."""
    longest_pause: float = 15.0
    strikes: int = 3
    """Failures in a row after which an engine is taken out that answers, but never with a reply."""
    losses: int = 3
    """Engines that are lost over one request before it is given up: it may be what kills them."""
    sessions: int = 65536
    """Episodes whose engine is remembered; beyond it the one that was quiet for longest is forgotten."""


@dataclass(slots=True, eq=False)
class _Place:
    """One engine and what the router knows about it."""

    name: str
    engine: InferenceEngine
    out: str | None = None
    """Why it is not asked; None: it is."""
    strikes: int = 0
    pause: float = 0.0
    """Before it is tried again; 0: it has answered since it was taken out."""
    sessions: int = 0
    running: set[asyncio.Timeout] = field(default_factory=set)
    """The time limits of the requests that it works on."""
    heard: float = 0.0
    """When it last answered, or got work after having none."""
    one_shots: int = 0

    @property
    def load(self) -> tuple[int, int, int]:
        """What the least loaded has least of: first suspicion, then episodes, which come again, then requests."""
        return self.strikes, self.sessions + self.one_shots, len(self.running)


class Router(InferenceEngine):
    """One engine out of several that serve the same policy.

    `files`: where the newest weights are kept for engines that come back without any; needed unless every engine keeps
    its weights (`keeps_weights`). Raises ContractError for no engines, and for some that share the learner's module
    beside some that do not.
    """

    def __init__(
        self,
        engines: Sequence[InferenceEngine],
        *,
        names: Sequence[str] | None = None,
        files: WeightStore | None = None,
        limits: RouterLimits = RouterLimits(),
    ) -> None:
        if not engines:
            raise ContractError("a router needs at least one engine, got none")
        if len({engine.shares_weights for engine in engines}) > 1:
            raise ContractError("got engines with and without weights of their own; a router takes one sort")
        if files is None and not all(engine.keeps_weights for engine in engines):
            raise ContractError(
                "engines that may lose their weights need a place for the newest ones; give the router `files`"
            )
        names = names or [f"engine {number}" for number in range(len(engines))]
        self._places = [_Place(name, engine) for name, engine in zip(names, engines, strict=True)]
        self.limits = limits
        self.policy_version = max(engine.policy_version for engine in engines)
        self.shares_weights = engines[0].shares_weights
        self.keeps_weights = True
        self.takes_adapters = all(engine.takes_adapters for engine in engines)
        self.takes_weights = all(engine.takes_weights for engine in engines)
        self._files = files
        self._newest: KeptWeights | None = None
        self._sessions: OrderedDict[str, _Place] = OrderedDict()
        self._updating = asyncio.Lock()
        self._came_back = asyncio.Event()
        self._tasks: dict[_Place | None, asyncio.Task[None]] = {}
        """What brings an engine back; under None the watch over those that work."""
        self._counters = Counters()
        self._closed = False

    @property
    def engines(self) -> list[InferenceEngine]:
        """All engines, in the order given."""
        return [place.engine for place in self._places]

    @property
    def out(self) -> dict[str, str]:
        """Why an engine is not asked at present, by its name."""
        return {place.name: place.out for place in self._places if place.out is not None}

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        failed: dict[_Place, EngineFailure] = {}
        losses: list[str] = []
        while True:
            place = await self._choose(request.session_id, failed)
            try:
                generation = await self._ask(place, request)
            except (PromptTooLong, SamplingRefused):
                raise
            except (EngineLost, OSError) as error:
                losses.append(self._take_out(place, error))
                if len(losses) >= self.limits.losses:
                    raise EngineFailure(
                        f"{len(losses)} engines were lost over one request ({'; '.join(losses)}); it is given up, as "
                        "it may be what ends them: look for the memory that such a prompt takes"
                    ) from error
            except EngineFailure as error:
                place.strikes += 1
                failed[place] = error
                if place.strikes >= self.limits.strikes:
                    self._take_out(place, error)
                if all(other in failed or other.out for other in self._places):
                    raise
            else:
                place.strikes, place.pause = 0, 0.0
                for other, why in failed.items():
                    # it failed what another one can, and has answered nothing since
                    if other.strikes and other.out is None:
                        self._take_out(other, why)
                return generation
            self._counters.add("engine_moves", 1)

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        """Send the weights to every engine that is in; those that are out get them before they serve again. Raises what
        an engine raises that refuses them; one that is lost meanwhile is taken out."""
        async with self._updating:
            old, kept = self._newest, weights
            if weights is not None and self._files is not None:
                kept = await asyncio.to_thread(self._files.write_snapshot, weights, version, adapter)
                self._newest = kept
            elif weights is not None and len(self._places) > 1:
                kept = list(weights)
            self.policy_version = version
            try:
                places = [place for place in self._places if place.out is None]
                results = await asyncio.gather(
                    *[self._send(place, kept, version, adapter) for place in places], return_exceptions=True
                )
            finally:
                if old is not None and old is not self._newest:
                    old.remove()
            for place, error in zip(places, results, strict=True):
                if error is None:
                    continue
                if not self._may_go_on_without(error):
                    raise error
                self._take_out(place, error)

    def release(self, session_id: str) -> None:
        place = self._sessions.pop(session_id, None)
        if place is not None:
            place.sessions -= 1
            place.engine.release(session_id)

    def stats(self) -> dict[str, float]:
        """Counters since the last call, summed over the engines. `engine_moves`: requests that another engine had to
        answer; `engines_out`: how often an engine was taken out."""
        for place in self._places:
            for name, value in place.engine.stats().items():
                self._counters.add(name, value)
        return self._counters.take()

    async def close(self) -> None:
        self._closed = True
        self._came_back.set()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*[place.engine.close() for place in self._places])
        if self._files is not None:
            self._files.close()

    # -- which engine ------------------------------------------------------------------------------------------

    async def _choose(self, session: str | None, failed: Mapping[_Place, object]) -> _Place:
        """Return the engine that answers, which holds the session from now on."""
        held = self._sessions.get(session) if session is not None else None
        if held is None or held.out is not None or held in failed:
            until = asyncio.get_running_loop().time() + self.limits.patience
            while not (able := [each for each in self._places if each.out is None and each not in failed]):
                await self._wait(until)
            place = min(able, key=lambda each: each.load)
        else:
            place = held
        if session is not None:
            self._hold(session, place)
        return place

    def _hold(self, session: str, place: _Place) -> None:
        """Remember where a session is; elsewhere it is forgotten."""
        held = self._sessions.get(session)
        if held is not place:
            self.release(session)
            self._sessions[session] = place
            place.sessions += 1
        self._sessions.move_to_end(session)
        if len(self._sessions) > self.limits.sessions:
            self.release(next(iter(self._sessions)))

    async def _wait(self, until: float) -> None:
        """Wait until an engine comes back. Raises EngineFailure with what is wrong with each."""
        self._came_back.clear()
        if self.out and not self._closed:
            try:
                left = until - asyncio.get_running_loop().time()
                await wait_for(f"an engine ({self._why_out()})", self._came_back.wait(), left)
            except TimedOut:
                raise EngineFailure(
                    f"no engine can be asked, and none came back in {self.limits.patience:g} s ({self._why_out()}); "
                    "see above what ended them"
                ) from None
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")

    def _why_out(self) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self.out.items())

    # -- one request -------------------------------------------------------------------------------------------

    async def _ask(self, place: _Place, request: GenerationRequest) -> Generation:
        """Return the engine's reply. Raises EngineLost where it answers nobody for too long."""
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")
        loop = asyncio.get_running_loop()
        if not place.running:
            place.heard = loop.time()
        one_shot = request.session_id is None
        place.one_shots += one_shot
        limit = asyncio.timeout(None)
        try:
            async with limit:
                place.running.add(limit)
                if None not in self._tasks or self._tasks[None].done():
                    self._tasks[None] = asyncio.create_task(self._watch())
                return await place.engine.generate(request)
        except TimeoutError as error:
            if not limit.expired():
                raise EngineLost(f"{place.name} ran out of time: {error}") from error
            raise EngineLost(f"{place.name} answered no request for {self.limits.stall:g} s") from None
        finally:
            place.running.discard(limit)
            place.one_shots -= one_shot
            place.heard = loop.time()

    async def _watch(self) -> None:
        """End the requests of engines that answer none of them."""
        loop, said = asyncio.get_running_loop(), dict[_Place, float]()
        while any(place.running for place in self._places):
            await asyncio.sleep(min(self.limits.stall / 4, SAY_EVERY))
            for place in self._places:
                quiet = loop.time() - place.heard
                if not place.running:
                    continue
                if quiet >= self.limits.stall:
                    for limit in list(place.running):
                        limit.reschedule(loop.time())
                elif quiet >= SAY_EVERY and loop.time() - said.get(place, 0.0) >= SAY_EVERY:
                    said[place] = loop.time()
                    _LOG.warning("%d requests wait for %s, quiet for %.0f s", len(place.running), place.name, quiet)

    # -- out and in again --------------------------------------------------------------------------------------

    def _take_out(self, place: _Place, error: BaseException) -> str:
        """Ask the engine no more until it was brought back; return the reason."""
        reason = f"{place.name}: {type(error).__name__}: {error}"
        if place.out is None and not self._closed:
            place.out, place.strikes = f"{type(error).__name__}: {error}", 0
            place.pause = min(2 * place.pause or self.limits.first_pause, self.limits.longest_pause)
            self._counters.add("engines_out", 1)
            _LOG.warning("%s is taken out and tried again in %.1f s: %s", place.name, place.pause, place.out)
            self._tasks[place] = asyncio.create_task(self._bring_back(place))
        return reason

    async def _bring_back(self, place: _Place) -> None:
        """Try until the engine holds the newest weights, then ask it again."""
        tries = 0
        while True:
            await asyncio.sleep(place.pause)
            version, newest = self.policy_version, self._newest
            try:
                await wait_for(f"a sign of {place.name}", place.engine.probe(), self.limits.patience)
                if place.engine.keeps_weights and place.engine.policy_version == version:
                    pass  # nothing that it holds was lost
                elif newest is not None:
                    await self._send(place, newest, newest.version, newest.adapter)
                elif self.shares_weights:
                    await self._send(place, None, version, None)
            except Exception as error:
                tries += 1
                if newest is self._newest:  # else the file went while it was read: no fault of the engine
                    place.out = f"{type(error).__name__}: {error}"
                    place.pause = min(2 * place.pause, self.limits.longest_pause)
                _LOG.warning("%s is not back after %d tries: %s", place.name, tries, place.out)
                continue
            if self.policy_version == version:
                break
        place.out = None
        self._came_back.set()
        _LOG.warning("%s is back, with weights of version %d", place.name, self.policy_version)

    async def _send(
        self, place: _Place, weights: Weights | None, version: int, adapter: Mapping[str, Any] | None
    ) -> None:
        sending = place.engine.update_weights(weights, version, adapter=adapter)
        try:
            await wait_for(f"{place.name} to load version {version}", sending, self.limits.update)
        except TimedOut as error:
            raise EngineLost(str(error)) from error

    def _may_go_on_without(self, error: BaseException) -> bool:
        """Whether an update may leave an engine behind: not one that refuses the weights, and not where nobody keeps
        them for it."""
        if self._newest is None and not self.shares_weights:
            return False
        return isinstance(error, EngineFailure | OSError) or not isinstance(error, UirlError)
