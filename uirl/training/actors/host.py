"""The process of one actor: environments, a chat template without weights, and an engine that asks the learner."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from uirl.config import ConfigStore
from uirl.environments.registry import create_environment
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine
from uirl.inference.models.loading import load_model
from uirl.inference.remote import GateEngine
from uirl.peers.codec import ToldError
from uirl.peers.greeting import dial
from uirl.peers.peer import Peer
from uirl.peers.pictures import SharedImageStore, SharedPictures
from uirl.peers.way import Way
from uirl.rollout.collector import Collector, chat_for, options_of
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order, Players
from uirl.runtime.time_limits import TimedOut, within
from uirl.storage.records import as_stored, pictures_of
from uirl.training.actors.job import ActorJob, Played, Ready, made_of, probe_of
from uirl.training.assembly import sampling_of
from uirl.verification.setup import verifier_of

_LOG = logging.getLogger(__name__)

PIXELS = 16 * 2**20
"""Bytes of processed pictures that an actor keeps: it has no model, and there may be dozens on a machine."""
CLOSE_SECONDS = 8.0
"""That environments have to end when the learner is gone or is done with them."""


class ActorHost:
    """Plays single attempts at episodes, with environments of its own and the learner's engine."""

    def __init__(
        self,
        job: ActorJob,
        engine: InferenceEngine,
        pictures: SharedPictures | None = None,
        made: bytes | None = None,
    ) -> None:
        """Make everything an episode needs; `pictures`: a folder that the learner reads as well, `made`: what was
        handed over in code. Raises what is wrong with the config."""
        config = ConfigStore.from_dict(job.config)
        settings = config.environment
        self._places = job.places
        self._shared = None if pictures is None else SharedImageStore(pictures)
        given, reward_fn = made_of(made)
        environments = {
            split: create_environment(settings.name, settings.options_for(split), settings) if given is None else given
            for split in ("train", "eval")
        }
        loaded = load_model(config.model, seed=config.training.seed, weights=False)
        if loaded.vision is not None:
            loaded.vision.cache.keep_at_most(PIXELS)
        self.chat = chat_for(loaded, environments["train"])
        self._verifier = verifier_of(config)
        options = options_of(config, reward_fn or self._verifier)
        self._collectors = {
            split: Collector.from_config(config, environment, self.chat, ImageStore(), options=options)
            for split, environment in environments.items()
        }
        self._players = Players(self._collectors, engine, sampling_of(config))
        self._free = {split: asyncio.Semaphore(places) for split, places in job.places.items()}

    async def play(self, spec: EpisodeSpec, order: Order) -> Played:
        """Play one attempt. What fails says so in the trajectory; it raises what ends the run."""
        # pictures of its own go with the episode: one store of all would grow for as long as something is played
        images = ImageStore() if self._shared is None else self._shared
        async with self._free[order.split]:  # an attempt that was given up may still be closing its instance
            trajectory = as_stored(await self._players.play_once(spec, order, images))
        pictures = () if self._shared is not None else tuple(map(images.get, pictures_of(trajectory)))
        return Played(trajectory, pictures, sum(collector.stuck for collector in self._collectors.values()))

    def ready(self) -> Ready:
        """Return what the learner is told."""
        return Ready(max(self._places.values()), probe_of(self.chat))

    async def close(self) -> None:
        """Close every environment that plays nothing, all at once."""
        await asyncio.gather(self._players.close(), *(collector.close() for collector in self._collectors.values()))
        if self._verifier is not None:
            await self._verifier.close()


async def serve(way: Way, made: bytes | None) -> int:
    """Work for the learner until it is gone or done; return the exit status: 1 where the actor could not start."""
    here = {"pid": os.getpid(), "host": socket.gethostname()}
    about = {"role": "actor", "actor": way.name, "incarnation": way.incarnation, **here}
    streams, said = await dial(way.host, way.port, way.token, about)
    shared = _shared_pictures(said.get("pictures"), said.get("pictures_identity"))
    hosts: list[ActorHost] = []

    async def play(spec: EpisodeSpec, order: Order) -> Played:
        return await hosts[0].play(spec, order)

    handlers: dict[str, Callable[..., Awaitable[Any]]] = {"play": play}
    peer = Peer(*streams, handlers, pictures=shared, shared=shared is not None, name="the learner")
    try:
        job: ActorJob = await peer.call("job", returns=ActorJob)
        # on a thread: imports and tokenizers take seconds in which the learner wants to hear a heartbeat
        host = await asyncio.to_thread(_build, job, GateEngine(peer), shared, made)
        hosts.append(host)
        await peer.call("ready", host.ready())
    except Exception as error:
        if peer.reason is not None:
            _LOG.warning("the learner is gone before this actor could start: %s", peer.reason)
        else:
            _LOG.exception("this actor cannot start")
            with suppress(Exception):
                await peer.call("failed", ToldError.of(error, f"actor {way.name}"), timeout=CLOSE_SECONDS)
            peer.close()
        return 1
    reason = await peer.wait_closed()
    _LOG.info("the learner is gone: %s", reason)
    try:
        await within(host.close(), CLOSE_SECONDS)
    except TimedOut:
        _LOG.warning("%s: its environments did not close within %g s", way.name, CLOSE_SECONDS)
    return 0


def _build(job: ActorJob, engine: InferenceEngine, pictures: SharedPictures | None, made: bytes | None) -> ActorHost:
    sys.path += [folder for folder in job.search_path if folder not in sys.path]
    if job.folder and os.path.isdir(job.folder):
        os.chdir(job.folder)
    return ActorHost(job, engine, pictures, made)


def _shared_pictures(folder: str | None, identity: str | None) -> SharedPictures | None:
    """Return the learner's folder of pictures; None: it has none, or it is not on this machine."""
    if folder is None or not os.path.isdir(folder):
        return None
    pictures = SharedPictures(folder)
    return pictures if pictures.identity() == identity else None


def run(way: Way, made: bytes | None) -> int:
    """Be an actor, with `made` handed over in code; return the exit status. Episodes under way end with the learner."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", force=True)
    threading.current_thread().name = way.name
    return asyncio.run(serve(way, made))
