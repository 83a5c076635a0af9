"""The channel of a run whose episodes are played by actors in other processes, on this machine or in a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uirl.errors import ActorFailure, ConfigError, ContractError, ProcessLost
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, Weights
from uirl.inference.workers import ServedEngine, demand_of
from uirl.rollout.collector import not_begun
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.assembly import Assembly
from uirl.training.channels.base import Channel, GroupRules
from uirl.training.channels.episodes import ActorJob, EpisodeWorker, Played, Ready, job_for, probe_of
from uirl.training.record.progress import say
from uirl.types import Trajectory
from uirl.workers.children import Children
from uirl.workers.peer import Peer, PeerLost
from uirl.workers.pictures import SharedImageStore, SharedPictures
from uirl.workers.ray import Needs, RayCluster, RayTransport
from uirl.workers.supervisor import Supervisor, Transport
from uirl.workers.worker import program_of

_LOG = logging.getLogger(__name__)
PRELOADED = (EpisodeWorker.__module__, "uirl.inference.embedded.engine")
VAIN_DEATHS = 6
"""Deaths per actor of the run, with episodes under way and none finished by any of them meanwhile, after which the run
stops: what is played ends their processes."""
STUCK_CALLS = 3
"""Calls of its environments that an actor has given up and that have not come back, at which it is replaced: nothing
else ends them, and each takes from the others what it computes."""
SAY_EVERY = 30.0


@dataclass(slots=True, eq=False)
class _Life:
    """What one process of an actor plays."""

    places: int = 0
    active: int = 0
    given: bool = False
    """Whether it was given an episode."""


class Actor(Supervisor):
    """One actor, of which several processes play episodes one after the other."""

    life: _Life = _Life()

    @property
    def takes_more(self) -> bool:
        """Whether it can be given another episode. One whose connection has ended cannot, before anybody noted it: it
        would fail each attempt at once, and has the fewest episodes."""
        connected = self.peer is not None and self.peer.reason is None
        return connected and self.life.active < self.life.places and self.leaving is None


class ActorPool:
    """Keeps the actors `names` alive, and plays episodes on the least busy of them.

    `transport` starts their processes, which are handed `made`; `probe`: a prompt as the learner's chat template writes
    it, which theirs must write too. `on_change` hears of every change of an actor.
    """

    def __init__(
        self,
        transport: Transport,
        names: Sequence[str],
        job: ActorJob,
        engine: InferenceEngine,
        *,
        made: bytes | None = None,
        probe: tuple[int, ...] = (),
        silence: float | None = None,
        pictures: SharedPictures | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.deaths = 0
        """Of actors, those at their start included."""
        self._transport, self._job, self._made, self._probe = transport, job, made, probe
        self._silence, self._pictures, self._on_change = silence, pictures, on_change
        self._waiting: deque[asyncio.Future[Actor]] = deque()
        self._vain_deaths = 0
        """Of actors that had been given episodes and finished none, since any of them finished one."""
        self._error: BaseException | None = None
        self._closing = False
        self._talk: asyncio.Task[None] | None = None
        self.actors = [self._actor(name, ServedEngine(engine)) for name in names]

    def start(self) -> None:
        """Begin to start the actors; return before they are ready. Twice is fine."""
        if self._talk is None and not self._closing:
            self._talk = asyncio.ensure_future(self._say_what_is_waited_for())
            for actor in self.actors:
                actor.begin()

    async def play(self, spec: EpisodeSpec, order: Order) -> Played:
        """Play one attempt on the actor that has the fewest episodes.

        Raises ActorFailure where the actor is lost meanwhile, and what ends the run: ProcessLost where actors die
        again and again before they can play, or before any of them finishes an episode; what broke an actor for good;
        what a wrong config raises in it.
        """
        actor = await self._lease()
        peer, life = actor.peer, actor.life
        assert peer is not None
        life.given = True
        try:
            played: Played = await peer.call("play", spec, order, returns=Played)
            if life is actor.life:
                actor.useful, self._vain_deaths = True, 0
                if played.stuck >= STUCK_CALLS:
                    actor.leaving = f"{played.stuck} calls of its environments were given up and have not come back"
        except PeerLost as error:
            raise ActorFailure(f"the actor that played this episode is lost: {error}") from error
        finally:
            self._give_back(actor, life)
        return played

    async def close(self) -> None:
        """End all actors: they get time to close their environments. Calling it twice is fine."""
        self._closing = True
        self._break(ProcessLost("the actors were stopped"))
        if self._talk is not None:
            self._talk.cancel()
        await asyncio.gather(*[actor.close() for actor in self.actors])
        await self._transport.close()

    # -- leases ----------------------------------------------------------------------------------------------------

    async def _lease(self) -> Actor:
        if self._error is not None:
            raise self._error
        actor = self._least_busy()
        if actor is not None and not self._waiting:
            actor.life.active += 1
            return actor
        waiter: asyncio.Future[Actor] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result(), waiter.result().life)  # it came too late
            raise

    def _give_back(self, actor: Actor, life: _Life) -> None:
        """Free a place. An actor that is to be replaced is, once it plays nothing, however its last episode ended."""
        life.active -= 1
        if life is actor.life and actor.leaving is not None and life.active == 0:
            actor.replace(actor.leaving)
        self._hand_out()

    def _least_busy(self) -> Actor | None:
        free = [actor for actor in self.actors if actor.takes_more]
        return min(free, key=lambda actor: actor.life.active / actor.life.places, default=None)

    def _hand_out(self) -> None:
        """Give free places to those who wait, in the order in which they came."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()  # it was given up
                continue
            actor = self._least_busy()
            if actor is None:
                return
            actor.life.active += 1
            self._waiting.popleft().set_result(actor)

    def _break(self, error: BaseException) -> None:
        """Let no more episodes begin; who waits and who comes hears why."""
        if self._error is None:
            self._error = error
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(self._error)
        self._waiting.clear()

    # -- actors ----------------------------------------------------------------------------------------------------

    def _actor(self, name: str, served: ServedEngine) -> Actor:
        async def start(peer: Peer) -> None:
            try:
                ready: Ready = await peer.call("start", self._job, self._made, returns=Ready)
            except ConfigError as error:
                if actor.node is None:
                    raise
                raise ConfigError(
                    f"{name} on Ray's node {actor.node}: {error}. The learner can do that, so this node lacks packages "
                    "or files that the learner has. A module of your own is found by PYTHONPATH in the shell that runs "
                    "`ray start` there, or in the learner's folder at the same path (docs/ray.md)"
                ) from error
            if self._probe and ready.probe != self._probe:
                raise ContractError(
                    f"{name} writes a prompt as other tokens than the learner does (model.chat_template, tokenizer, "
                    "tools): a policy object was handed over that the config does not describe, or the two machines "
                    "do not have the same files; describe the model in the config alone"
                )
            actor.life = _Life(ready.places)

        actor = Actor(
            name,
            self._transport,
            program_of(EpisodeWorker),
            start,
            handlers=served.handlers,
            pictures=self._pictures,
            silence=self._silence,
            on_change=lambda: self._changed(actor, served),
        )
        return actor

    def _changed(self, actor: Actor, served: ServedEngine) -> None:
        if actor.state == "ready":
            self._hand_out()
        elif actor.state == "lost":
            self.deaths += 1
            self._vain_deaths += actor.life.given and not actor.useful
            actor.life = _Life()
        elif actor.state == "given up" and actor.refused is not None:
            self._break(actor.refused)
        if actor.peer is None:
            served.close()
        if self._vain_deaths >= VAIN_DEATHS * len(self.actors):
            self._break(
                ProcessLost(
                    f"actors died {self._vain_deaths} times in a row with episodes under way, and finished none "
                    f"meanwhile; the last was {actor.name}: {actor.why}. Expected the environment to leave its process "
                    "alive: call its `reset` and `step` in a script of your own to see what ends it (a crash in C, "
                    f"os._exit, a signal, memory). {actor.words}"
                )
            )
        if self._on_change is not None:
            self._on_change()

    async def _say_what_is_waited_for(self) -> None:
        while True:
            await asyncio.sleep(SAY_EVERY)
            if self._waiting and not any(actor.state == "ready" for actor in self.actors):
                now = time.time()
                states = ", ".join(
                    f"{one.name} {one.state} for {now - one.since:.0f} s ({one.waits_for})" for one in self.actors[:8]
                )
                _LOG.warning("%d episodes wait for an actor that is ready: %s", len(self._waiting), states)


class WorkerChannel(Channel):
    """Episodes are played by the actors of a pool; the engine is the learner's. `transport` starts their processes."""

    def __init__(self, parts: Assembly, transport: Transport, count: int, rules: GroupRules) -> None:
        """`count` actors share the places for episodes. Raises ConfigError for what other processes cannot make."""
        super().__init__(parts, rules)
        self._images: ImageStore = parts.images
        pictures = self._images.shared if isinstance(self._images, SharedImageStore) else None
        job, made = job_for(
            parts.config.to_dict(),
            str(parts.config.logging.at(".")),
            {split: math.ceil(collector.at_once / count) for split, collector in self._collectors.items()},
            pictures=pictures,
            environment=parts.environment if parts.config.environment.is_object else None,
            reward_fn=parts.collector.options.reward_fn,
        )
        self.pool = ActorPool(
            transport,
            [f"actor-{i}" for i in range(count)],
            job,
            parts.engine,
            made=made,
            probe=probe_of(parts.chat),
            silence=parts.config.actors.silence,
            pictures=pictures,
            on_change=self._note,
        )

    async def play_once(self, spec: EpisodeSpec, order: Order) -> Trajectory:
        self.pool.start()
        try:
            played = await self.pool.play(spec, order)
        except ActorFailure as error:
            return not_begun(spec, error)
        for picture in played.pictures:
            self._images.put(picture)
        return played.trajectory

    async def publish(self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None) -> None:
        self.pool.start()  # they get ready meanwhile
        await super().publish(weights, version, adapter=adapter)

    def keep_table(self, folder: Path) -> None:
        super().keep_table(folder)
        self._note()

    async def close(self) -> None:
        await self.give_up()
        await self.pool.close()
        await super().close()

    def _note(self) -> None:
        if self._table is not None:
            self._table.set("actor", self.pool.actors)


def process_channel(parts: Assembly, rules: GroupRules) -> WorkerChannel:
    """Return a channel whose actors are processes of this machine, `actors.processes` of them."""
    children = Children(lambda actor, line: say(f"[{actor}] {line}"), PRELOADED)
    return WorkerChannel(parts, children, parts.config.actors.processes, rules)


def ray_channel(parts: Assembly, rules: GroupRules) -> WorkerChannel:
    """Return a channel whose actors are in a Ray cluster, `ray.num_actors` of them. Raises ConfigError where there is
    none."""
    settings = parts.config.ray
    cluster = RayCluster(settings.address, demand_of(settings, parts.config.engines_in_ray))
    keys = "ray.actor_cpus, ray.actor_resources"
    needs = Needs(settings.actor_cpus, resources=settings.actor_resources, keys=keys, fewer="ray.num_actors")
    try:
        return WorkerChannel(parts, RayTransport(cluster, needs, settings.start_seconds), settings.num_actors, rules)
    except BaseException:
        cluster.close()
        raise
