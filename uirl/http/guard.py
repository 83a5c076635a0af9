"""The guard before every route of our servers: who may ask, from where, and how much.

Without a secret a server listens on a loopback address, and even then other web sites are kept out: a page that a
browser on this machine shows could otherwise call it, under its own name (`Origin`), or under one that was bound to
127.0.0.1 later (`Host`: DNS rebinding).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket

from uirl.errors import without_addresses
from uirl.http.server import HEADER_LIMIT, PROVE, host_of, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refusal(Exception):
    """A request that gets no answer. `kind` says in a word why; `retry_after`: seconds after which to ask again."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(without_addresses(message))
        self.status, self.kind, self.headers = status, kind, dict(headers or {})
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after)))


@dataclass(frozen=True, slots=True)
class Rules:
    """What one server asks of those who come."""

    answer: Callable[[Refusal], Response]
    """Writes a refusal as the clients of this server read it."""
    admit: Callable[[HTTPConnection], Collection[str] | Response]
    """Returns the rights of who asks, none where the route is open to everybody; a response that answers in the
    route's place; or raises a Refusal."""
    body_limit: int
    """Bytes."""
    local_only: bool
    """No secret protects the server: it answers to names of this machine alone."""
    port: int | None = None
    """With `local_only`: the port that a `Host` must name; None: any."""
    content_types: Sequence[str] = ()
    """Of a POST, PUT or PATCH; empty: any. Pages may send others to a foreign address without asking."""
    sockets: bool = False
    """WebSockets are taken."""
    opened_from_elsewhere: Callable[[HTTPConnection], bool] = lambda connection: False
    """Whether a link on another site may lead here."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of every answer that does not set them itself."""
    on_refused: Callable[[], None] = lambda: None


class Guard:
    """ASGI middleware: refuses, or writes the rights of a request into `scope['state']['rights']` and lets it through,
    with a body of at most so many bytes."""

    def __init__(self, app: Any, rules: Rules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules, http = self._rules, scope["type"] == "http"
        if not http and scope["type"] != "websocket":
            return await self._app(scope, receive, send)
        if http and rules.headers:
            send = _with_headers(send, rules.headers)
        elif not http and not rules.sockets:
            return await send({"type": "websocket.close", "code": 1008})
        try:
            admitted = self._admitted(HTTPConnection(scope))
        except Refusal as refusal:
            return await self._refuse(refusal, scope, receive, send)
        if isinstance(admitted, Response):
            return await admitted(scope, receive, send)
        if admitted:
            scope.get(PROVE, lambda: None)()  # where there are too many connections, others go first
        scope.setdefault("state", {})["rights"] = admitted
        await self._app(scope, self._measured(receive) if http else receive, send)

    def _admitted(self, connection: HTTPConnection) -> Collection[str] | Response:
        rules, headers = self._rules, connection.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        if rules.local_only and not _is_local(host, rules.port):
            names = " or ".join(f"{name}:{rules.port}" if rules.port else name for name in ("localhost", "127.0.0.1"))
            raise Refusal(403, "host", f"this server answers on this machine alone, as {names}; got {host[:100]!r}")
        site = headers.get("sec-fetch-site", "none")
        elsewhere = site not in ("none", "same-origin") and not rules.opened_from_elsewhere(connection)
        if elsewhere or (origin is not None and origin not in (f"http://{host}", f"https://{host}")):
            raise Refusal(403, "rights", "requests from pages of other web sites are refused")
        size = sum(len(name) + len(value) + 4 for name, value in connection.scope["headers"])
        # the parser bounds only what arrives in several pieces
        if size + len(connection.scope.get("query_string", b"")) > HEADER_LIMIT:
            raise Refusal(431, "size", f"headers and query of more than {HEADER_LIMIT} bytes")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > rules.body_limit:
            raise self._too_large()
        admitted = rules.admit(connection)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        written = connection.scope.get("method") in ("POST", "PUT", "PATCH")
        if rules.content_types and written and kind not in rules.content_types:
            expected = " or ".join(rules.content_types)
            raise Refusal(400, "content type", f"expected the content type {expected}, got {kind[:60]!r}")
        return admitted

    def _too_large(self) -> Refusal:
        return Refusal(413, "size", f"the body is longer than the {self._rules.body_limit} bytes this server takes")

    def _measured(self, receive: Receive) -> Receive:
        """`receive` that stops where a body without a length grows too large."""
        size = 0

        async def measured() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._rules.body_limit:
                await _drain(receive, self._rules.body_limit)
                raise self._too_large()
            return message

        return measured

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        self._rules.on_refused()
        answer = self._rules.answer(refusal)
        answer.headers["connection"] = "close"
        if scope["type"] == "http":
            await _drain(receive, self._rules.body_limit)
            await answer(scope, receive, send)
        else:
            del answer.headers["content-length"]  # uvicorn writes its own, older versions beside ours
            await WebSocket(scope, receive, send).send_denial_response(answer)


def rights_of(connection: HTTPConnection) -> Collection[str]:
    """Return the rights that the guard gave a request."""
    rights: Collection[str] = connection.scope.get("state", {}).get("rights", ())
    return rights


def token_of(connection: HTTPConnection) -> str | None:
    """Return the bearer token of a request, or the password of a person's browser; None: it has neither."""
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("latin-1").partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return None


def is_secret(token: str | None, *secrets: str | None) -> bool:
    """Return whether a token is one of the secrets. Every one is compared, so that the time tells nothing."""
    given = (token or "").encode("utf-8", "replace")
    matches = [hmac.compare_digest(given, secret.encode()) for secret in secrets if secret]
    return token is not None and any(matches)


def _is_local(host: str, port: int | None) -> bool:
    name = host_of(host)
    wrong_port = port is not None and not host.endswith(f":{port}") and not (port == 80 and host.strip("[]") == name)
    return not wrong_port and (is_loopback(name) or name.endswith(".localhost"))


async def _drain(receive: Receive, max_bytes: int) -> None:
    """Read what is left of a body, `max_bytes` and a second at most: a client that is cut off while it still sends
    never reads why."""
    read = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while read <= max_bytes:
                message = await receive()
                read += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in headers.items() if k.encode() not in there]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sending
