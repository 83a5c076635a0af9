"""What clients of all protocols share: requests, servers to choose from, one session at a time, and a tidy end.

What may be repeated (a look, a heartbeat, a reset) is sent again after growing pauses where it got lost or the server
was busy. An act is sent again only where it never left this machine: one whose outcome is unknown is a failure of the
episode, because an action that is taken twice would be a lie in the record.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from uirl.environments.options import ConfigurableEnvironment, OptionsLike
from uirl.environments.remote.client.options import ServerPoolOptions
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout, RolloutFailure, is_round
from uirl.http.client import (
    CONNECT,
    SHOWN,
    ConnectionLost,
    ErrorStatus,
    HTTPClient,
    NoResponse,
    RequestFailure,
    Response,
    checked_url,
    count_tries,
)
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireError, loads
from uirl.types import StepResult

_LOG = logging.getLogger(__name__)
GOODBYE = 2.0
"""Seconds that closing a session on its server may take; one that is not heard of again is reaped there."""
MAX_BACKOFF = 300.0
"""Seconds after which a server that was taken out is tried again at the latest."""
PROBE = 1.0
"""Seconds between two questions whether a full server has room again."""
_LOOK = 0.5
T = TypeVar("T")

# -- requests -------------------------------------------------------------------------------------------------------


class ServerLost(EnvironmentFailure):
    """The server cannot be reached, or broke off: it is taken out of the pool for a while."""


class NoAnswer(EpisodeTimeout):
    """The server took a request and says nothing: it, too, is taken out for a while."""


class Refused(EnvironmentFailure):
    """The server answered, and the answer is no. `status`: of HTTP, 0: another no."""

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class EnvironmentClient(HTTPClient):
    """Requests to any number of servers with one token; call them between `hold` and `release`.

    `token_env`: environment variable of the token; None: none. Requests raise ServerLost, NoAnswer, Refused,
    EpisodeTimeout where the server says that its environment hung, or EnvironmentFailure for an answer that is too
    large. Raises ConfigError where the variable is empty and where the package for HTTP is missing.
    """

    def __init__(self, token_env: str | None = None, *, retries: int = 3, backoff: float = 0.25) -> None:
        super().__init__(token_env, retries=retries, backoff=backoff, max_pause=10.0, statuses=(429, 502, 503))
        if not self.headers() and token_env is not None:
            raise ConfigError(
                f"the environment variable {token_env} holds no token; set it to the one that the servers know, or "
                "leave token_env out"
            )

    async def json(self, method: str, url: str, **options: Any) -> Any:
        """Return what the JSON of the answer says; see `send`. Raises EnvironmentFailure for an answer that is none."""
        answer = await self.send(method, url, **options)
        try:
            return loads(answer.content)
        except WireError as error:
            raise EnvironmentFailure(f"{method} {url} answered {self.shown(answer.text)}: {error}") from None

    def first_answer(
        self,
        urls: Sequence[str],
        path: str,
        read: Callable[[Any], T],
        problem: str,
        remedy: str,
        question: Mapping[str, Any] | None = None,
        timeout: float = CONNECT,
    ) -> T:
        """Return what `read` makes of the first answer that makes sense to a GET, or to a POST of `question`; waits for
        it, event loop or not. `timeout`: seconds of one try.

        Raises EnvironmentFailure with `problem`, what each server said, and `remedy` where none gives one.
        """
        method = "GET" if question is None else "POST"

        async def ask_each() -> T:
            problems = []
            self.hold()
            try:
                for url in urls:
                    try:
                        value = await self.json(
                            method, url + path, json=question, timeout=timeout, again=False, retries=0
                        )
                        return read(value)
                    except (WireError, RolloutFailure) as error:
                        problems.append(str(error) if url in str(error) else f"{url}: {error}")
            finally:
                await self.release()
            raise EnvironmentFailure(f"{problem}: {'; '.join(problems)}. {remedy}")

        loop = EventLoopThread("uirl-first-answer")
        try:
            return loop.run(ask_each())
        finally:
            loop.close()

    def failure(self, request: str, failure: RequestFailure) -> RolloutFailure:
        """Return the failure of a request that was given up."""
        if isinstance(failure, NoResponse):
            return NoAnswer(f"{request}: {failure}")
        if isinstance(failure, ConnectionLost):
            return ServerLost(
                f"{request} failed after {count_tries(failure.tries)}: {failure}. Does the server run, and "
                "is its address right?"
            )
        if isinstance(failure, ErrorStatus):
            return self._refused(request, failure.response)
        return EnvironmentFailure(f"{request} was answered with {failure}")

    def _refused(self, request: str, answer: Response) -> Refused | EpisodeTimeout:
        kind, told = _read_error(answer)
        remedy = ""
        if answer.status in (401, 403):
            remedy = f" (the token comes from {self.key_env})" if self.key_env else " (token_env is not set)"
        message = f"{request} was answered with {answer.status} {answer.reason}: {self.without_key(told)}{remedy}"
        if answer.status == 504 and kind == "timeout":
            return EpisodeTimeout(message)  # one call of one environment hung; the server itself is well
        return Refused(message, answer.status, answer.retry_after)


def _read_error(answer: Response) -> tuple[str, str]:
    """Return kind and message of an error answer: in the words of `uirl serve`, of FastAPI, or as it is."""
    try:
        value = loads(answer.content)
    except WireError:
        return "", repr(answer.text[:SHOWN])
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return str(error.get("kind", "")), str(error.get("message", ""))[: 4 * SHOWN]
    return "", repr(value)[:SHOWN]


# -- servers ----------------------------------------------------------------------------------------------------------


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
            out, others = self._backoff_of(server), sum(one.failures == 0 for one in self.servers)
            server.out_until = self._clock() + out
            if is_round(server.failures):
                told = "%s is left out for %.0f s after failure %d; %d of %d servers are in use. %s"
                _LOG.warning(told, server.url, out, server.failures, others, len(self.servers), shown(why, 300))

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


# -- one session at a time --------------------------------------------------------------------------------------------


class RemoteEnvironment(ConfigurableEnvironment):
    """An environment on one of several servers. What `spawn` returns shares the servers and what is known of them."""

    options_class = ServerPoolOptions
    options: ServerPoolOptions
    default_url: ClassVar[str] = "http://127.0.0.1:8000"
    """Where no server is named."""

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Asks no server yet. Raises ConfigError for options that do not fit."""
        super().__init__(config, options, **keys)
        options = self.options
        addresses = [*([] if options.url is None else [options.url]), *options.urls] or [self.default_url]
        self.pool = ServerPool(
            [checked_url(address, "token_env") for address in addresses],
            [checked_url(address, "token_env") for address in options.fallback_urls],
            max_sessions=self._max_sessions(),
            acquire_timeout=options.acquire_timeout,
            retry_backoff=options.retry_backoff,
        )
        self.client = EnvironmentClient(options.token_env)
        self._server: Server | None = None
        self.last_url = ""
        """The server that was last asked for a session of this instance; it stays when the session has ended."""
        self._turns = 0
        """Steps since the reset, where `_end` counts them."""

    def spawn(self) -> Self:
        """Return another session on the same servers."""
        other = copy.copy(self)
        other._server, other.last_url = None, ""
        other._forget()
        return other

    def __deepcopy__(self, memo: Any) -> Self:
        return self.spawn()

    async def close(self) -> None:  # type: ignore[override]
        """End the session, on the server too where it can be reached."""
        server = self._server
        if server is None:
            return
        self._server = None
        await self._let_go(server)

    async def _let_go(self, server: Server) -> None:
        """End what there is of a session on `server`, and give the place back also where it cannot be reached."""
        leaving = asyncio.ensure_future(self._leave(server))
        try:
            with suppress(RolloutFailure):
                await asyncio.shield(leaving)
        except asyncio.CancelledError:
            await _settle(leaving)
            raise
        finally:
            self._forget()
            self.pool.give_back(server)
            await self.client.release()

    async def _end(self, result: StepResult) -> StepResult:
        """End the session where `result` ends the episode: others may be waiting for one."""
        self._turns += 1
        if result.done or (self.max_turns is not None and self._turns >= self.max_turns):
            await self.close()
        return result

    @property
    def url(self) -> str:
        """The server of the current session; empty: there is none."""
        return self._server.url if self._server else ""

    # -- for the protocols -----------------------------------------------------------------------------------------

    def _max_sessions(self) -> int | None:
        """Return sessions per server that this process opens; None: as many as a server takes."""
        return None

    @abstractmethod
    async def _open(self, server: Server) -> None:
        """Open a session on `server`."""

    @abstractmethod
    async def _leave(self, server: Server) -> None:
        """End the session on `server`."""

    @abstractmethod
    def _forget(self) -> None:
        """Clear what this instance knows of its session. It may share it with the instance it was copied from: nothing
        is closed here."""

    async def _lease(self) -> None:
        """Hold a session on some server, going from one to the next until one takes it.

        Raises what the last one said once the pool's `acquire_timeout` has passed.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.pool.acquire_timeout
        last: RolloutFailure | None = None
        while self._server is None:
            try:
                server = await self.pool.take(max(0.0, deadline - loop.time()))
            except RolloutFailure as nobody:
                raise (last or nobody) from None
            last = await self._try(server)

    async def _try(self, server: Server) -> RolloutFailure | None:
        """Open a session on `server`; the failure after which another server may be asked, None: it is open."""
        self.client.hold()
        self.last_url = server.url
        opening = asyncio.ensure_future(self._open(server))
        try:
            await asyncio.shield(opening)
        except BaseException as error:  # cancelled or not, half a session must not stay behind
            await _settle(opening)
            another_may = self._judge(server, error)
            await self._let_go(server)
            if isinstance(error, RolloutFailure) and another_may:
                return error
            raise
        self._server = server
        self.pool.well(server)
        return None

    def _judge(self, server: Server, error: BaseException) -> bool:
        """Tell the pool why no session was opened, before the place goes to who waits; return whether another server
        may be asked."""
        if isinstance(error, Refused) and error.status == 503:
            self.pool.full(server, error.retry_after or 1.0)
        elif isinstance(error, (ServerLost, NoAnswer)):
            self.pool.take_out(server, str(error))
        else:
            if isinstance(error, RolloutFailure):
                self.pool.doubt(server, str(error))
            return False
        return True

    @contextmanager
    def _asking(self, url: str) -> Iterator[None]:
        """Return a context for a request about the session: a server that is lost is taken out of the pool, and an
        answer that makes no sense is its failure."""
        if self._server is None:
            raise EnvironmentFailure(f"{type(self).__name__} has no session; reset it first")
        try:
            with understood(url):
                yield
        except RolloutFailure as error:
            self._blame(error)
            raise

    def _blame(self, error: RolloutFailure) -> None:
        """Take the session's server out of the pool where the failure is its own."""
        if self._server is not None and isinstance(error, (ServerLost, NoAnswer)):
            self.pool.take_out(self._server, str(error))


async def _settle(request: asyncio.Future[None]) -> None:
    """Wait a moment for the answer to a request whose caller was cancelled: it says which session there is to end, or
    that it has ended."""
    with suppress(asyncio.CancelledError):  # a second time: what is known by now is ended all the same
        await asyncio.wait({request}, timeout=GOODBYE)
    if not request.done():
        request.cancel()
        await asyncio.wait({request}, timeout=GOODBYE)
    if request.done() and not request.cancelled():
        request.exception()


@contextmanager
def understood(url: str) -> Iterator[None]:
    """Return a context in which an answer that makes no sense is a failure of the server that gave it."""
    try:
        yield
    except WireError as error:
        raise EnvironmentFailure(f"{url} answered something else than was asked for: {error}") from None
