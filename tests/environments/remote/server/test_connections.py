"""Connections that say nothing, or say it slowly, and the clients beside them."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.environments.remote.running import Served, serving
from tests.patience import PATIENCE
from uirl.http.server import connection_limit

TOKEN = "agent-token-4711"
KEY = f"Authorization: Bearer {TOKEN}"
MOST = 24


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that takes 24 connections and does not close silent ones by itself while a test runs."""
    monkeypatch.setenv("ENV_TOKEN", TOKEN)
    with serving(
        "screen", token_env="ENV_TOKEN", deadlines={"max_connections": MOST, "header_seconds": 600.0}
    ) as served:
        yield served


@contextlib.contextmanager
def connections(url: str, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """`count` connections that have sent `first` and then nothing."""
    address = urlsplit(url)
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            where = (address.hostname or "", address.port or 80)
            made.append(stack.enter_context(socket.create_connection(where, timeout=PATIENCE)))
            made[-1].sendall(first)
        yield made


def read_to_the_end(connection: socket.socket) -> bytes:
    """What the server still says before it closes. Times out, and fails, where it does not close."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            said += piece
    return said


STRANGERS = [b"", b"GET /v1/sessions HTTP/1.1\r\nHost: x", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"]


@pytest.mark.parametrize("first", STRANGERS, ids=["silent", "half a header", "without a token"])
def test_strangers_do_not_keep_clients_out(served: Served, first: bytes) -> None:
    with served.http(TOKEN) as known:
        session = known.post("/v1/sessions", json={"seed": 3}).json()["session"]
        with connections(served.url, 4 * MOST, first) as strangers, served.http(TOKEN) as late:
            assert late.get("/v1/environment").status_code == 200
            assert known.post(f"/v1/sessions/{session}/heartbeat").status_code == 200
            # the oldest went for them; the server holds no more than it may
            closed = read_to_the_end(strangers[0])
            assert closed == b"" or closed.startswith(b"HTTP/1.1 200")
        assert known.delete(f"/v1/sessions/{session}").status_code == 200


def test_clients_beyond_the_limit_are_told_to_come_back(served: Served) -> None:
    asked = f"GET /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
    with connections(served.url, MOST, asked) as proven:
        for one in proven:
            assert one.recv(65536).startswith(b"HTTP/1.1 200")
        with connections(served.url, 1) as late:
            assert read_to_the_end(late[0]).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1")
    # with one of them gone there is room again
    with served.http(TOKEN) as client:
        assert client.get("/v1/sessions").status_code == 200


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b"HTTP/1.1 408"),
        (b"GET /health HTT", b"HTTP/1.1 408"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1", b"HTTP/1.1 200"),  # the second request is the slow one
        (f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\n{KEY}\r\nContent-Length: 9\r\n\r\n{{".encode(), b""),
    ],
    ids=["nothing", "half a header", "half a second request", "half a body"],
)
def test_what_does_not_come_in_time_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes, answer: bytes) -> None:
    monkeypatch.setenv("ENV_TOKEN", TOKEN)
    with serving("screen", token_env="ENV_TOKEN", deadlines={"header_seconds": 0.3, "body_seconds": 0.3}) as served:
        with connections(served.url, 1, sent) as made:
            assert read_to_the_end(made[0]).startswith(answer)
        assert served.active == 0


def test_there_are_no_more_connections_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, 200))
    assert [connection_limit(wanted) for wanted in (4, 1000)] == [4, 100]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert connection_limit(100_000) == 100_000
