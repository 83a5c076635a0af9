"""Who may ask what: the guard before every route.

Everything but `/health` needs agent rights; routes that show rewards, progress or checks ask for grader rights on top.
Without tokens the port must be a loopback address, and even then other web sites are kept out: a page that a browser on
this machine shows (the very page of a task, say) could otherwise call the server and help itself to a reward.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket

from uirl.environments.remote.server.counters import Counters
from uirl.environments.remote.server.problems import HeadersTooLarge, NotAllowed, NoToken, Refusal, TooLarge, body
from uirl.environments.remote.server.settings import Tokens
from uirl.runtime.connections import PROVE
from uirl.runtime.wire import dumps

HEADER_LIMIT = 16 * 1024
"""Bytes of a request's headers and query together."""
PUBLIC = frozenset({"/health"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """ASGI middleware: knows the tokens, measures bodies, and writes the rights of a request into its scope."""

    def __init__(
        self, app: Any, tokens: Tokens, counters: Counters, *, body_limit: int, local_names_only: bool
    ) -> None:
        self._app, self._tokens, self._counters = app, tokens, counters
        self._body_limit, self._local_names_only = body_limit, local_names_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            self._refuse_other_sites(connection)
            self._refuse_large(connection)
            rights = self._rights(connection)
        except Refusal as refusal:
            self._counters.add("uirl_requests_denied_total")
            if scope["type"] == "http":
                await _drain(receive, self._body_limit)
            await _deny(refusal, scope, receive, send)
            return
        if rights:
            scope.get(PROVE, lambda: None)()
        scope.setdefault("state", {})["grader"] = "grader" in rights
        await self._app(scope, self._measured(receive) if scope["type"] == "http" else receive, send)

    def _rights(self, connection: HTTPConnection) -> set[str]:
        # not connection.url, which older versions of Starlette make of the Host header: a client could name any path
        if connection.scope["path"] in PUBLIC:
            return set()
        token = _token_of(connection)
        if self._tokens.grader is not None and _same(token, self._tokens.grader):
            return {"agent", "grader"}
        has_tokens = self._tokens.grader is not None or self._tokens.agent is not None
        if self._tokens.agent is None or _same(token, self._tokens.agent):
            return {"agent"} if has_tokens else {"agent", "grader"}
        if token is None:
            raise NoToken("this server wants a token: send the header 'Authorization: Bearer <token>'")
        raise NoToken("the server does not know this token")

    def _refuse_other_sites(self, connection: HTTPConnection) -> None:
        host = connection.headers.get("host", "")
        if self._local_names_only and _name_of(f"//{host}") not in LOOPBACK_NAMES:
            raise NotAllowed(f"this server answers to localhost, not to {host[:100]!r}")
        origin = connection.headers.get("origin")
        elsewhere = origin is not None and origin.partition("://")[2] != host
        if elsewhere or connection.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise NotAllowed("requests from pages of other web sites are refused")

    def _refuse_large(self, connection: HTTPConnection) -> None:
        header_bytes = sum(len(name) + len(value) + 4 for name, value in connection.scope["headers"])
        # the parser bounds only what arrives in several pieces
        if header_bytes + len(connection.scope.get("query_string", b"")) > HEADER_LIMIT:
            raise HeadersTooLarge(f"headers and query of more than {HEADER_LIMIT} bytes")
        length = connection.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self._body_limit:
            raise TooLarge(f"a body of {length[:20]} bytes; this server takes at most {self._body_limit}")

    def _measured(self, receive: Receive) -> Receive:
        """`receive` that stops where a body without a length grows too large."""
        size = 0

        async def measured() -> MutableMapping[str, Any]:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._body_limit:
                await _drain(receive, self._body_limit)
                raise HTTPException(413, f"the body is larger than the {self._body_limit} bytes this server takes")
            return message

        return measured


def require_grader(connection: HTTPConnection) -> None:
    """Raise NotAllowed unless the request has grader rights."""
    if not may_grade(connection):
        raise NotAllowed(
            "this needs the grader's token: rewards, progress, verdicts, demonstrations and the checks of a task are "
            "not the agent's to see (serve --grader-token-env names it)"
        )


def require_owner(connection: HTTPConnection, opened_by_grader: bool) -> None:
    """Raise NotAllowed where an agent would reset or close the session of a grader."""
    if opened_by_grader and not may_grade(connection):
        raise NotAllowed(
            "a grader opened this session: only a grader resets or closes it, for its verdict is about the instance "
            "that the grader chose; open a session of your own"
        )


def may_grade(connection: HTTPConnection) -> bool:
    """Return whether the request may see rewards, progress and checks."""
    return bool(connection.scope.get("state", {}).get("grader", False))


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


async def _deny(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    headers = {**refusal.headers, "connection": "close"}
    answer = Response(dumps(body(refusal.kind, str(refusal))), refusal.status, headers, media_type="application/json")
    if scope["type"] == "websocket":
        del answer.headers["content-length"]  # uvicorn writes its own, older versions beside ours
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await answer(scope, receive, send)


def _token_of(connection: HTTPConnection) -> str | None:
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":  # a person's browser: any name, the token as password
        try:
            return base64.b64decode(value, validate=True).decode("latin-1").partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return None


def _same(token: str | None, expected: str) -> bool:
    return token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode())


def _name_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
