"""Engines in processes of their own, here or in a Ray cluster, and an engine that workers ask at the learner's."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from uirl.errors import ContractError, EngineFailure, EngineLost, StorageError
from uirl.inference.base import Counters, Generation, GenerationRequest, InferenceEngine, Weights
from uirl.inference.models.loading import BUILT_IN_MODELS, LoadedModel, load_model
from uirl.inference.router import Router
from uirl.inference.servers import model_folder, pushed_weights
from uirl.inference.weight_files import KeptWeights, Snapshot, WeightFiles, WeightStore, plain_parameters, shards_of
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.time_limits import TimedOut
from uirl.runtime.waiting import wait_for
from uirl.workers.children import Children
from uirl.workers.peer import Handler, Peer, PeerLost
from uirl.workers.ray import Demand, Needs, RayCluster, RayProcess, RayTransport, import_ray
from uirl.workers.supervisor import Supervisor, Transport
from uirl.workers.worker import Worker, program_of

if TYPE_CHECKING:
    from uirl.config import EngineSettings, RayConfig

START_SECONDS = 1800.0
"""That a model may take to load."""
Shard = dict[str, tuple[str, tuple[int, ...], Any]]
"""Name -> (dtype, shape, bytes as an array of uint8): what Ray stores without copying it again for each reader."""


class EngineWorker(Worker):
    """An embedded engine on a thread of its own, so that a long forward pass silences no heartbeat. `engine`: one that
    exists already, for tests."""

    _engine: InferenceEngine
    """Made by `start`, before which a `Supervisor` lets nobody ask."""

    def __init__(self, engine: InferenceEngine | None = None) -> None:
        if engine is not None:
            self._engine = engine
        self._loop = EventLoopThread("uirl-engine")

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"start": self.start, "generate": self.generate, "load": self.load, "release": self.release}

    async def start(self, config: Mapping[str, Any], threads: int | None) -> None:
        """Load the model and make its engine, as the config says."""

        async def begin() -> None:
            from uirl.config import ConfigStore
            from uirl.inference.registry import create_engine

            if threads is not None:
                torch.set_num_threads(threads)
            settings = ConfigStore.from_dict(dict(config))
            self._engine = create_engine(settings, load_model(settings.model, seed=settings.training.seed))

        await self._loop.hand_over(begin())

    async def generate(self, request: GenerationRequest) -> tuple[Generation, dict[str, float]]:
        """Return the reply, and the engine's counters since the last one."""

        async def reply() -> tuple[Generation, dict[str, float]]:
            return await self._engine.generate(request), self._engine.stats()

        return await self._loop.hand_over(reply())

    async def load(self, folder: str, version: int) -> None:
        """Take over the weights of a snapshot."""
        await self._take(Snapshot(Path(folder), version, None), version)

    async def take_shards(self, version: int, shards: Iterable[Shard]) -> None:
        """Take over weights from Ray's store of objects."""
        await self._take(chain.from_iterable(map(tensors_of, shards)), version)

    async def release(self, session_id: str) -> None:
        """Forget what was kept for an episode."""

        async def forget() -> None:
            self._engine.release(session_id)

        await self._loop.hand_over(forget())

    async def _take(self, weights: Weights, version: int) -> None:
        await self._loop.hand_over(self._engine.update_weights(weights, version))


class RemoteEngine(InferenceEngine):
    """Asks an `EngineWorker`, whose process starts with the first use and is started again when it ends.

    `config`: that of the run, as a dict; its model is loaded there. `files`: where weights are written that do not come
    from such a store. `threads`: of the model's arithmetic; None: torch's own choice. `silence`: seconds without a sign
    of life after which the process is killed. `transport`: where it runs, closed with this; None: on this machine. One
    that was started again raises EngineLost until it got weights by `update_weights`, where there was an update before.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        files: WeightStore,
        name: str = "engine",
        threads: int | None = None,
        silence: float = 60.0,
        transport: Transport | None = None,
    ) -> None:
        self._config, self._threads = config, threads
        self._files, self._counters = files, Counters()
        self._transport = transport or Children()
        self.supervisor = Supervisor(
            name,
            self._transport,
            program_of(EngineWorker),
            lambda peer: peer.call("start", config, threads),
            silence=silence,
            start_seconds=START_SECONDS,
            persistent=True,
        )
        self._loaded: Peer | None = None
        """The process that has the newest weights; None: no weights were sent yet."""
        self._closed = False

    async def generate(self, request: GenerationRequest) -> Generation:
        peer = await self._reach()
        if self._loaded is not None and self._loaded is not peer:
            raise EngineLost(f"{self.supervisor.name} was started again and got no weights yet")
        made: Generation
        made, counts = await self._told(peer.call("generate", request, returns=tuple[Generation, dict[str, float]]))
        for counter, value in counts.items():
            self._counters.add(counter, value)
        return made

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        weights = pushed_weights(weights, adapter, takes_adapters=False, program="an engine process")
        peer = await self._reach()
        mine = None
        if not isinstance(weights, KeptWeights):
            weights = mine = await asyncio.to_thread(self._files.write_snapshot, weights, version, None)
        try:
            await self._told(self._load(peer, weights, version))
        finally:
            if mine is not None:
                mine.remove()
        if peer is self.supervisor.peer:
            self._loaded, self.policy_version = peer, version

    async def probe(self) -> None:
        await self._reach()

    def release(self, session_id: str) -> None:
        if self.supervisor.peer is not None:
            self.supervisor.peer.notify("release", session_id)

    def stats(self) -> dict[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        self._closed = True
        await self.supervisor.close()
        await self._transport.close()

    async def _reach(self) -> Peer:
        """Return what asks the process; the first use starts it and waits for it. Raises EngineLost where it is down,
        and what the process could not be started for."""
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")
        supervisor = self.supervisor
        supervisor.begin()
        if not supervisor.begun.is_set():
            try:
                await wait_for(f"{supervisor.name} to load its model", supervisor.begun.wait(), START_SECONDS)
            except TimedOut as error:
                raise EngineLost(str(error)) from error
        if supervisor.refused is not None:
            raise supervisor.refused
        if supervisor.peer is None:
            raise EngineLost(f"{supervisor.name} is down and started again ({supervisor.why})")
        return supervisor.peer

    async def _load(self, peer: Peer, weights: KeptWeights, version: int) -> None:
        process = self.supervisor.process
        if isinstance(weights, Snapshot):
            await peer.call("load", str(weights.folder), version)
        elif isinstance(weights, StoredWeights) and isinstance(process, RayProcess):
            await process.give("take_shards", (version,), weights.references)
        else:
            raise ContractError(f"{self.supervisor.name} cannot read weights from a {type(weights).__name__}")

    async def _told(self, answer: Awaitable[Any]) -> Any:
        """Return what the process answers. Raises EngineLost where it is lost meanwhile."""
        try:
            answered = await answer
        except PeerLost as error:
            raise EngineLost(str(error)) from error
        self.supervisor.useful = True
        return answered


def engine_workers(
    settings: EngineSettings, ray: RayConfig, threads: int | None, loaded: LoadedModel, *, learners: int = 1
) -> Router:
    """Return `actors.engines` engines in processes of their own, here or in Ray, as one engine; each loads the model of
    `settings` when it is first asked. `threads`: of each one's arithmetic; None: its share. `loaded`: the learner's
    model, which `settings` must describe; `learners`: processes that learn together, each on a GPU. Raises ConfigError
    where Ray is asked for and there is no cluster."""
    model, inference, actors = settings.model, settings.inference, settings.actors
    count = actors.engines
    names = [f"engine-{number}" for number in range(count)]
    plain: dict[str, Any] = {
        "model": model.to_dict(),
        "inference": inference.to_dict(),
        "training": {"seed": settings.seed},
        "actors": {"swap": actors.swap, "keep_cache": actors.keep_cache},
    }
    files: WeightStore
    transports: list[Transport]
    if ray.use_ray:
        plain["model"]["device"] = "cuda" if ray.engine_gpus > 0 else "cpu"
        folder = model.local_path
        if folder is None and loaded.name not in BUILT_IN_MODELS and os.path.isdir(loaded.name):
            folder = loaded.name
        if folder is not None:
            plain["model"]["local_path"] = os.path.abspath(folder)
        threads = threads or max(1, int(ray.engine_cpus))
        needs = Needs(ray.engine_cpus, ray.engine_gpus, None, "ray.engine_cpus, ray.engine_gpus", "actors.engines")
        clusters = [RayCluster(ray.address, demand_of(ray, count)) for _ in names]  # the same: each leaves it
        files = RayStore()
        transports = [RayTransport(cluster, needs, ray.start_seconds, inside=True) for cluster in clusters]
    else:
        files = WeightFiles(inference.weights_dir, size=sum(p.nbytes for _, p in plain_parameters(loaded)))
        plain["model"]["local_path"] = model_folder(model.source, loaded, files, program="an engine process")
        if loaded.device.type == "cuda":
            plain["model"]["device"] = "cuda"  # the one that it sees
        if threads is None and loaded.device.type == "cpu":
            threads = max(1, (os.cpu_count() or 1) // count)
        gpus = gpus_for(count, loaded.device, learners=learners)
        transports = [Children(variables={} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}) for gpu in gpus]
    engines = [
        RemoteEngine(plain, files=files, name=name, threads=threads, transport=transport)
        for name, transport in zip(names, transports, strict=True)
    ]
    return Router(engines, names=names, files=files)


def demand_of(settings: RayConfig, engines: int = 0) -> Demand:
    """Return what a run with these settings reserves in all, with `engines` of them in Ray."""
    resources = {name: amount * settings.num_actors for name, amount in settings.actor_resources.items()}
    return Demand(settings.actor_cpus * settings.num_actors + settings.engine_cpus * engines, resources)


def supervisors_of(engine: InferenceEngine) -> list[Supervisor]:
    """Return what keeps the processes that an engine consists of; none where it is in this process or somebody
    else's."""
    engines = engine.engines if isinstance(engine, Router) else []
    return [one.supervisor for one in engines if isinstance(one, RemoteEngine)]


def gpus_for(count: int, learner: torch.device, *, learners: int = 1) -> list[str | None]:
    """Return the GPU of each of `count` engine processes, as CUDA_VISIBLE_DEVICES names it; None: none.

    The learner's is left out where there are others, and these are given out in turn; of several `learners` those of
    all, which follow it.
    """
    if learner.type != "cuda":
        return [None] * count
    seen, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [one.strip() for one in visible.split(",")] if visible else [str(number) for number in range(seen)]
    mine = learner.index or 0
    others = [*names[:mine], *names[mine + learners : seen]] or names[mine : mine + 1]
    return [others[number % len(others)] for number in range(count)]


# -- weights in Ray's store of objects, which each machine reads from the nearest --------------------------------------


class StoredWeights(KeptWeights):
    """The weights of one version as objects of Ray's."""

    def __init__(self, references: Iterable[Any], version: int, adapter: Mapping[str, Any] | None) -> None:
        self.version, self.adapter = version, adapter
        self._references = list(references)

    @property
    def references(self) -> list[Any]:
        """Of the shards. Raises StorageError where they were removed."""
        if not self._references:
            raise StorageError(f"the weights of version {self.version} are gone: newer ones have replaced them")
        return self._references

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        ray = import_ray()
        for reference in self.references:
            yield from tensors_of(ray.get(reference))

    def remove(self) -> None:
        self._references = []


class RayStore:
    """Ray's store of objects as a place for weights."""

    def write_snapshot(self, weights: Weights, version: int, adapter: Mapping[str, Any] | None) -> StoredWeights:
        """Put weights into the store, in shards. Raises StorageError where it has no room."""
        # made on a GPU or not, they wait in main memory for the others of their shard
        plain = ((name, tensor.detach().cpu().contiguous()) for name, tensor in weights)
        references = [self._put(tensors) for tensors in shards_of(plain)]
        return StoredWeights(references, version, adapter)

    def close(self) -> None:
        """Nothing: what is in the store goes with the last reference to it."""

    def _put(self, tensors: Mapping[str, Tensor]) -> Any:
        ray = import_ray()
        shard: Shard = {
            name: (
                str(tensor.dtype).removeprefix("torch."),
                tuple(tensor.shape),
                tensor.reshape(-1).view(torch.uint8).numpy(),
            )
            for name, tensor in tensors.items()
        }
        try:
            return ray.put(shard)
        except (ray.exceptions.RayError, OSError, ValueError) as error:
            size = sum(tensor.nbytes for tensor in tensors.values())
            raise StorageError(
                f"cannot put {size / 1e9:.2f} GB of weights into Ray's store of objects: {error}; start Ray with a "
                "larger one (`ray start --object-store-memory`)"
            ) from error


def tensors_of(shard: Shard) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a shard, which share its memory: they are to be read, not to be written."""
    for name, (dtype, shape, raw) in shard.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that such memory must not be written
            flat = torch.from_numpy(raw)
        yield name, flat.view(getattr(torch, dtype)).reshape(shape)


# -- the learner's engine, asked by workers that play episodes ---------------------------------------------------------


class LearnerEngine(InferenceEngine):
    """The engine of the process at the other end of `peer`. It samples; weights are that process's own affair."""

    takes_weights = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            generation: Generation = await self._peer.call("generate", request, returns=Generation)
        except PeerLost as error:
            raise EngineFailure(f"the engine is out of reach: {error}") from error
        return generation

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        raise ContractError("this engine is in another process, which gives it its weights; update them there")

    def release(self, session_id: str) -> None:
        self._peer.notify("release", session_id)


class ServedEngine:
    """What one worker may ask of `engine`. `close` releases what the worker left behind."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._sessions: set[str] = set()

    @property
    def handlers(self) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        """The handlers of a `Peer`."""
        return {"generate": self._generate, "release": self._release}

    def close(self) -> None:
        """Release the episodes that the worker did not release itself. Calling it twice is fine."""
        while self._sessions:
            self._engine.release(self._sessions.pop())

    async def _generate(self, request: GenerationRequest) -> Generation:
        if request.session_id is not None:
            self._sessions.add(request.session_id)
        return await self._engine.generate(request)

    async def _release(self, session_id: str) -> None:
        self._sessions.discard(session_id)
        self._engine.release(session_id)
