"""Engines as Ray actors behind one router: Ray finds a place for each, wherever there is one, and a new one after a
crash or the loss of a machine."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from uirl.errors import ContractError
from uirl.inference.base import Weights
from uirl.inference.models.loading import BUILT_IN_MODELS, LoadedModel
from uirl.inference.processes.engine import EngineProcess
from uirl.inference.ray.cluster import RayCluster, demand_of, import_ray
from uirl.inference.ray.tenant import Needs, Tenant, first_line
from uirl.inference.ray.weights import StoredWeights, store
from uirl.inference.ray.worker import CALLS, EngineWorker
from uirl.inference.router import Router
from uirl.inference.weight_files import KeptWeights
from uirl.peers.gate import About, Gate, Visitor
from uirl.peers.greeting import NotAdmitted
from uirl.peers.peer import Peer, PeerLost
from uirl.peers.way import Place, Way

if TYPE_CHECKING:
    from uirl.config import ConfigStore, RayConfig

_END_SECONDS = 10.0
"""That Ray has to say how a process ended."""


def engines_in_ray(config: ConfigStore) -> int:
    """Return how many engines of a run are Ray actors."""
    in_ray = config.ray.use_ray and config.inference.backend == "transformers"
    return config.actors.engines if in_ray else 0


def ray_engines(config: ConfigStore, loaded: LoadedModel) -> Router:
    """Return `config.actors.engines` engines in Ray as one engine; each loads the model of the config when it is first
    asked. `loaded`: the learner's model, which the config must describe. Raises ConfigError where no cluster is."""
    count, settings = engines_in_ray(config), config.ray
    whole = config.to_dict()
    plain = {"model": whole["model"], "inference": whole["inference"], "training": {"seed": config.training.seed}}
    plain["actors"] = {name: whole["actors"][name] for name in ("swap", "keep_cache")}
    plain["model"]["device"] = "cuda" if settings.engine_gpus > 0 else "cpu"
    folder = config.model.local_path
    if folder is None and loaded.name not in BUILT_IN_MODELS and os.path.isdir(loaded.name):
        folder = loaded.name
    if folder is not None:
        plain["model"]["local_path"] = os.path.abspath(folder)
    home = EngineHome(RayCluster(settings, demand_of(settings, count)), settings)
    names = [f"engine-{number}" for number in range(count)]
    threads = config.training.threads or max(1, int(settings.engine_cpus))
    engines = [EngineProcess(plain, files=home, name=name, threads=threads, launch=home.launch()) for name in names]
    return Router(engines, names=names, files=home)


class EngineHome:
    """What the engines of a run in `cluster` share: the gate at which they come in, and the store of weights."""

    def __init__(self, cluster: RayCluster, settings: RayConfig) -> None:
        self.cluster, self.settings = cluster, settings
        self.needs = Needs(
            settings.engine_cpus,
            gpus=settings.engine_gpus,
            keys="ray.engine_cpus, ray.engine_gpus",
            fewer="actors.engines",
        )
        self.gate = Gate(self._admit, host=cluster.host)
        self._opening = asyncio.Lock()
        self._expected: dict[tuple[str, int], asyncio.Future[Peer]] = {}

    def launch(self) -> RayLaunch:
        """Return what starts one engine."""
        return RayLaunch(self)

    async def expect(self, name: str, incarnation: int) -> tuple[Way, asyncio.Future[Peer]]:
        """Return the way in for the start `incarnation` of an engine, and its arrival."""
        async with self._opening:
            await self.gate.open()
        arrival: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        self._expected = {key: future for key, future in self._expected.items() if not future.done()}
        self._expected[name, incarnation] = arrival
        return Way(self.gate.host, self.gate.port, name, incarnation, self.gate.token), arrival

    def write_snapshot(self, weights: Weights, version: int, adapter: Mapping[str, Any] | None) -> StoredWeights:
        """Keep the weights of an update where every engine can read them. Raises StorageError where there is no
        room."""
        return store(weights, version, adapter)

    def close(self) -> None:
        """Leave the cluster. Calling it twice is fine."""
        self.gate.stop_listening()
        self.cluster.close()

    def _admit(self, about: About) -> Visitor:
        name, incarnation = about.get("engine"), about.get("incarnation")
        arrival = self._expected.get((str(name), incarnation)) if isinstance(incarnation, int) else None
        if arrival is None or arrival.done():
            raise NotAdmitted(f"start {incarnation} of an engine {name!r} is not expected")

        def arrived(peer: Peer) -> None:
            if arrival.done():  # nobody waits for it any more
                peer.close()
            else:
                arrival.set_result(peer)

        return Visitor(str(name), {}, arrived)


class RayLaunch:
    """Starts one engine of `home` again and again: it keeps one Ray actor, which Ray restarts."""

    def __init__(self, home: EngineHome) -> None:
        self._home = home
        self._tenant: Tenant | None = None
        self._left: Place | None = None
        """The process of the life before."""

    async def begin(self, name: str, incarnation: int) -> RayLife:
        """Wait for a place, and for the engine there to come in. Raises ConfigError where it has no place in
        `ray.start_seconds`, PeerLost where it is lost on the way."""
        if self._tenant is None:
            home, ray = self._home, import_ray()
            handle = ray.remote(EngineWorker).options(**home.needs.options(max_concurrency=CALLS)).remote()
            self._tenant = Tenant(name, handle, home.needs, home.cluster, home.settings.start_seconds)
        tenant = self._tenant
        place = await tenant.place(left=self._left)
        way, arrival = await self._home.expect(name, incarnation)
        work = asyncio.ensure_future(_serve(tenant.handle, way, place))
        both: list[asyncio.Future[Any]] = [work, arrival]
        await asyncio.wait(both, timeout=self._home.settings.start_seconds, return_when="FIRST_COMPLETED")
        self._left = place  # from here on it is killed when its life ends
        if not arrival.done():
            arrival.cancel()
            said = work.result() if work.done() else "it did not come in"
            await RayLife(tenant.handle, place, work, None).end()
            raise PeerLost(f"{name} in {place} could not reach the learner at {way.host}:{way.port}: {said}")
        return RayLife(tenant.handle, place, work, arrival.result())

    async def close(self) -> None:
        """End the Ray actor for good."""
        tenant, self._tenant = self._tenant, None
        if tenant is not None:
            with suppress(Exception):  # of a cluster that is gone
                import_ray().kill(tenant.handle, no_restart=True)


class RayLife:
    """One process of an engine's Ray actor."""

    def __init__(self, handle: Any, place: Place, work: asyncio.Future[str], peer: Peer | None) -> None:
        self._handle, self._place, self._work, self._peer = handle, place, work, peer

    @property
    def pid(self) -> int | None:
        return self._place.pid if self._place.host == socket.gethostname() else None

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            raise ContractError(f"the engine in {self._place} never came in")
        return self._peer

    async def load(self, weights: KeptWeights, version: int, adapter: Mapping[str, Any] | None) -> None:
        if not isinstance(weights, StoredWeights):
            raise ContractError(f"an engine in Ray reads weights from its store; got {type(weights).__name__}")
        ray = import_ray()
        try:
            error = await self._handle.load.remote(version, adapter, *weights.references)
        except ray.exceptions.RayError as lost:
            raise PeerLost(f"{self._place} is lost ({type(lost).__name__}: {first_line(lost)})") from lost
        if error is not None:
            raise error

    async def end(self) -> str:
        with suppress(Exception):  # of a cluster that is gone
            import_ray().kill(self._handle, no_restart=False)
        await asyncio.wait({self._work}, timeout=_END_SECONDS)
        if not self._work.done():
            self._work.cancel()
            return f"{self._place} was killed"
        return self._work.result()


async def _serve(handle: Any, way: Way, place: Place) -> str:
    """Have the Ray actor be an engine; return how that ended."""
    try:
        reason: str = await handle.serve.remote(way)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # Ray has a class for each way in which a process or a machine is lost
        return f"{place} is lost ({type(error).__name__}: {first_line(error)})"
    return f"{place} let go: {reason}"
