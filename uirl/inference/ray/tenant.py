"""A Ray actor that is restarted for ever, on any machine, and the wait for each of its places."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError
from uirl.inference.ray.cluster import RayCluster
from uirl.peers.way import Place

_LOG = logging.getLogger(__name__)
_ASK_SECONDS = 30.0
"""After so many without a place, the person is told what is waited for; then the question is asked again."""
_PAUSE = 0.3


@dataclass(frozen=True, slots=True)
class Needs:
    """What Ray reserves for one actor, and the words for a person whose cluster has no room for it."""

    cpus: float
    gpus: float = 0.0
    resources: Mapping[str, float] | None = None
    keys: str = ""
    """The keys of the config that say so."""
    fewer: str = ""
    """The key that says how many there are."""

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the options of a Ray actor that is restarted for ever, on any machine, and whose calls are not
        repeated: half of an episode cannot be played again."""
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "resources": dict(self.resources or {}) or None,
            "max_restarts": -1,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            **more,
        }

    def __str__(self) -> str:
        needs = {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {}), **(self.resources or {})}
        return ", ".join(f"{amount:g} {resource}" for resource, amount in needs.items())


class Tenant:
    """One Ray actor with a method `place`, and the wait for its next place in `cluster`."""

    def __init__(self, name: str, handle: Any, needs: Needs, cluster: RayCluster, seconds: float) -> None:
        """`seconds`: how long it may take until it has a place."""
        self.name, self.handle = name, handle
        self._needs, self._cluster, self._seconds = needs, cluster, seconds

    async def place(self, *, left: Place | None = None, alone: Callable[[], bool] = lambda: True) -> Place:
        """Wait until it has a place; another one than `left`, whose process was killed.

        Raises ConfigError where it has none in time and is `alone`: while others have a place, it waits for its own.
        """
        begun = told = time.monotonic()
        problem = "it waits for a place"
        asked: asyncio.Future[Place] | None = None
        try:
            while True:
                if asked is None:
                    asked = asyncio.ensure_future(_answer(self.handle.place.remote()))
                await asyncio.wait({asked}, timeout=1.0)
                if asked.done():
                    try:
                        place = asked.result()
                    except Exception as error:  # Ray has a class for each way in which a process is lost
                        problem = f"{type(error).__name__}: {first_line(error)}"
                    else:
                        if place != left:
                            return place
                        problem = "its last process has not ended"
                    asked = None
                    await asyncio.sleep(_PAUSE)
                now = time.monotonic()
                if now - begun > self._seconds and alone():
                    raise ConfigError(self._without_place(now - begun, problem))
                if now - told > _ASK_SECONDS:
                    told = now
                    _LOG.warning("%s", self._without_place(now - begun, problem))
        finally:
            if asked is not None:
                asked.cancel()

    def _without_place(self, seconds: float, problem: str) -> str:
        return (
            f"{self.name} has had no place in the Ray cluster at {self._cluster.name} for {seconds:.0f} s ({problem}). "
            f"It needs {self._needs} on one machine ({self._needs.keys}); of the whole cluster are free: "
            f"{self._cluster.free()}. Start more machines, or ask for less or fewer ({self._needs.fewer})"
        )


def first_line(error: BaseException) -> str:
    """Return the first line of what Ray says, which goes on for pages, or of what was raised under it."""
    cause = getattr(error, "cause", None)
    lines = str(error if cause is None else f"{type(cause).__name__}: {cause}").strip().splitlines()
    return lines[0] if lines else ""


async def _answer(reference: Any) -> Any:
    return await reference
