"""Who may ask: the guard before every route of the viewer.

On a loopback address the `Host` of a request must be that address: a page of another site whose name was bound to
127.0.0.1 later (DNS rebinding) sends its own name. Beyond loopback a token is needed. Requests that pages of other
sites make are refused either way.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, Response

from uirl.runtime.connections import PROVE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

WRITES = ("POST", "PUT", "DELETE", "PATCH")
WRITTEN_TYPES = ("application/json", "text/csv")
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Of every answer; a route that sets one of them itself keeps its own."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the server listens, and what it asks of those who come."""

    host: str
    """As it was bound."""
    port: int
    token: str | None = None
    """None: none is needed, and only names of the loopback address are answered to."""

    @property
    def hosts(self) -> frozenset[str] | None:
        """Values of `Host` that are answered to; None: any, as the token says who asks."""
        if self.token is not None:
            return None
        names = {"localhost", "127.0.0.1", "[::1]", _in_url(self.host)}
        plain = names if self.port == 80 else set()
        return frozenset({f"{name}:{self.port}" for name in names} | plain)

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies are shared by all ports of a host."""
        return f"uirl_view_{self.port}"

    @property
    def cookie_value(self) -> str:
        assert self.token is not None
        return hmac.new(self.token.encode(), b"uirl view", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address. A name other than localhost may lead anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware: refuses, or lets through and adds `HEADERS` to the answer."""

    def __init__(self, app: Any, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = self._refusal(scope)
        if answer is None and PROVE in scope:
            scope[PROVE]()  # where there are too many connections, those that were refused go first
        await (answer or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = self._access.hosts
        host = headers.get("host", "")
        if hosts is not None and host not in hosts:
            return _refuse(403, f"this viewer answers to {', '.join(sorted(hosts))}; got the host {host[:100]!r}")
        if not _same_site(headers, host, scope):
            return _refuse(403, "requests from pages of other sites are refused; open the viewer itself")
        if self._access.token is not None and not self._known(headers):
            return self._welcome(scope) or _refuse(
                401, "this viewer wants a token: open it with ?token=..., or send 'Authorization: Bearer ...'"
            )
        if scope["method"] in ("POST", "PUT") and _type_of(headers) not in WRITTEN_TYPES:
            got = headers.get("content-type", "")[:60]
            return _refuse(400, f"got the content type {got!r}, expected one of {', '.join(WRITTEN_TYPES)}")
        return None

    def _known(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        assert self._access.token is not None
        if scheme.lower() == "bearer" and _equal(given.strip(), self._access.token):
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._access.cookie)
        except CookieError:
            return False
        return found is not None and _equal(found.value, self._access.cookie_value)

    def _welcome(self, scope: Scope) -> Response | None:
        """Return the page that follows a right token in the address: it keeps a cookie, and the token leaves the
        address. None: there is none, or a wrong one."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        given = query.pop("token", [""])[-1]
        if scope["method"] != "GET" or not _equal(given, self._access.token or ""):
            return None
        rest = urlencode(query, doseq=True)
        # reloaded by the page itself: a redirect after a click in a mail would not carry a strict cookie
        # by a script, as only that knows what stands behind the # of a link
        refresh = HTMLResponse(
            '<!doctype html><script src="/static/lib/enter.js"></script>'
            f'<noscript><meta http-equiv="refresh" content="0;url=/{"?" if rest else ""}{rest}"></noscript>'
        )
        refresh.set_cookie(self._access.cookie, self._access.cookie_value, httponly=True, samesite="strict")
        refresh.headers["cache-control"] = "no-store"
        return refresh


def _same_site(headers: Headers, host: str, scope: Scope) -> bool:
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return False
    site = headers.get("sec-fetch-site", "none")
    opens_page = (
        scope["method"] == "GET"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
        and not scope["path"].startswith("/api")
    )
    return site in ("none", "same-origin") or opens_page  # a permalink in a chat may be followed


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in there]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sending


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status, {"cache-control": "no-store"})


def _type_of(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _equal(given: str, expected: str) -> bool:
    return bool(expected) and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
