"""The ports of our servers: where they listen, and connections that say nothing, or say it slowly.

A connection is proven once a request on it came with a token. Before, it costs whoever opened it nothing, so it counts
for nothing: it must bring its headers and its body in time, and when there are too many connections the oldest that is
not proven goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from uirl.errors import ConfigError

HEADER_LIMIT = 16 * 1024
"""Bytes of a request's headers and query together."""
BACKLOG = 512
"""Connections that wait to be accepted."""
HEADER_SECONDS = 10.0
"""From the opening of a connection, or the first byte of a further request, to the end of its headers."""
BODY_SECONDS = 120.0
"""From the end of the headers to the end of the body: 64 MB at 0.5 MB/s."""
PROVE = "uirl.prove_connection"
"""Key of a request's scope: call what is there when the request has shown a token."""

_ages = itertools.count()


class ProvenConnection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, with deadlines, and a limit that counts clients instead of sockets."""

    header_seconds, body_seconds = HEADER_SECONDS, BODY_SECONDS
    max_connections = 1024
    """Connections at a time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.proven = False
        self._age = next(_ages)
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_for: str | None = None
        app = self.app

        async def with_proof(scope: Any, receive: Any, send: Any) -> None:
            scope[PROVE] = self._prove
            await app(scope, receive, send)

        self.app = with_proof

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.max_connections:
            self._free_a_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # until the next request begins, the keep-alive time-out holds
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        self._expect("headers" if begun else None)

    def _prove(self) -> None:
        self.proven = True

    def _watch(self) -> None:
        """Set the deadline for what the client still owes."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._expect(None)  # closed, or a WebSocket by now
        elif self.conn.their_state is h11.IDLE:
            self._expect("headers")
        else:
            self._expect("body" if self.conn.their_state is h11.SEND_BODY else None)

    def _expect(self, what: str | None) -> None:
        if what == self._waits_for:
            return  # a byte now and then does not move the deadline
        self._waits_for = what
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = {"headers": self.header_seconds, "body": self.body_seconds}.get(what or "")
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        if self.transport.is_closing():
            return
        if self._waits_for == "headers":
            self._answer(b"408 Request Timeout")
        self.transport.close()

    def _free_a_connection(self) -> None:
        """Let the oldest connection go that has shown no token; where all have, this one."""
        others = [c for c in self.connections if isinstance(c, ProvenConnection) and not c.proven and c is not self]
        if others:
            oldest = min(others, key=lambda c: c._age)
            self.connections.discard(oldest)
            oldest.transport.abort()
        else:
            self._answer(b"503 Service Unavailable")
            self.connections.discard(self)
            self.transport.close()

    def _answer(self, status: bytes) -> None:
        self.transport.write(
            b"HTTP/1.1 " + status + b"\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )


def server_config(app: Any, *, max_connections: int, **options: Any) -> uvicorn.Config:
    """Return how uvicorn serves `app`: without a log, as addresses may hold secrets.

    `options`: further ones of uvicorn, or deadlines of `ProvenConnection`.
    """
    limits: dict[str, Any] = {name: options.pop(name) for name in ("header_seconds", "body_seconds") if name in options}
    limits["max_connections"] = connection_limit(max_connections)
    kind = type("ProvenConnection", (ProvenConnection,), limits)
    usual: dict[str, Any] = {"ws": "none", "log_level": "warning", "h11_max_incomplete_event_size": HEADER_LIMIT}
    usual |= {"http": kind, "access_log": False, "server_header": False}
    return uvicorn.Config(app, **usual | options)


def connection_limit(wanted: int) -> int:
    """Return `wanted`, or half of the files that this process may have open: the environments need some too."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else min(wanted, max(16, files // 2))


@contextlib.contextmanager
def listening(
    host: str, port: int, remedy: str = "choose another port, or 0 for a free one"
) -> Iterator[socket.socket]:
    """Yield a socket that listens on that address. Raises ConfigError with the `remedy` where it cannot be had."""
    with contextlib.ExitStack() as stack:
        try:
            where = socket.getaddrinfo(host.strip("[]") or "0.0.0.0", port, type=socket.SOCK_STREAM)
            family, kind, _, _, address = where[0]
            # said to be TCP in so many words: asyncio otherwise leaves Nagle's algorithm on, and answers wait 40 ms
            listener = stack.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {host}:{port}: {why}; {remedy}") from error
        yield listener


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address. A name other than localhost may lead anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def address_of(host: str, port: int) -> str:
    """Return the address of a server that is bound to `host`."""
    name = host.strip("[]")
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def host_of(header: str) -> str:
    """Return the name in a `Host` header, without its port; empty where it is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
