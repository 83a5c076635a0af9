"""What a worker does that plays episodes: environments, a chat template without weights, and the learner's engine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uirl.config import ConfigStore
from uirl.environments.base import BaseEnvironment
from uirl.environments.registry import create_environment
from uirl.errors import ContractError
from uirl.images import ImageStore, Screenshot
from uirl.inference.base import InferenceEngine
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import load_model
from uirl.inference.workers import LearnerEngine
from uirl.rollout.collector import Collector, chat_for, options_of
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order, Players
from uirl.rollout.reward import RewardFunction
from uirl.runtime.limits import shown
from uirl.storage.records import as_stored, pictures_of
from uirl.training.assembly import sampling_of
from uirl.training.channels.objects import pack, unpack
from uirl.types import JSON, Observation, Trajectory
from uirl.verification.hybrid import HybridVerifier
from uirl.verification.setup import verifier_of
from uirl.workers.peer import Handler
from uirl.workers.pictures import SharedImageStore, SharedPictures
from uirl.workers.worker import Worker

PIXELS = 16 * 2**20
"""Bytes of processed pictures that an actor keeps: it has no model, and there may be dozens on a machine."""
_PROBE = (Message("system", "Answer briefly."), Message("user", "Which template is yours, and which tools?"))


@dataclass(frozen=True, slots=True)
class ActorJob:
    """What an actor needs to play the episodes of a run."""

    config: JSON
    """`ConfigStore.to_dict`."""
    places: dict[str, int]
    """Split -> episodes that this actor plays at the same time."""
    search_path: tuple[str, ...] = ()
    """Where the learner finds modules, environments of one's own among them."""
    folder: str = ""
    """The learner's current folder."""
    pictures: tuple[str, str] | None = None
    """The folder of the pictures that the learner reads, and its `identity`; None: there is none."""


@dataclass(frozen=True, slots=True)
class Played:
    """One attempt at one episode."""

    trajectory: Trajectory
    pictures: tuple[Screenshot, ...] = ()
    """Those that it names, where the learner cannot read the actor's store."""
    stuck: int = 0
    """Calls of environments that the actor gave up and that have not come back."""

    def __post_init__(self) -> None:
        observed = [*(turn.observation for turn in self.trajectory.turns), self.trajectory.final or Observation()]
        if strangers := [one for seen in observed for one in seen.images if type(one) is not str]:
            raise TypeError(f"a picture of an episode goes by its hash, got {shown(strangers[0])}")


@dataclass(frozen=True, slots=True)
class Ready:
    """What an actor says when it can play."""

    places: int
    """Episodes at the same time, of all splits."""
    probe: tuple[int, ...] = field(default=(), repr=False)
    """A prompt as its chat template writes it: the learner's must write the same."""


class EpisodeWorker(Worker):
    """An actor in a process of its own."""

    def __init__(self) -> None:
        self._host: ActorHost | None = None

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"start": self.start, "play": self.play}

    async def start(self, job: ActorJob, made: bytes | None) -> Ready:
        """Make what is played with; `made`: see `ActorHost`."""
        shared = _shared_pictures(job)
        if shared is not None:
            self.learner.share(shared)
        # on a thread: imports and tokenizers take seconds in which the learner wants to hear a heartbeat
        self._host = host = await asyncio.to_thread(_build, job, LearnerEngine(self.learner), shared, made)
        return Ready(max(job.places.values()), probe_of(host.chat))

    async def play(self, spec: EpisodeSpec, order: Order) -> Played:
        """Play one attempt."""
        if self._host is None:
            raise ContractError("the actor was asked to play before it was started")
        return await self._host.play(spec, order)

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()


class ActorHost:
    """Plays single attempts at episodes, with environments of its own and the learner's engine."""

    def __init__(
        self, job: ActorJob, engine: InferenceEngine, pictures: SharedPictures | None = None, made: bytes | None = None
    ) -> None:
        """Make everything an episode needs; `pictures`: a folder that the learner reads as well, `made`: what was
        handed over in code. Raises what is wrong with the config."""
        config = ConfigStore.from_dict(job.config)
        settings = config.environment
        self._shared = None if pictures is None else SharedImageStore(pictures)
        given, reward_fn = made_of(made)
        environments = {
            split: create_environment(settings.name, settings.options_for(split), settings) if given is None else given
            for split in ("train", "eval")
        }
        loaded = load_model(config.model, seed=config.training.seed, weights=False)
        if loaded.vision is not None:
            loaded.vision.cache.kept.keep_at_most(PIXELS)
        self.chat = chat_for(loaded, environments["train"])
        self._verifier = verifier_of(config.verification, config.logging, config.logging.run_name or settings.label)
        options = options_of(config.turn_limit, config.rollout, config.inference, reward_fn or self._verifier)
        self._collectors = {
            split: Collector.from_config(config.rollout, settings, environment, self.chat, ImageStore(), options)
            for split, environment in environments.items()
        }
        self._players = Players(self._collectors, engine, sampling_of(config.inference))
        self._free = {split: asyncio.Semaphore(places) for split, places in job.places.items()}

    async def play(self, spec: EpisodeSpec, order: Order) -> Played:
        """Play one attempt. What fails says so in the trajectory; it raises what ends the run."""
        # pictures of its own go with the episode: one store of all would grow for as long as something is played
        images = ImageStore() if self._shared is None else self._shared
        async with self._free[order.split]:  # an attempt that was given up may still be closing its instance
            trajectory = as_stored(await self._players.play_once(spec, order, images))
        pictures = () if self._shared is not None else tuple(map(images.get, pictures_of(trajectory)))
        return Played(trajectory, pictures, sum(collector.stuck for collector in self._collectors.values()))

    async def close(self) -> None:
        """Close every environment that plays nothing, all at once."""
        await asyncio.gather(self._players.close(), *(collector.close() for collector in self._collectors.values()))
        if self._verifier is not None:
            await self._verifier.close()


def _build(job: ActorJob, engine: InferenceEngine, pictures: SharedPictures | None, made: bytes | None) -> ActorHost:
    sys.path += [folder for folder in job.search_path if folder not in sys.path]
    if job.folder and os.path.isdir(job.folder):
        os.chdir(job.folder)
    return ActorHost(job, engine, pictures, made)


def _shared_pictures(job: ActorJob) -> SharedPictures | None:
    """Return the learner's folder of pictures; None: it has none, or it is not on this machine."""
    folder, identity = job.pictures or ("", "")
    if not os.path.isdir(folder):
        return None
    pictures = SharedPictures(folder)
    return pictures if pictures.identity() == identity else None


def job_for(
    config: dict[str, Any],
    folder: str,
    places: dict[str, int],
    *,
    pictures: SharedPictures | None = None,
    environment: BaseEnvironment | None = None,
    reward_fn: RewardFunction | None = None,
) -> tuple[ActorJob, bytes | None]:
    """Return the job of each of the actors of a run, and the objects that they are handed for it (`made_of`).

    `config`: `ConfigStore.to_dict`, whose relative paths count from `folder`. `environment`: the one that was handed
    over in code; None: actors make the one that the config names. Each actor has copies of its own of both objects.
    Raises ConfigError where one cannot be copied.
    """
    described = isinstance(reward_fn, HybridVerifier) and reward_fn.from_config
    if isinstance(reward_fn, HybridVerifier) and described and reward_fn.judge is not None:
        # actors book what the judge costs on the same run
        config = config | {"logging": config["logging"] | {"run_name": reward_fn.judge.client.budget}}
    reward = None if described else reward_fn
    given = {"the environment": environment, "the reward function": reward}
    made = {name: value for name, value in given.items() if value is not None}
    job = ActorJob(
        config=config,
        places=places,
        search_path=tuple(os.path.abspath(folder) for folder in sys.path),
        folder=os.path.abspath(folder),
        pictures=None if pictures is None else (str(pictures.folder), pictures.identity()),
    )
    return job, pack(made) if made else None


def made_of(packed: bytes | None) -> tuple[BaseEnvironment | None, RewardFunction | None]:
    """Return (environment, reward function) that were handed over in code; None: it was not. Raises ConfigError where
    they cannot be made here."""
    made = {} if packed is None else unpack(packed)
    return made.get("the environment"), made.get("the reward function")


def probe_of(chat: ChatRenderer) -> tuple[int, ...]:
    """Return a prompt as `chat` writes it, to be compared with that of another process."""
    return tuple(chat.whole(_PROBE))
