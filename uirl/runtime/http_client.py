"""What engines behind a server speak through: JSON over HTTP, with retries and typed failures.

Sent again, after growing pauses: what got lost on the way (no connection, a connection that broke), a 408 or 429, and
any 5xx. Not sent again: other answers, which would be the same, and a request whose time is up, because a server that
is too slow is not helped by more of the same. The key never appears in a message, a log or a repr.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from uirl.errors import ConfigError, EngineFailure, PromptTooLong

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

LONGEST_PAUSE = 30.0
"""Seconds: no pause between two tries is longer, whatever the server asks for."""
LARGEST = 100 * 2**20
"""Bytes of an answer, unpacked: a few kilobytes of gzip may stand for gigabytes."""
SHOWN = 300
"""Characters of an answer that stand in an error."""
_CONNECT = 10.0
_AGAIN = frozenset({408, 429})
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ServerFailure(EngineFailure):
    """A server gave no usable answer."""

    status: int | None = None
    """HTTP status of the last answer; None: there was none."""


class ServerPromptTooLong(ServerFailure, PromptTooLong):
    """A server says that prompt and reply take more tokens than its model does."""


_TOO_LONG = re.compile(
    r"context[_ ]length|context (window|size)|maximum (model|sequence|allowed) length|max_model_len"
    r"|prompt is too long|token count[^.]{0,20}exceeds|inputs?\W+tokens\W+\+\W+\W*max_new_tokens",
    re.IGNORECASE,
)
"""How servers say so: OpenAI and vLLM (`context_length_exceeded`, "maximum context length", "maximum model length"),
SGLang ("context length", "maximum allowed length"), llama.cpp ("context size"), TGI, Anthropic, Gemini."""


def says_too_long(text: str) -> bool:
    """Whether the words of a server that refused a prompt say that it is too long for its model."""
    return _TOO_LONG.search(text[:4000]) is not None


class HTTPClient:
    """JSON over HTTP to one server, from any number of event loops; as many requests at once as are made.

    `base_url`: 'http://host:8000', with or without a path. `api_key_env`: environment variable with the server's key,
    read at every call and sent as a bearer token; None or an empty variable: no key. `timeout`: seconds that one try
    may take, all of it. `retries`: further tries after the first. `backoff`: seconds of the first pause, which doubles.
    Raises ConfigError for an address that is none or holds a secret, and where the package httpx is missing.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key_env: str | None = None,
        timeout: float = 120.0,
        retries: int = 3,
        backoff: float = 0.5,
    ) -> None:
        self.base_url = _checked(base_url)
        self.api_key_env = api_key_env
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self._httpx = _import_httpx()
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._lock = threading.Lock()
        self._jitter = random.Random()
        self._closed = False

    def __repr__(self) -> str:
        return f"HTTPClient({self.base_url!r})"

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        text: bool = False,
    ) -> Any:
        """The server's answer to `body` as JSON: see `request`. `retries=0` for what must not happen twice."""
        return await self.request("POST", path, body, timeout=timeout, retries=retries, text=text)

    async def get(
        self, path: str, *, timeout: float | None = None, retries: int | None = None, text: bool = False
    ) -> Any:
        """The server's answer as JSON: see `request`."""
        return await self.request("GET", path, None, timeout=timeout, retries=retries, text=text)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        text: bool = False,
    ) -> Any:
        """What the JSON of the answer says; with `text` the answer as it is. An empty answer is None.

        `timeout`, `retries`: for this call; None: those of the client. Raises ServerFailure with the address, what
        came back, the number of tries and a remedy.
        """
        limit = self.timeout if timeout is None else timeout
        most = 1 + (self.retries if retries is None else retries)
        headers = {"content-type": "application/json"} | self._authorization()
        # escaped to ASCII: half a surrogate pair, which a policy can well say, has no UTF-8
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        for tries in range(1, most + 1):
            pause = min(self.backoff * 2.0 ** (tries - 1), LONGEST_PAUSE) * self._jitter.uniform(0.5, 1.0)
            try:
                answer, said = await self._send(method, path, headers, content, limit)
            except TimeoutError:
                what = f"no answer within {limit:g} s"
                remedy = "Raise inference.request_timeout, or ask for less at once (rollout.parallel)."
                raise self._failure(method, path, what, tries, remedy) from None
            except self._httpx.RequestError as error:
                if tries == most:
                    raise self._lost(method, path, error, tries) from None
            else:
                if answer.status_code < 300:
                    return self._read(method, path, answer.status_code, said, tries, text)
                if tries == most or not (answer.status_code in _AGAIN or answer.status_code >= 500):
                    raise self._refused(method, path, answer, _text(said), tries)
                pause = max(pause, min(_retry_after(answer.headers.get("retry-after")), LONGEST_PAUSE))
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last try returns or raises")

    async def close(self) -> None:
        """Closes all connections. Calling it twice is fine; calls that come later fail."""
        self._closed = True
        with self._lock:
            clients, self._clients = self._clients, {}
        here = asyncio.get_running_loop()
        for loop, client in clients.items():
            if loop is here:
                await client.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(client.aclose(), loop))
            # a loop that ended took its connections with it

    # -- one try -----------------------------------------------------------------------------------------------

    async def _send(
        self, method: str, path: str, headers: dict[str, str], content: bytes | None, limit: float
    ) -> tuple[httpx.Response, bytes]:
        """The answer and its body. Raises ServerFailure for a body of more than `LARGEST` bytes."""
        client = self._client()
        said = bytearray()
        async with asyncio.timeout(limit if math.isfinite(limit) else None):
            async with client.stream(method, self.base_url + path, headers=headers, content=content) as answer:
                async for piece in answer.aiter_bytes():
                    said += piece
                    if len(said) > LARGEST:
                        what = f"an answer of more than {LARGEST} bytes"
                        remedy = "Is inference.server_url the address of such a server?"
                        raise self._failure(method, path, what, 1, remedy, answer.status_code)
        return answer, bytes(said)

    def _client(self) -> httpx.AsyncClient:
        """The client of the running loop: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise EngineFailure(f"the client of {self.base_url} is closed; make a new engine")
            for ended in [other for other in self._clients if other.is_closed()]:
                del self._clients[ended]
            if loop not in self._clients:
                self._clients[loop] = self._httpx.AsyncClient(
                    # one deadline stands around the whole try; httpx itself only knows pauses between bytes
                    timeout=self._httpx.Timeout(None, connect=_CONNECT),
                    limits=self._httpx.Limits(max_connections=None, max_keepalive_connections=512, keepalive_expiry=3),
                    # a proxy that the environment names must not stand between two processes of one machine
                    mounts={f"all://{host}": None for host in _LOOPBACK},
                )
            return self._clients[loop]

    def _read(self, method: str, path: str, status: int, said: bytes, tries: int, text: bool) -> Any:
        if text:
            return _text(said)
        if not said.strip():
            return None
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            what = f"an answer that is no JSON: {self.shown(_text(said))}"
            remedy = "Is inference.server_url the address of such a server?"
            raise self._failure(method, path, what, tries, remedy, status) from None

    # -- the key -----------------------------------------------------------------------------------------------

    def _key(self) -> str:
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def _authorization(self) -> dict[str, str]:
        key = self._key()
        if key and not (key.isascii() and key.isprintable()):
            raise EngineFailure(
                f"the environment variable {self.api_key_env} holds characters that no HTTP header may carry; expected "
                "a key of printable ASCII"
            )
        return {"authorization": f"Bearer {key}"} if key else {}

    def shown(self, text: str) -> str:
        """What came back, for an error: short, and without the key where the server repeats it."""
        key = self._key()
        clean = text.replace(key, "***") if key else text
        return repr(clean[:SHOWN]) + (f" (and {len(clean) - SHOWN} more characters)" if len(clean) > SHOWN else "")

    # -- failures ----------------------------------------------------------------------------------------------

    def _lost(self, method: str, path: str, error: Exception, tries: int) -> ServerFailure:
        what = f"{type(error).__name__}: {self.shown(str(error))}"
        return self._failure(method, path, what, tries, "Does the server run, and is inference.server_url its address?")

    def _refused(self, method: str, path: str, answer: httpx.Response, said: str, tries: int) -> ServerFailure:
        status = answer.status_code
        if status in (401, 403):
            given = "is not set" if not self._key() else "holds a key that it does not take"
            remedy = f"The server wants a key; the environment variable {self.api_key_env} {given}"
            remedy = f"{remedy} (inference.api_key_env)." if self.api_key_env else "The server wants a key."
        elif status == 404:
            remedy = "Is inference.server_url right, and does the server know inference.server_model?"
        elif status == 429:
            remedy = "Ask for less at once (rollout.parallel), or try more often (inference.request_retries)."
        elif status >= 500:
            remedy = "The server's own log says more."
        elif status < 400:
            remedy = "The server points elsewhere; give inference.server_url the address that answers."
        else:
            remedy = "The server does not take this request; its answer says why."
        what = f"{status} {answer.reason_phrase}: {self.shown(said)}"
        if status in (400, 413, 422) and says_too_long(said):
            remedy = "Set inference.max_context to what its model takes, or show less (rollout.token_budget)."
            return self._failure(method, path, what, tries, remedy, status, ServerPromptTooLong)
        return self._failure(method, path, what, tries, remedy, status)

    def _failure(
        self,
        method: str,
        path: str,
        what: str,
        tries: int,
        remedy: str,
        status: int | None = None,
        kind: type[ServerFailure] = ServerFailure,
    ) -> ServerFailure:
        count = "1 try" if tries == 1 else f"{tries} tries"
        failure = kind(f"{method} {self.base_url}{path} failed after {count}: {what}. {remedy}")
        failure.status = status
        return failure


class Once(Generic[T]):
    """What `make()` returns, made once however many ask at the same time. A failure reaches all who waited for it;
    whoever asks later tries again."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._made: list[T] = []
        self._running: dict[asyncio.AbstractEventLoop, asyncio.Future[T]] = {}

    async def get(self) -> T:
        if self._made:
            return self._made[0]
        loop = asyncio.get_running_loop()
        running = self._running.get(loop)
        if running is None or running.done():
            running = self._running[loop] = asyncio.ensure_future(self._run())
        # one who goes away must not take it from the others
        return await asyncio.shield(running)

    async def _run(self) -> T:
        value = await self._make()
        self._made[:] = [value]
        return value


def _checked(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.username or parts.password or parts.query or parts.fragment:
        # not shown: it may hold a secret
        raise ConfigError(
            "the server's address holds a user, a password or a query; expected 'http://host:8000', and the key in the "
            "environment variable that inference.api_key_env names"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{base_url!r} is no address of a server; expected one like 'http://host:8000'")
    return base_url.rstrip("/")


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("an engine behind a server needs the package httpx: pip install 'uirl[server]'") from error
    return httpx


def _text(said: bytes) -> str:
    """The words of an answer. They are UTF-8 here, whatever its header says: not every name of an encoding is one of
    texts, and what is wrong with an answer must not raise where it is told."""
    return said.decode("utf-8", "replace")


def _retry_after(value: str | None) -> float:
    """Seconds that a `Retry-After` header asks to wait, a number or a date; 0 where it says nothing readable."""
    if not value:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = parsedate_to_datetime(value)
        except ValueError:
            return 0.0
        seconds = ((when if when.tzinfo else when.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0
