"""Actors as Ray actors: Ray finds a place for each, starts it again after a crash, and moves it when a machine is lost.

Episodes, tokens and pictures go over the actors' own connection to the learner. Through Ray go a way to the learner,
user objects, and an exit status.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from uirl.config import RayConfig
from uirl.errors import ProcessLost
from uirl.inference.ray.cluster import RayCluster, import_ray
from uirl.inference.ray.tenant import Needs, Tenant, first_line
from uirl.peers.way import Place, Way
from uirl.runtime.endings import how_it_ended
from uirl.training.actors.ray_worker import RayWorker


class RayActor:
    """One life of a Ray actor."""

    pid = None

    def __init__(self, handle: Any, way: Way, made: bytes | None, place: Place) -> None:
        self.place = place
        self.killed = False
        self._handle = handle
        self._words = ""
        self._end = asyncio.ensure_future(self._work(way, made))

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self._end.done()

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    def stop(self) -> None:
        """Nothing: it ends when its connection does."""

    def kill(self) -> None:
        if not self.over and not self.killed:
            self.killed = True
            import_ray().kill(self._handle, no_restart=False)

    def last_words(self) -> str:
        return self._words

    async def _work(self, way: Way, made: bytes | None) -> str:
        try:
            status, self._words = await self._handle.work.remote(way, made)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # Ray has a class for each way in which a process or a machine is lost
            self.killed = True
            return f"{self.place} is lost ({type(error).__name__}: {first_line(error)})"
        return f"under {self.place} {how_it_ended(status)}"


class RayLauncher:
    """Starts actors in `cluster`, which is closed with it. Each name keeps one Ray actor, restarts included."""

    def __init__(self, cluster: RayCluster, settings: RayConfig) -> None:
        self._cluster, self._settings = cluster, settings
        self._needs = Needs(
            settings.actor_cpus,
            resources=settings.actor_resources,
            keys="ray.actor_cpus, ray.actor_resources",
            fewer="ray.num_actors",
        )
        self._tenants: dict[str, Tenant] = {}
        self._lives: dict[str, RayActor] = {}
        self._closed = False

    async def launch(self, way: Way, made: bytes | None = None) -> RayActor:
        """Have the Ray actor of this name work. Raises ConfigError where no actor at all finds a place in
        `ray.start_seconds`. While others have a place, this one waits for its own."""
        ray = import_ray()
        if self._closed:
            raise ProcessLost("no more actors are started: the run ends")
        tenant = self._tenants.get(way.name)
        if tenant is None:
            handle = ray.remote(RayWorker).options(**self._needs.options()).remote()
            seconds = self._settings.start_seconds
            tenant = self._tenants[way.name] = Tenant(way.name, handle, self._needs, self._cluster, seconds)
        before = self._lives.get(way.name)
        place = await tenant.place(
            left=before.place if before is not None and before.killed else None,
            alone=lambda: all(life.over for life in self._lives.values()),
        )
        life = self._lives[way.name] = RayActor(tenant.handle, way, made, place)
        return life

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ray = import_ray()
        for tenant in self._tenants.values():
            with suppress(Exception):  # of a cluster that is gone
                ray.kill(tenant.handle, no_restart=True)
        await asyncio.to_thread(self._cluster.close)
