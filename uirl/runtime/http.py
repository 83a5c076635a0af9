"""HTTP under the clients of engines and of environment servers: time limits, bounded answers, retries, typed failures.

A try that runs out of time is never repeated: a server that is too slow is not helped by more of the same. What else is
sent again says the `RetryPolicy` of a request. No credential appears in a failure made here.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential

from uirl.errors import ConfigError
from uirl.runtime.limits import shown

if TYPE_CHECKING:
    import ssl

    import httpx

POOL = 8
"""Connections that one client of httpx has: what it does for a request takes time with the square of their number."""
KEPT = 3.0
"""Seconds that an idle connection is kept. Servers with uvicorn's defaults close it after 5: be earlier, or a request
that must not happen twice gets lost."""
CONNECT = 10.0
"""Seconds to reach a server."""
MAX_BYTES = 100 * 2**20
"""Of one answer, unpacked: a few kilobytes of gzip may stand for gigabytes."""
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class RequestFailure(Exception):
    """A request got no usable answer. The message says what came back instead."""

    tries: int = 1
    """How often it was sent."""


class ConnectionLost(RequestFailure):
    """There was no connection, or it broke."""

    def __init__(self, error: Exception, *, never_sent: bool) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error, self.never_sent = error, never_sent
        """The request never left this machine."""


class NoResponse(RequestFailure):
    """The whole answer was not there in time."""


class ResponseTooLarge(RequestFailure):
    """The answer is larger than is read."""


class ErrorStatus(RequestFailure):
    """The answer has a status of 300 or more."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.status} {response.reason}")
        self.response = response


class ClientClosed(RequestFailure):
    """The client was closed before."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, read to its end."""

    url: str
    status: int
    reason: str
    """The phrase of the status, e.g. 'Not Found'."""
    headers: Mapping[str, str]
    """Names in any case."""
    content: bytes

    @property
    def text(self) -> str:
        """The content as UTF-8, whatever its header says: not every name of an encoding is one of texts."""
        return self.content.decode("utf-8", "replace")

    @property
    def retry_after(self) -> float | None:
        """Seconds that the server asks to wait; None: it does not say."""
        return read_retry_after(self.headers.get("retry-after"))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is sent again, and after which pauses.

    A pause is `backoff * 2^(tries - 1)` seconds, at most `max_pause`, shortened by chance to at least its half, and not
    shorter than a `Retry-After` header asks for within `max_pause`.
    """

    retries: int = 3
    """Further tries after the first."""
    backoff: float = 0.5
    """Seconds of the first pause."""
    max_pause: float = 30.0
    """Seconds."""
    statuses: Collection[int] = (408, 429, *range(500, 600))
    """Answers after which the same request may be answered otherwise."""
    idempotent: bool = True
    """The request may happen twice. Else it is sent again only where it never left this machine."""

    def repeats(self, failure: BaseException) -> bool:
        """Return whether a request that failed so may be sent again."""
        if isinstance(failure, ConnectionLost):
            return self.idempotent or failure.never_sent
        return self.idempotent and isinstance(failure, ErrorStatus) and failure.response.status in self.statuses

    def pause(self, state: RetryCallState, jitter: random.Random) -> float:
        """Return the seconds to wait after a try that failed."""
        failure = state.outcome.exception() if state.outcome is not None else None
        pause = wait_exponential(self.backoff, self.max_pause)(state) * jitter.uniform(0.5, 1.0)
        requested = failure.response.retry_after if isinstance(failure, ErrorStatus) else None
        return max(pause, min(requested or 0.0, self.max_pause))


@dataclass(slots=True)
class _Pool:
    """A client of httpx with up to `POOL` connections to one server."""

    client: httpx.AsyncClient
    busy: int = 0
    """Requests under way."""
    since: float = field(default_factory=time.monotonic)
    """When its last request began or ended."""

    @property
    def stale(self) -> bool:
        """Whether its connections have expired: httpx closes them when that client is used again, and not before."""
        return not self.busy and time.monotonic() - self.since > KEPT


@dataclass(slots=True)
class _Connections:
    """Those of one event loop."""

    pools: dict[str, list[_Pool]] = field(default_factory=dict)
    """Server -> those to it."""
    holders: int = 0

    def take_stale(self) -> list[_Pool]:
        """Return the pools whose connections have expired, which are no more of these."""
        stale = [pool for pools in self.pools.values() for pool in pools if pool.stale]
        if stale:
            kept = {server: [pool for pool in pools if pool not in stale] for server, pools in self.pools.items()}
            self.pools = {server: pools for server, pools in kept.items() if pools}
        return stale

    async def close(self) -> None:
        for pool in itertools.chain(*self.pools.values()):
            await pool.client.aclose()


@dataclass(slots=True)
class HTTPTransport:
    """Requests to any servers from any number of event loops; as many at once as are made.

    Connections belong to the event loop that opened them. They stay open until `close`, or until the last `release` of
    those who called `hold` in that loop.
    """

    extra: str
    """Optional dependencies of uirl that hold httpx, for the error where it is missing: 'server'."""
    max_bytes: int = MAX_BYTES
    """Of one answer; one that is larger is refused while it is read."""
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    """Waits between two tries."""
    _open: dict[asyncio.AbstractEventLoop, _Connections] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _jitter: random.Random = field(default_factory=random.Random)
    _closed: bool = False
    _tls: ssl.SSLContext | None = None
    """Of all clients: one takes long to make."""

    def __post_init__(self) -> None:
        """Raise ConfigError where the package httpx is missing."""
        import_httpx(self.extra)

    def __reduce__(self) -> Any:
        return type(self), (self.extra, self.max_bytes)  # connections belong to this process

    async def send(
        self,
        method: str,
        url: str,
        policy: RetryPolicy,
        *,
        timeout: float,
        headers: Mapping[str, str],
        params: Mapping[str, Any] | None = None,
        content: bytes | None = None,
    ) -> Response:
        """Return the answer, where its status is below 300. Raises RequestFailure for the last of all tries.

        Args:
            method, url, headers, params, content: the request; parameters that are None are left out.
            policy: when it is sent again.
            timeout: seconds of one try, all of it.
        """
        # an empty dict would take away the query that stands in the url
        query = {name: value for name, value in (params or {}).items() if value is not None} or None
        attempts = AsyncRetrying(
            retry=retry_if_exception(policy.repeats),
            stop=stop_after_attempt(1 + policy.retries),
            wait=lambda state: policy.pause(state, self._jitter),
            sleep=self.sleep,
            reraise=True,
        )
        try:
            return await attempts(self._try, timeout, method, url, params=query, content=content, headers=headers)
        except RequestFailure as failure:
            failure.tries = attempts.statistics["attempt_number"]
            raise

    def hold(self) -> None:
        """Keep the connections of the running event loop open until `release` was called as often."""
        with self._lock:
            self._connections().holders += 1

    async def release(self) -> None:
        """Give up one `hold`; the last one closes the connections of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            connections = self._open[loop]
            connections.holders -= 1
            if connections.holders > 0:
                return
            del self._open[loop]
        await connections.close()

    async def close(self) -> None:
        """Close all connections. Calling it twice is fine; requests that come later raise ClientClosed."""
        self._closed = True
        with self._lock:
            left, self._open = self._open, {}
        here = asyncio.get_running_loop()
        for loop, connections in left.items():
            if loop is here:
                await connections.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(connections.close(), loop))
            # a loop that ended took its connections with it

    # -- one try -----------------------------------------------------------------------------------------------

    async def _try(self, timeout: float, method: str, url: str, **request: Any) -> Response:
        httpx = import_httpx(self.extra)
        with self._lock:
            pool = self._pool(urlsplit(url).netloc)
            pool.busy, pool.since = pool.busy + 1, time.monotonic()
            stale = self._connections().take_stale()
        try:
            async with asyncio.timeout(timeout if math.isfinite(timeout) else None):
                for other in stale:
                    await other.client.aclose()
                async with pool.client.stream(method, url, **request) as answer:
                    body = await self._body(answer)
                response = Response(str(answer.url), answer.status_code, answer.reason_phrase, answer.headers, body)
        except TimeoutError:
            raise NoResponse(f"no answer within {timeout:g} s") from None
        except httpx.RequestError as error:
            never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
            raise ConnectionLost(error, never_sent=never_sent) from None
        finally:
            pool.busy, pool.since = pool.busy - 1, time.monotonic()
        if response.status >= 300:
            raise ErrorStatus(response)
        return response

    async def _body(self, answer: httpx.Response) -> bytes:
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > self.max_bytes:
                raise ResponseTooLarge(f"{answer.status_code} with more than {self.max_bytes} bytes")
        return bytes(body)

    def _connections(self) -> _Connections:
        """Return those of the running event loop, with the lock held. Those of loops that ended are forgotten."""
        if self._closed:
            raise ClientClosed("the client is closed")
        for ended in [loop for loop in self._open if loop.is_closed()]:
            del self._open[ended]
        loop = asyncio.get_running_loop()
        return self._open.setdefault(loop, _Connections())

    def _pool(self, server: str) -> _Pool:
        """Return a pool of the running event loop with a place for a request to `server`, with the lock held."""
        pools = self._connections().pools.setdefault(server, [])
        free = next((pool for pool in pools if pool.busy < POOL), None)
        if free is None:
            free = _Pool(self._client())
            pools.append(free)
        return free

    def _client(self) -> httpx.AsyncClient:
        httpx = import_httpx(self.extra)
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return httpx.AsyncClient(
            # a deadline stands around the whole try; httpx itself only knows pauses between bytes
            timeout=httpx.Timeout(None, connect=CONNECT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=POOL, keepalive_expiry=KEPT),
            # a proxy that the environment names must not stand between two processes of one machine
            mounts={f"all://{host}": None for host in _LOOPBACK},
            verify=self._tls,
        )


def count_tries(tries: int) -> str:
    """Return '1 try', '2 tries', ..., for a message."""
    return "1 try" if tries == 1 else f"{tries} tries"


def checked_url(url: object, credential_home: str) -> str:
    """Return the address of a server without its last slash.

    Raises ConfigError for what is no address, and for one that holds a secret, which belongs in `credential_home`.
    """
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is not None and (parts.username or parts.password or parts.query or parts.fragment):
        # not shown: it may hold a secret
        raise ConfigError(
            "the server's address holds a user, a password or a query; expected one like 'http://host:8000', and the "
            f"credential in {credential_home}"
        )
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{shown(url, 80)} is no address of a server; expected one like 'http://host:8000'")
    return str(url).rstrip("/")


def read_retry_after(value: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header asks to wait, a number or a date (RFC 9110, 10.2.3); None where
    it says nothing readable."""
    try:
        seconds = float(value or "")
    except ValueError:
        try:
            moment = parsedate_to_datetime(value or "")
        except ValueError:
            return None
        seconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def import_httpx(extra: str) -> Any:
    """Return the package httpx. Raises ConfigError that names the `extra` of uirl to install where it is missing."""
    try:
        import httpx
    except ImportError as error:
        raise ConfigError(f"what speaks to a server needs the package httpx: pip install 'uirl[{extra}]'") from error
    return httpx
