"""Who may ask the viewer: this machine alone, or whoever has the token, by header, by cookie, or once by address."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, Response

from uirl.http.guard import Refusal, Rules, is_secret, token_of

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
    """None: none is needed, and only names of this machine are answered to."""

    def rules(self, body_limit: int) -> Rules:
        """Return the rules of the viewer's guard."""
        return Rules(
            answer=lambda refusal: JSONResponse(
                {"error": str(refusal)}, refusal.status, {**refusal.headers, "cache-control": "no-store"}
            ),
            admit=self._admit,
            body_limit=body_limit,
            local_only=self.token is None,
            port=self.port,
            content_types=("application/json", "text/csv"),
            opened_from_elsewhere=_opens_page,
            headers=HEADERS,
        )

    @property
    def cookie(self) -> str:
        """Name of the cookie: cookies are shared by all ports of a host."""
        return f"uirl_view_{self.port}"

    @property
    def cookie_value(self) -> str:
        return hmac.new((self.token or "").encode(), b"uirl view", hashlib.sha256).hexdigest()

    def _admit(self, connection: HTTPConnection) -> Collection[str] | Response:
        if self.token is None or is_secret(token_of(connection), self.token) or self._has_cookie(connection):
            return {"reader"}
        query = parse_qs(connection.scope.get("query_string", b"").decode("latin-1"))
        given = query.pop("token", [""])[-1]
        if connection.scope["method"] != "GET" or not is_secret(given, self.token):
            raise Refusal(
                401, "token", "this viewer wants a token: open it with ?token=..., or send 'Authorization: Bearer ...'"
            )
        # The token leaves the address, and a cookie stays. Reloaded by the page itself: a redirect after a click in a
        # mail would not carry a strict cookie; by a script, as only that knows what stands behind the # of a link.
        rest = urlencode(query, doseq=True)
        page = HTMLResponse(
            '<!doctype html><script src="/static/lib/enter.js"></script>'
            f'<noscript><meta http-equiv="refresh" content="0;url=/{"?" if rest else ""}{rest}"></noscript>'
        )
        page.set_cookie(self.cookie, self.cookie_value, httponly=True, samesite="strict")
        page.headers["cache-control"] = "no-store"
        return page

    def _has_cookie(self, connection: HTTPConnection) -> bool:
        try:
            found = SimpleCookie(connection.headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and is_secret(found.value, self.cookie_value)


def _opens_page(connection: HTTPConnection) -> bool:
    """Return whether a link is followed to a page: a permalink in a chat may be, to data it may not."""
    sent = connection.headers
    document = sent.get("sec-fetch-mode") == "navigate" and sent.get("sec-fetch-dest", "document") == "document"
    return connection.scope["method"] == "GET" and document and not connection.scope["path"].startswith("/api")
