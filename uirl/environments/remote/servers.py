"""Which server the next session goes to: the least busy one that is well; spares stand in for those that are not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uirl.errors import ConfigError, EnvironmentFailure

LONGEST_REST = 300.0
"""Seconds after which a server that was taken out is tried again at the latest."""
_LOOK = 0.2


@dataclass(slots=True, eq=False)
class Server:
    """One address, and how it is doing."""

    url: str
    spare: bool = False
    most: int | None = None
    """Sessions that this process may hold there; None: as many as the server takes."""
    active: int = 0
    """Those it holds."""
    out_until: float = 0.0
    """By the pool's clock: not used before, because it failed."""
    full_until: float = 0.0
    """Not asked before, because it took no further session."""
    failures: int = 0
    """In a row."""
    why: str = ""
    """It was taken out; empty: it is well."""
    trying: bool = False
    """One session finds out whether it is well again."""


class ServerPool:
    """Servers that offer the same environment. Safe to use from several event loops."""

    def __init__(
        self,
        urls: Sequence[str],
        spares: Sequence[str] = (),
        *,
        most: int | None = None,
        rest: float = 5.0,
        patience: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: sessions per server that this process opens; None: as many as the server takes. `rest`: seconds that
        a server stays out after its first failure; each further one doubles them. `patience`: seconds that `take`
        waits for a server."""
        self.servers = [Server(url, most=most) for url in urls] + [Server(url, True, most) for url in spares]
        if not urls:
            raise ConfigError("there is no server: give url or urls")
        addresses = [server.url for server in self.servers]
        if len(set(addresses)) < len(addresses):
            raise ConfigError(f"a server is named twice: {', '.join(addresses)}")
        self.patience = patience
        self._rest, self._clock = rest, clock
        self._lock = threading.Lock()

    async def take(self, patience: float | None = None) -> Server:
        """A server with one session more. Raises EnvironmentFailure where none gets free within `patience` seconds
        (None: the pool's)."""
        deadline = self._clock() + (self.patience if patience is None else patience)
        while True:
            server = self.choose()
            if server is not None:
                return server
            if self._clock() >= deadline:
                raise EnvironmentFailure(f"no server is free: {self.describe()}")
            await asyncio.sleep(_LOOK)

    def choose(self) -> Server | None:
        """The same at once; None: all are out or full."""
        with self._lock:
            now = self._clock()
            free = [s for s in self.servers if max(s.out_until, s.full_until) <= now]
            free = [s for s in free if s.most is None or s.active < s.most]
            if not free:
                return None
            best = min(free, key=lambda s: (s.spare, s.active))
            best.active += 1
            if best.failures:
                # the other sessions wait for how it goes
                best.trying, best.out_until = True, now + self._rest_of(best)
            return best

    def give_back(self, server: Server) -> None:
        """The session is over."""
        with self._lock:
            server.active -= 1
            server.full_until = 0.0  # there may be room again

    def well(self, server: Server) -> None:
        """The server opened a session."""
        with self._lock:
            server.failures, server.out_until, server.why, server.trying = 0, 0.0, "", False

    def take_out(self, server: Server, why: str) -> None:
        """The server failed: it gets no session for a while."""
        with self._lock:
            server.why = why
            if server.failures and not server.trying:
                return  # its other sessions tell of the same mishap
            server.failures, server.trying = server.failures + 1, False
            server.out_until = self._clock() + self._rest_of(server)

    def full(self, server: Server, seconds: float) -> None:
        """The server takes no further session for `seconds`; nothing is wrong with it."""
        with self._lock:
            server.full_until = self._clock() + seconds
            server.why = "full"

    def describe(self) -> str:
        """Every server and why it is not used, for an error."""
        return "; ".join(f"{s.url} ({s.why or f'{s.active} sessions'})" for s in self.servers)

    def _rest_of(self, server: Server) -> float:
        return min(self._rest * 2.0 ** max(0, server.failures - 1), LONGEST_REST)
