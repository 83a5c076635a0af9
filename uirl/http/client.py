"""The client of all servers: time limits, bounded answers, retries, keys, and failures that say what came back.

A try that runs out of time is never repeated: a server that is too slow is not helped by more of the same. Redirects
are not followed: they are failures like any status from 300 on. No credential appears in a failure made here.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential

from uirl.errors import ConfigError
from uirl.runtime.limits import shown
from uirl.runtime.wire import dumps

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
SHOWN = 300
"""Characters of an answer that stand in an error."""
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class RequestFailure(Exception):
    """A request got no usable answer. The message says what came back instead."""

    tries: int = 1
    """How often it was sent."""


class ConnectionLost(RequestFailure):
    """There was no connection, or it broke."""

    def __init__(self, error: object, *, never_sent: bool) -> None:
        super().__init__(f"{'no connection' if never_sent else 'the connection broke'}: {error}"[:SHOWN])
        self.never_sent = never_sent
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


class HTTPClient:
    """Requests to any servers from any number of event loops; as many at once as are made.

    Connections belong to the event loop that opened them. They stay open until `close`, or until the last `release` of
    those who called `hold` in that loop. Between two tries lie `backoff * 2^(tries - 1)` seconds, at most `max_pause`,
    shortened by chance to at least the half, and not fewer than a `Retry-After` header asks for within `max_pause`.
    """

    def __init__(
        self,
        key_env: str | None = None,
        *,
        retries: int = 3,
        backoff: float = 0.5,
        max_pause: float = 30.0,
        statuses: Collection[int] = (408, 429, *range(500, 600)),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """Make a client; it connects with its first request.

        Args:
            key_env: Environment variable with the key, read at every request and sent as a bearer token; None, or an
                empty variable: no key.
            retries: Further tries after the first.
            backoff, max_pause: Seconds between two tries, see above.
            statuses: Answers after which the same request may be answered otherwise.
            max_bytes: Of one answer; one that is larger is refused while it is read.
        """
        self.key_env, self.retries, self.statuses = key_env, retries, statuses
        self.backoff, self.max_pause, self.max_bytes = backoff, max_pause, max_bytes
        self.sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
        self._open: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._lock = threading.Lock()
        self._jitter = random.Random()
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        # connections belong to this process
        return {**vars(self), "_open": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_lock": threading.Lock()})

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        timeout: float,
        again: bool = True,
        retries: int | None = None,
    ) -> Response:
        """Return the answer, where its status is below 300. Raises what `failure` makes of the last try's failure.

        Args:
            method, url: Of the request.
            json: Its body; None: none.
            params: Its query; those that are None are left out.
            timeout: Seconds of one try, all of it.
            again: It may happen twice: it is sent again where it got lost or one of `statuses` came back. Else it is
                sent again only where it never left this machine.
            retries: Further tries after the first; None: the client's.
        """
        # an empty dict would take away the query that stands in the url
        query = {name: value for name, value in (params or {}).items() if value is not None} or None
        headers, content = self.headers(), None if json is None else dumps(json)
        if content is not None:
            headers["content-type"] = "application/json"
        attempts = AsyncRetrying(
            retry=retry_if_exception(lambda failure: self._repeats(failure, again)),
            stop=stop_after_attempt(1 + (self.retries if retries is None else retries)),
            wait=self._pause,
            sleep=self.sleep,
            reraise=True,
        )
        try:
            return await attempts(self._try, timeout, method, url, params=query, content=content, headers=headers)
        except RequestFailure as failure:
            failure.tries = attempts.statistics["attempt_number"]
            raise self.failure(f"{method} {url}", failure) from None

    def failure(self, request: str, failure: RequestFailure) -> Exception:
        """Return what is raised where a `request` ('POST http://...') was given up."""
        return failure

    # -- the key -----------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key; empty: there is none."""
        return os.environ.get(self.key_env, "").strip() if self.key_env else ""

    def headers(self) -> dict[str, str]:
        """Return what every request says about who asks. Raises ConfigError for a key that no header carries."""
        key = self.key
        if key and not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"the environment variable {self.key_env} holds characters that no HTTP header may carry; expected a "
                "key of printable ASCII"
            )
        return {"authorization": f"Bearer {key}"} if key else {}

    def shown(self, text: str) -> str:
        """Return what came back, for an error: short, and without the key where the server repeats it."""
        clean = self.without_key(text)
        return repr(clean[:SHOWN]) + (f" (and {len(clean) - SHOWN} more characters)" if len(clean) > SHOWN else "")

    def without_key(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text

    # -- connections -------------------------------------------------------------------------------------------

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

    def _repeats(self, failure: BaseException, again: bool) -> bool:
        if isinstance(failure, ConnectionLost):
            return again or failure.never_sent
        return again and isinstance(failure, ErrorStatus) and failure.response.status in self.statuses

    def _pause(self, state: RetryCallState) -> float:
        """Return the seconds to wait after a try that failed."""
        failure = state.outcome.exception() if state.outcome is not None else None
        pause = wait_exponential(self.backoff, self.max_pause)(state) * self._jitter.uniform(0.5, 1.0)
        requested = failure.response.retry_after if isinstance(failure, ErrorStatus) else None
        return max(pause, min(requested or 0.0, self.max_pause))

    async def _try(self, timeout: float, method: str, url: str, **request: Any) -> Response:
        import httpx

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
            told = self.without_key(str(error) or type(error).__name__)
            raise ConnectionLost(told, never_sent=never_sent) from None
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
        import httpx

        return httpx.AsyncClient(
            # a deadline stands around the whole try; httpx itself only knows pauses between bytes
            timeout=httpx.Timeout(None, connect=CONNECT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=POOL, keepalive_expiry=KEPT),
            # a proxy that the environment names must not stand between two processes of one machine
            mounts={f"all://{host}": None for host in _LOOPBACK},
            verify=_tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        )


@cache
def _tls(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return what all clients of this process trust; it takes long to make. httpx reads the variables itself."""
    import httpx

    return httpx.create_ssl_context()


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
