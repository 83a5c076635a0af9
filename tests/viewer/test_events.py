"""The stream of a run's news: who listens, who comes back, who never reads, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request

from tests.viewer.browsing import viewer
from tests.viewer.runs import make_run, trajectory
from uirl.storage import TrajectoryStore
from uirl.viewer import live
from uirl.viewer.runs import Run

SECONDS = 60
EVENTS = "/api/events?run=run,0,0"


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.02)
    monkeypatch.setattr(live, "MOST_STREAMS", 9)


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "run", [trajectory("a")])


class Listener:
    """One who listens, by hand: an answer that never ends."""

    def __init__(self, address: str, path: str = EVENTS, *, buffer: int | None = None) -> None:
        to = urlsplit(address)
        self._socket = socket.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(SECONDS)
        self._socket.connect((to.hostname, to.port))
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {to.netloc}\r\n\r\n".encode())
        self._file = self._socket.makefile("rb")

    def next(self, name: str) -> Any:
        """Return the data of the next event of this name."""
        while (line := self._file.readline()) != f"event: {name}\n".encode():
            assert line, "the stream has ended"
        return json.loads(self._file.readline().removeprefix(b"data: "))

    def line(self, wanted: bytes) -> bytes:
        """Return the next line that begins so; empty: the stream ended."""
        while (line := self._file.readline()) and not line.startswith(wanted):
            pass
        return line

    def ends(self) -> bool:
        """Return whether the stream ends, which it does by itself or not at all."""
        try:
            while self._file.read(1 << 16):
                pass
        except ConnectionError:
            return True
        return True

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def grow(run: Path, *steps: int, **values: Any) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step, "time": 1.0, **values}) + "\n" for step in steps)


def test_news_reach_every_listener(run):
    with viewer(run) as address:
        listeners = [Listener(address) for _ in range(5)]
        for one in listeners:
            assert [row["step"] for row in one.next("metrics")["rows"]] == [1, 2, 3]
            assert one.next("trajectories") == {"run": "run", "count": 1}
        grow(run, 4)
        assert [[row["step"] for row in one.next("metrics")["rows"]] for one in listeners] == [[4]] * 5
        with TrajectoryStore(run / "trajectories.sqlite") as store:
            store.add(trajectory("b"), step=4)
        assert [one.next("trajectories")["count"] for one in listeners] == [2] * 5
        for one in listeners:
            one.close()


def test_one_who_comes_back_misses_nothing_and_hears_nothing_twice(run):
    with viewer(run) as address:
        first = Listener(address)
        place = first.next("metrics")["next"]
        first.close()
        grow(run, 4, 5)
        again = Listener(address, f"/api/events?run=run,{place},0")
        assert [row["step"] for row in again.next("metrics")["rows"]] == [4, 5]
        again.close()


def test_a_file_that_is_replaced_is_said_to_begin_again(run):
    with viewer(run) as address:
        one = Listener(address)
        one.next("metrics")
        fresh = run / "fresh.jsonl"
        fresh.write_text('{"step": 1, "time": 2.0}\n')
        fresh.replace(run / "metrics.jsonl")
        assert one.next("restart") == {"run": "run"}
        assert [row["time"] for row in one.next("metrics")["rows"]] == [2.0]
        one.close()


def test_a_stream_without_news_says_that_it_is_there(run, monkeypatch):
    monkeypatch.setattr(live, "COMMENT", 0.01)
    with viewer(run) as address:
        one = Listener(address)
        assert one.line(b"retry:") == b"retry: 2000\n"
        one.next("trajectories")
        assert one.line(b":") == b": still here\n"
        one.close()


def test_one_who_never_reads_holds_up_nobody_and_not_the_end(run):
    grow(run, *range(4, 2000), text="x" * 5_000)  # more than all buffers on the way hold
    with viewer(run) as address:
        deaf = [Listener(address, buffer=4096) for _ in range(3)]
        one = Listener(address)
        assert len(one.next("metrics")["rows"]) > 1000
        one.next("trajectories")
        grow(run, 2000)
        assert [row["step"] for row in one.next("metrics")["rows"]] == [2000]
    assert one.ends()  # the viewer went, whoever listened
    for listener in (*deaf, one):
        listener.close()


def test_a_run_that_is_removed_does_not_end_the_stream(run):
    with viewer(run.parent) as address:
        one = Listener(address)
        one.next("trajectories")
        (run / "trajectories.sqlite").unlink()
        assert one.next("trajectories")["count"] == 0
        with TrajectoryStore(run / "trajectories.sqlite") as store:
            store.add_many([trajectory("x"), trajectory("y")], step=1)
        assert one.next("trajectories")["count"] == 2
        one.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:8123"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
    ],
)
def test_the_stream_is_guarded_as_all_else(client, headers):
    assert client.get(EVENTS, headers=headers).status_code == 403


@pytest.mark.parametrize(
    ("query", "status"),
    [("run=none,0,0", 404), ("run=run,x,0", 400), ("run=run", 400), ("run=run,0,2", 400), ("", 400)],
)
def test_a_stream_of_nothing_is_refused(client, query, status):
    assert client.get(f"/api/events?{query}").status_code == status


def test_one_stream_tells_of_several_runs(run):
    make_run(run.parent / "other", [trajectory("a"), trajectory("b")])
    with viewer(run.parent) as address:
        one = Listener(address, "/api/events?run=run,0,0&run=other,0,0")
        assert [one.next("trajectories") for _ in range(2)] == [
            {"run": "run", "count": 1},
            {"run": "other", "count": 2},
        ]
        grow(run.parent / "other", 4)
        news = one.next("metrics")
        assert (news["run"], [row["step"] for row in news["rows"]]) == ("other", [4])
        one.close()


def test_streams_leave_connections_for_the_rest(run, monkeypatch):
    monkeypatch.setattr(live, "MOST_STREAMS", 2)
    with viewer(run) as address:
        held = [Listener(address) for _ in range(2)]
        for one in held:
            one.next("metrics")
        refused = httpx.get(f"{address}{EVENTS}", timeout=SECONDS)
        assert (refused.status_code, "enough streams" in refused.json()["error"]) == (429, True)
        held[0].close()
        for _ in range(SECONDS * 10):  # its place is free once it was noticed
            with httpx.stream("GET", f"{address}{EVENTS}", timeout=SECONDS) as answer:
                if answer.status_code == 200:
                    break
            time.sleep(0.1)
        assert answer.status_code == 200
        held[1].close()


def test_a_file_that_cannot_be_read_any_more_ends_the_stream(run):
    with viewer(run) as address:
        one = Listener(address)
        one.next("metrics")
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").mkdir()
        assert one.ends()
        one.close()
        assert httpx.get(f"{address}/api/runs/run/metrics", timeout=SECONDS).status_code == 404


def test_streams_that_are_asked_for_at_once_are_counted_at_once(run, monkeypatch):
    monkeypatch.setattr(live, "MOST_STREAMS", 2)
    streams = live.Streams()
    request = Request({"type": "http", "client": ("127.0.0.1", 1), "method": "GET", "headers": []})
    given = [streams.events([live.Followed(Run("run", run), 0, False)], request) for _ in range(6)]
    assert [one is not None for one in given] == [True, True, False, False, False, False]
    gone = OSError("the client went before the stream began")

    async def send(message: object) -> None:
        raise gone

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    for one in given[:2]:
        with contextlib.suppress(BaseExceptionGroup, OSError):
            asyncio.run(one({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send))
    assert streams.count == 0
