"""Actors as Ray actors: Ray finds a place for each, starts it again after a crash, and moves it when a machine is lost.

Episodes, tokens and pictures go over the actors' own connection to the learner. Through Ray go a way to the learner and
an exit status.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Any

from uirl.config import RayConfig
from uirl.errors import ConfigError, ProcessLost
from uirl.training.actors.ray_cluster import RayCluster, import_ray
from uirl.training.actors.ray_worker import Place, RayWorker, options_of
from uirl.training.actors.way import Way

_LOG = logging.getLogger(__name__)

_ASK_SECONDS = 30.0
"""After so many without a place, the person is told what is waited for; then the question is asked again."""
_PAUSE = 0.3


class RayActor:
    """One life of a Ray actor."""

    pid = None

    def __init__(self, handle: Any, way: Way, place: Place) -> None:
        self.place = place
        self.killed = False
        self._handle = handle
        self._words = ""
        self._end = asyncio.ensure_future(self._work(way))

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

    async def _work(self, way: Way) -> str:
        where = f"Ray process {self.place.pid} of {self.place.host}"
        try:
            status, self._words = await self._handle.work.remote(way)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # Ray has a class for each way in which a process or a machine is lost
            self.killed = True
            return f"{where} is lost ({type(error).__name__}: {_first_line(error)})"
        return f"its process under {where} ended with status {status}"


class RayLauncher:
    """Starts actors in `cluster`, which is closed with it. Each name keeps one Ray actor, restarts included."""

    def __init__(self, cluster: RayCluster, settings: RayConfig) -> None:
        self._cluster, self._settings = cluster, settings
        self._handles: dict[str, Any] = {}
        self._lives: dict[str, RayActor] = {}
        self._closed = False

    async def launch(self, way: Way) -> RayActor:
        """Have the Ray actor of this name work. Raises ConfigError where no actor at all finds a place in
        `ray.start_seconds`. While others have a place, this one waits for its own."""
        ray = import_ray()
        if self._closed:
            raise ProcessLost("no more actors are started: the run ends")
        handle = self._handles.get(way.actor)
        if handle is None:
            settings = self._settings
            options = options_of(settings.actor_cpus, dict(settings.actor_resources))
            handle = self._handles[way.actor] = ray.remote(RayWorker).options(**options).remote()
        place = await self._place(way.actor, handle)
        life = self._lives[way.actor] = RayActor(handle, way, place)
        return life

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ray = import_ray()
        for handle in self._handles.values():
            with suppress(Exception):  # of a cluster that is gone
                ray.kill(handle, no_restart=True)
        await asyncio.to_thread(self._cluster.close)

    async def _place(self, name: str, handle: Any) -> Place:
        """Wait until the Ray actor has a place, and another process than one that was killed."""
        before = self._lives.get(name)
        begun = told = time.monotonic()
        problem = "it waits for a place"
        asked: asyncio.Future[Place] | None = None
        try:
            while True:
                if asked is None:
                    asked = asyncio.ensure_future(_answer(handle.place.remote()))
                await asyncio.wait({asked}, timeout=1.0)
                if asked.done():
                    try:
                        place = asked.result()
                    except Exception as error:
                        problem = f"{type(error).__name__}: {_first_line(error)}"
                    else:
                        if before is None or not before.killed or place != before.place:
                            return place
                        problem = "its last process has not ended"
                    asked = None
                    await asyncio.sleep(_PAUSE)
                now = time.monotonic()
                if now - begun > self._settings.start_seconds and all(life.over for life in self._lives.values()):
                    raise ConfigError(self._without_place(name, now - begun, problem))
                if now - told > _ASK_SECONDS:
                    told = now
                    _LOG.warning("%s", self._without_place(name, now - begun, problem))
        finally:
            if asked is not None:
                asked.cancel()

    def _without_place(self, name: str, seconds: float, problem: str) -> str:
        settings = self._settings
        needs = {"CPU": settings.actor_cpus} | dict(settings.actor_resources)
        needed = ", ".join(f"{amount:g} {resource}" for resource, amount in needs.items())
        return (
            f"{name} has had no place in the Ray cluster at {self._cluster.name} for {seconds:.0f} s ({problem}). It "
            f"needs {needed} on one machine (ray.actor_cpus, ray.actor_resources); of the whole cluster are free: "
            f"{self._cluster.free()}. Start more machines, or ask for less or fewer (ray.num_actors)"
        )


async def _answer(reference: Any) -> Any:
    return await reference


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""
