"""What the actors of a `MultiActorRunner` did: counted on the thread they play on, read from any other."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uirl.types import Trajectory

NO_SERVER = "no server"
"""Where episodes are counted that found none."""


@dataclass(slots=True)
class Tally:
    """Episodes that ended at one place."""

    episodes: int = 0
    steps: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Kind -> episodes that failed; they are among `episodes`."""

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that ended."""
        self.episodes += 1
        self.steps += len(trajectory)
        if trajectory.failure is not None:
            self.failures[trajectory.failure.kind] += 1

    def report(self, seconds: float) -> dict[str, Any]:
        """Return the numbers as plain data."""
        rate = self.steps / seconds if seconds > 0 else 0.0
        return {
            "episodes": self.episodes,
            "failures": dict(self.failures),
            "steps": self.steps,
            "steps_per_second": rate,
        }


@dataclass(slots=True)
class _Actor:
    tally: Tally = field(default_factory=Tally)
    restarts: int = 0
    state: str = "idle"


class ActorCounts:
    """Every episode that began is played, given up, or under way; every one that was played is delivered, lost at a
    stop, or waits."""

    def __init__(self, actors: int, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._sizes = actors, tuple(urls)
        self._reset()

    def _reset(self) -> None:
        actors, urls = self._sizes
        self._actors = [_Actor() for _ in range(actors)]
        self._urls = {url: Tally() for url in urls}
        self._totals: Counter[str] = Counter()
        self._since: float | None = None
        self._until: float | None = None

    def begin(self) -> None:
        """Start to count anew."""
        with self._lock:
            self._reset()
            self._since = self._clock()

    def end(self) -> None:
        """Stop the clock of the rates. A second call does nothing."""
        with self._lock:
            self._until = self._clock() if self._until is None else self._until

    def began(self, actor: int) -> None:
        """Count an episode that begins."""
        self._note(actor, "began", "playing")

    def gave_up(self, actor: int) -> None:
        """Count an episode that a stop or a broken actor ended."""
        self._note(actor, "gave_up", "idle")

    def played(self, actor: int, url: str, trajectory: Trajectory) -> None:
        """Count an episode that ended on the server `url`; empty: none took it."""
        self._note(actor, "played", "handing over")
        with self._lock:
            self._actors[actor].tally.add(trajectory)
            self._urls.setdefault(url or NO_SERVER, Tally()).add(trajectory)

    def delivered(self, actor: int) -> None:
        """Count a trajectory that the queue took."""
        self._note(actor, "delivered", "idle")

    def not_delivered(self, actor: int) -> None:
        """Count a trajectory that a stop kept out of the queue."""
        self._note(actor, "not_delivered", "idle")

    def restarted(self, actor: int) -> None:
        """Count an actor that begins anew."""
        with self._lock:
            self._actors[actor].restarts += 1

    def _note(self, actor: int, what: str, state: str) -> None:
        with self._lock:
            self._totals[what] += 1
            self._actors[actor].state = state

    def report(self, servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return all numbers as plain data; `servers`: url -> what else is known of it."""
        with self._lock:
            end = self._clock() if self._until is None else self._until
            seconds = 0.0 if self._since is None else end - self._since
            whole = Tally()
            for actor in self._actors:
                whole.episodes += actor.tally.episodes
                whole.steps += actor.tally.steps
                whole.failures.update(actor.tally.failures)
            names = ("began", "gave_up", "delivered", "not_delivered")
            return {
                **whole.report(seconds),
                "seconds": seconds,
                **{name: self._totals[name] for name in names},
                "waiting_for_room": sum(actor.state == "handing over" for actor in self._actors),
                "actors": [
                    {**actor.tally.report(seconds), "restarts": actor.restarts, "state": actor.state}
                    for actor in self._actors
                ],
                "urls": {url: {**tally.report(seconds), **servers.get(url, {})} for url, tally in self._urls.items()},
            }
