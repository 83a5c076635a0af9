"""Connections that say nothing, or say it slowly, and the readers beside them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.viewer.browsing import SECONDS, viewer
from tests.viewer.runs import make_run, trajectory
from uirl.viewer import server

HALVES = [b"", b"GET /api/runs HTTP/1.1\r\nHo", b"GET /api/runs HTTP/1.1\r\nHost: evil.example\r\n\r\n"]
NAMES = ["silent", "half a header", "of another site"]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", [trajectory("a")])


@contextlib.contextmanager
def connections(address: str, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    """`count` connections that have sent `first` and then nothing."""
    to = urlsplit(address)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection((to.hostname, to.port), SECONDS)) for _ in range(count)]
        for one in made:
            one.sendall(first)
        yield made


def said(connection: socket.socket) -> bytes:
    """What the server still says before it closes. Times out, and fails, where it does not close."""
    parts = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            parts += piece
    return parts


@pytest.mark.parametrize("first", HALVES[:2], ids=NAMES[:2])
def test_one_who_never_says_what_he_wants_is_sent_away(run, monkeypatch, first):
    monkeypatch.setattr(server, "HEADER_SECONDS", 0.2)
    with viewer(run) as address, connections(address, 3, first) as strangers:
        assert [said(one)[:12] for one in strangers] == [b"HTTP/1.1 408"] * 3


@pytest.mark.parametrize("first", HALVES, ids=NAMES)
def test_strangers_do_not_keep_readers_out(run, monkeypatch, first):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 16)
    monkeypatch.setattr(server, "HEADER_SECONDS", 600.0)
    with viewer(run) as address, httpx.Client(base_url=address, timeout=SECONDS) as reader:
        assert reader.get("/api/runs").status_code == 200
        with connections(address, 64, first), httpx.Client(base_url=address, timeout=SECONDS) as late:
            assert reader.get("/api/runs").status_code == 200
            assert late.get("/api/runs").status_code == 200


def test_what_is_nested_too_deep_is_refused(run):
    with viewer(run) as address, httpx.Client(base_url=f"{address}/api/runs/run", timeout=SECONDS) as reader:
        label = reader.put("/trajectories/a/label", content="[" * 60_000, headers={"content-type": "application/json"})
        place = reader.get("/trajectories", params={"after": "W1tb" * 3500})
        with (run / "metrics.jsonl").open("a") as file:
            file.write("[" * 100_000 + "\n")
        rows = reader.get("/metrics")
    assert (label.status_code, place.status_code, rows.status_code) == (400, 400, 200)
    assert [row["step"] for row in rows.json()["rows"]] == [1, 2, 3]


def test_a_viewer_that_is_told_to_stop_ends_without_a_traceback(run):
    command = [sys.executable, "-u", "-m", "uirl", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[-1]
        with httpx.Client(base_url=address, timeout=SECONDS) as reader:  # its connection stays open
            assert reader.get("/api/runs/run/metrics").status_code == 200
            process.terminate()
            said = process.communicate(timeout=SECONDS)[1]
    assert "Traceback" not in said, said
