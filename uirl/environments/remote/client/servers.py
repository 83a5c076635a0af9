"""Which server the next session goes to: the least busy one that is well; fallback servers stand in for the others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError, EnvironmentFailure

MAX_BACKOFF = 300.0
"""Seconds after which a server that was taken out is tried again at the latest."""
PROBE = 1.0
"""Seconds between two questions whether a full server has room again."""
_LOOK = 0.5


@dataclass(slots=True, eq=False)
class Server:
    """One address, and how it is doing."""

    url: str
    fallback: bool = False
    max_sessions: int | None = None
    """Sessions that this process may hold there; None: as many as the server takes."""
    active: int = 0
    """Those it holds."""
    out_until: float = 0.0
    """By the pool's clock: not used before, because it failed."""
    capacity: int | None = None
    """Sessions it had for us when it last said that it was full; None: it never did."""
    doubtful_until: float = 0.0
    """Until then others come first: a session did not open here."""
    full_until: float = 0.0
    """Until then nobody finds out whether it has room for more by now."""
    failures: int = 0
    """In a row."""
    why: str = ""
    """It was taken out; empty: it is well."""
    trying: bool = False
    """One session finds out whether it is well again."""
    chosen: int = 0
    """When it was last chosen, counted in choices of the pool; 0: never."""


class ServerPool:
    """Servers that offer the same environment. Safe to use from several event loops."""

    def __init__(
        self,
        urls: Sequence[str],
        fallback_urls: Sequence[str] = (),
        *,
        max_sessions: int | None = None,
        retry_backoff: float = 5.0,
        acquire_timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`fallback_urls`: servers that are used only while none of `urls` is. `max_sessions`: sessions per server that
        this process opens; None: as many as the server takes. `retry_backoff`: seconds that a server stays out after
        its first failure; each further one doubles them. `acquire_timeout`: seconds that `take` waits for a server."""
        self.servers = [Server(url, max_sessions=max_sessions) for url in urls]
        self.servers += [Server(url, True, max_sessions) for url in fallback_urls]
        if not urls:
            raise ConfigError("there is no server: give url or urls")
        addresses = [server.url for server in self.servers]
        if len(set(addresses)) < len(addresses):
            raise ConfigError(f"a server is named twice: {', '.join(addresses)}")
        self.acquire_timeout = acquire_timeout
        self._retry_backoff, self._clock = retry_backoff, clock
        self._lock = threading.Lock()
        self._waiting: deque[asyncio.Future[Server]] = deque()
        self._choices = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs: it holds no session and has its own view of the servers."""
        fresh = [Server(server.url, server.fallback, server.max_sessions) for server in self.servers]
        others = {name: value for name, value in vars(self).items() if name not in ("_lock", "_waiting")}
        return {**others, "servers": fresh, "_choices": 0}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._waiting = threading.Lock(), deque()

    async def take(self, timeout: float | None = None) -> Server:
        """Return a server with one session more; those who wait are served in the order in which they came.

        Raises EnvironmentFailure where none gets free within `timeout` seconds (None: the pool's).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.acquire_timeout if timeout is None else timeout)
        turn: asyncio.Future[Server] = loop.create_future()
        with self._lock:
            self._waiting.append(turn)
        try:
            while not turn.done():
                # sessions that are given back go to who waits; otherwise servers may be tried again as time passes
                self._hand_out()
                left = deadline - loop.time()
                await asyncio.wait([turn], timeout=min(max(left, 0.0), _LOOK))
                if left <= 0 and not turn.done():
                    raise EnvironmentFailure(f"no server is free: {self.describe()}")
            return turn.result()
        except asyncio.CancelledError:
            if turn.done():
                self.give_back(turn.result())
            raise
        finally:
            turn.cancel()

    def choose(self) -> Server | None:
        """Return a server with one session more at once, whoever waits; None: all are out or full."""
        with self._lock:
            return self._choose()

    def give_back(self, server: Server) -> None:
        """Note that a session is over."""
        with self._lock:
            server.active -= 1
        self._hand_out()

    def well(self, server: Server) -> None:
        """Note that the server opened a session."""
        with self._lock:
            server.failures, server.out_until, server.why, server.trying = 0, 0.0, "", False
            server.doubtful_until = 0.0
            if server.capacity is not None:
                server.capacity = max(server.capacity, server.active)
        self._hand_out()

    def take_out(self, server: Server, why: str) -> None:
        """Note that the server failed: it gets no session for a while."""
        with self._lock:
            server.why = why
            if server.failures and not server.trying:
                return  # its other sessions tell of the same mishap
            server.failures, server.trying = server.failures + 1, False
            server.out_until = self._clock() + self._backoff_of(server)

    def doubt(self, server: Server, why: str) -> None:
        """Note that the server answered, and opened no session. That may be the task's fault: it is used where no other
        can."""
        with self._lock:
            server.doubtful_until, server.why = self._clock() + self._retry_backoff, why

    def full(self, server: Server, seconds: float) -> None:
        """Note that the server took no session beside the others that it has for us; nothing is wrong with it. In
        `seconds` one session may ask again. Call it before `give_back`: the place is none for those who wait."""
        with self._lock:
            server.capacity, server.full_until = server.active - 1, self._clock() + seconds
            server.failures, server.out_until, server.trying, server.why = 0, 0.0, False, "full"

    @property
    def active(self) -> int:
        """Sessions that are held, and those that are being opened or ended."""
        return sum(server.active for server in self.servers)

    def seconds_out(self, server: Server) -> float:
        """Return for how many seconds a server stays unused because it failed; 0.0: it may be used."""
        return max(0.0, server.out_until - self._clock())

    def describe(self) -> str:
        """Return every server and why it is not used, for an error."""
        return "; ".join(f"{s.url} ({s.why or f'{s.active} sessions'})" for s in self.servers)

    def _choose(self) -> Server | None:
        now = self._clock()
        free = [server for server in self.servers if _may_take(server, now)]
        if not free:
            return None
        # one that cannot open sessions is the least busy of all: it must not draw every session to itself
        best = min(free, key=lambda s: (s.doubtful_until > now, s.fallback, s.active, s.chosen))
        self._choices += 1
        best.chosen = self._choices
        if best.capacity is not None and best.active >= best.capacity:
            best.full_until = now + PROBE  # this session finds out; the others wait for how it goes
        best.active += 1
        if best.failures:
            # the other sessions wait for how it goes
            best.trying, best.out_until = True, now + self._backoff_of(best)
        return best

    def _hand_out(self) -> None:
        """Give the sessions that are free to those who wait, in the order in which they came."""
        with self._lock:
            while self._waiting:
                turn = self._waiting[0]
                if not turn.done():
                    server = self._choose()
                    if server is None:
                        return
                    try:
                        turn.get_loop().call_soon_threadsafe(self._deliver, turn, server)
                    except RuntimeError:  # the event loop of who waited is closed
                        server.active -= 1
                self._waiting.popleft()

    def _deliver(self, turn: asyncio.Future[Server], server: Server) -> None:
        if turn.done():  # who waited has given up
            self.give_back(server)
        else:
            turn.set_result(server)

    def _backoff_of(self, server: Server) -> float:
        return min(self._retry_backoff * 2.0 ** max(0, server.failures - 1), MAX_BACKOFF)


def _may_take(server: Server, now: float) -> bool:
    """Return whether one session more may be asked of a server."""
    if server.out_until > now or (server.max_sessions is not None and server.active >= server.max_sessions):
        return False
    return server.capacity is None or server.active < server.capacity or server.full_until <= now
