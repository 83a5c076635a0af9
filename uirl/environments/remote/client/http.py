"""HTTP to servers of environments: time limits, typed failures, and nothing done twice.

What may be repeated (a look, a heartbeat, a reset) is sent again after growing pauses where it got lost or the server
was busy. An act is sent again only where it never left this machine: one whose outcome is unknown is a failure of the
episode, because an action that is taken twice would be a lie in the record. A token never appears in a message.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from uirl.environments.remote.protocol.native import WireError, dumps, loads
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout
from uirl.runtime.limits import shown

if TYPE_CHECKING:
    import httpx

CONNECT = 10.0
"""Seconds to reach a server."""
LARGEST = 100 * 2**20
"""Bytes of an answer, unpacked: a few kilobytes of gzip may stand for gigabytes."""
SHOWN = 300
"""Characters of an answer that stand in an error."""
LONGEST_PAUSE = 10.0
_BUSY = frozenset({429, 502, 503})
# a proxy that the environment names must not stand between two processes of one machine
_MOUNTS = {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}

T = TypeVar("T")


class ServerLost(EnvironmentFailure):
    """The server cannot be reached, or broke off: it is taken out of the pool for a while."""


class NoAnswer(EpisodeTimeout):
    """The server took a request and says nothing: it, too, is taken out for a while."""


class Refused(EnvironmentFailure):
    """The server answered, and the answer is no."""

    status = 0
    kind_said = ""
    """Of an error in the words of `uirl serve`: 'capacity', 'lease', 'environment', ...; empty: other servers."""
    retry_after: float | None = None


class TooLong(EnvironmentFailure):
    """An answer of more than `LARGEST` bytes."""


class EnvironmentClient:
    """Requests to any number of servers with one token.

    `token_env`: environment variable of the token, read at every call and sent as a bearer token; None: none.
    Raises ConfigError where the variable is empty and where the package httpx is missing.
    """

    def __init__(self, token_env: str | None = None, *, retries: int = 3, backoff: float = 0.25) -> None:
        self.token_env, self.retries, self.backoff = token_env, retries, backoff
        self._httpx = import_httpx()
        self._open: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, int]] = {}
        self._lock = threading.Lock()
        self._jitter = random.Random()
        self.headers()

    def headers(self) -> dict[str, str]:
        """What every request says about who asks."""
        if self.token_env is None:
            return {}
        token = os.environ.get(self.token_env, "").strip()
        if not (token and token.isascii() and token.isprintable()):
            raise ConfigError(
                f"the environment variable {self.token_env} holds no token; set it to the one that the servers know, "
                "or leave token_env out"
            )
        return {"authorization": f"Bearer {token}"}

    def hold(self) -> None:
        """Keeps the connections of the running event loop open until `release` was called as often."""
        loop = asyncio.get_running_loop()
        with self._lock:
            for ended in [other for other in self._open if other.is_closed()]:
                del self._open[ended]
            client, users = self._open.get(loop) or (self._new_client(), 0)
            self._open[loop] = (client, users + 1)

    async def release(self) -> None:
        """Gives up one `hold`; the last one closes the connections."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client, users = self._open.pop(loop)
            if users > 1:
                self._open[loop] = (client, users - 1)
                return
        await client.aclose()

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        timeout: float,
        again: bool,
        retries: int | None = None,
    ) -> httpx.Response:
        """The answer, where its status is below 300; call it between `hold` and `release`.

        `again`: it may happen twice. `timeout`: seconds of one try. `retries` None: the client's. Raises ServerLost,
        NoAnswer, Refused, or EpisodeTimeout where the server says that its environment hung.
        """
        headers = self.headers() | ({"content-type": "application/json"} if json is not None else {})
        given = {name: value for name, value in (params or {}).items() if value is not None}
        content = None if json is None else dumps(json)
        most = 1 + (self.retries if retries is None else retries)
        client = self._open[asyncio.get_running_loop()][0]
        never_sent = (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.PoolTimeout)
        for tries in range(1, most + 1):
            pause = min(self.backoff * 2.0 ** (tries - 1), LONGEST_PAUSE) * self._jitter.uniform(0.5, 1.0)
            try:
                async with asyncio.timeout(timeout if math.isfinite(timeout) else None):
                    async with client.stream(method, url, params=given, content=content, headers=headers) as sent:
                        pieces = [piece async for piece in _bounded(sent.aiter_bytes(), url)]
                answer = _whole(sent, pieces)
            except TimeoutError:
                raise NoAnswer(f"{method} {url}: no answer within {timeout:g} s") from None
            except self._httpx.RequestError as error:
                if tries == most or not (again or isinstance(error, never_sent)):
                    raise self._lost(method, url, error, tries) from None
            else:
                if answer.status_code < 300:
                    return answer
                refused = self._refused(method, url, answer)
                if tries == most or not again or answer.status_code not in _BUSY:
                    raise refused
                pause = max(pause, min(refused.retry_after or 0.0, LONGEST_PAUSE))
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    async def json(self, method: str, url: str, **options: Any) -> Any:
        """What the JSON of the answer says; see `send`. Raises EnvironmentFailure for an answer that is none."""
        answer = await self.send(method, url, **options)
        try:
            return loads(answer.content)
        except WireError as error:
            raise EnvironmentFailure(f"{method} {url} answered {text_of(answer)[:SHOWN]!r}: {error}") from None

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
        """What `read` makes of the first answer that makes sense to a GET, or to a POST of `question`; waits for it,
        event loop or not. `timeout`: seconds of silence.

        Raises EnvironmentFailure with `problem`, what each server said, and `remedy` where none gives one.
        """
        said = []
        with self._httpx.Client(
            timeout=self._httpx.Timeout(timeout, connect=CONNECT), headers=self.headers(), mounts=_MOUNTS
        ) as client:
            for url in urls:
                try:
                    method = "GET" if question is None else "POST"
                    with client.stream(method, url + path, json=question) as sent:
                        pieces, size = [], 0
                        for piece in sent.iter_bytes():
                            pieces.append(piece)
                            size = _added(size, piece, url)
                    answer = _whole(sent, pieces)
                    if answer.status_code == 200:
                        return read(loads(answer.content))
                    said.append(f"{url}: {answer.status_code} {text_of(answer)[:100]!r}")
                except (self._httpx.RequestError, WireError, EnvironmentFailure) as error:
                    said.append(f"{url}: {type(error).__name__}: {error}")
        raise EnvironmentFailure(f"{problem}: {'; '.join(said)}. {remedy}")

    # -- inside --------------------------------------------------------------------------------------------------

    def _new_client(self) -> httpx.AsyncClient:
        return self._httpx.AsyncClient(
            # a deadline stands around the whole try; httpx itself only knows pauses between bytes
            timeout=self._httpx.Timeout(None, connect=CONNECT),
            # servers with uvicorn's defaults close a connection after 5 idle seconds: be earlier, or an act gets lost
            limits=self._httpx.Limits(max_connections=None, max_keepalive_connections=512, keepalive_expiry=3),
            mounts=_MOUNTS,
        )

    def _lost(self, method: str, url: str, error: Exception, tries: int) -> ServerLost:
        count = "1 try" if tries == 1 else f"{tries} tries"
        return ServerLost(
            f"{method} {url} failed after {count}: {type(error).__name__}: {str(error)[:SHOWN]}. Does the server run, "
            "and is its address right?"
        )

    def _refused(self, method: str, url: str, answer: httpx.Response) -> Refused:
        status, said = answer.status_code, _said(answer)
        remedy = ""
        if status in (401, 403):
            remedy = f" (the token comes from {self.token_env})" if self.token_env else " (token_env is not set)"
        message = f"{method} {url} was answered with {status} {answer.reason_phrase}: {said['message']}{remedy}"
        if status == 504 and said["kind"] == "timeout":
            raise EpisodeTimeout(message)  # one call of one environment hung; the server itself is well
        refused = Refused(message)
        refused.status, refused.kind_said = status, said["kind"]
        refused.retry_after = _seconds(answer.headers.get("retry-after"))
        return refused


def text_of(answer: httpx.Response) -> str:
    """The words of an answer. They are UTF-8 here, whatever its header says: not every name of an encoding is one of
    texts, and what is wrong with an answer must not raise where it is told."""
    return answer.content.decode("utf-8", "replace")


async def _bounded(pieces: AsyncIterator[bytes], url: str) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        size = _added(size, piece, url)
        yield piece


def _added(size: int, piece: bytes, url: str) -> int:
    """The size with this piece. Raises TooLong."""
    if size + len(piece) > LARGEST:
        raise TooLong(f"{url} answered with more than {LARGEST} bytes; expected less")
    return size + len(piece)


def _whole(sent: httpx.Response, pieces: Sequence[bytes]) -> httpx.Response:
    """The answer with its body, unpacked."""
    packed = ("content-encoding", "content-length", "transfer-encoding")
    headers = [(name, value) for name, value in sent.headers.multi_items() if name not in packed]
    return type(sent)(sent.status_code, headers=headers, content=b"".join(pieces), request=sent.request)


def import_httpx() -> Any:
    """The package httpx; raises ConfigError where it is missing."""
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("an environment behind a server needs httpx: pip install 'uirl[client]'") from error
    return httpx


def checked_url(url: Any) -> str:
    """The address of a server without its last slash. Raises ConfigError for what is none, or holds a secret."""
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{shown(url, 80)} is no address of a server; expected one like 'http://host:8000'")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("the server's address holds a user, a password or a query; the token belongs in token_env")
    return str(url).rstrip("/")


def _said(answer: httpx.Response) -> dict[str, str]:
    """Kind and message of an error answer: in the words of `uirl serve`, of FastAPI, or as it is."""
    try:
        value = loads(answer.content)
    except WireError:
        return {"kind": "", "message": repr(text_of(answer)[:SHOWN])}
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return {"kind": str(error.get("kind", "")), "message": str(error.get("message", ""))[: 4 * SHOWN]}
    return {"kind": "", "message": repr(value)[:SHOWN]}


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
