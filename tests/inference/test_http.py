"""The client of a model server that fails in every way: what is tried again, told, and kept secret."""

from __future__ import annotations

import gzip
import logging
import pickle
import socket
import sys
from collections.abc import Iterator

import pytest

from tests.inference.stand_in_http import Answer, StandIn
from uirl.errors import ConfigError, EngineFailure
from uirl.inference.http import HTTPClient, ServerFailure

KEY = "sk-very-secret-4711"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


def client_of(server: StandIn, **options) -> HTTPClient:
    return HTTPClient(server.url, **({"backoff": 0.01, "timeout": 5.0} | options))


async def test_json_goes_out_and_comes_back(server: StandIn) -> None:
    client = client_of(server)
    body = {"text": "naïve \ud83d", "ids": [1, 2], "none": None}
    assert await client.post("/x", body) == {"got": body}
    assert await client.get("/y") == {"got": None}
    assert [(s.method, s.path) for s in server.seen] == [("POST", "/x"), ("GET", "/y")]
    server.faults += [Answer(b""), Answer("Cache flushed.\n"), Answer("Cache flushed.\n")]
    assert await client.get("/empty") is None
    assert await client.get("/text", text=True) == "Cache flushed.\n"
    with pytest.raises(ServerFailure, match="no JSON: 'Cache flushed"):
        await client.get("/text")
    await client.close()


@pytest.mark.parametrize("status", [500, 502, 503, 408, 429])
async def test_passing_trouble_is_tried_again(server: StandIn, status: int) -> None:
    server.faults += [Answer("busy", status), Answer("busy", status)]
    client = client_of(server)
    assert await client.post("/x", {"n": 1}) == {"got": {"n": 1}}
    assert len(server.seen) == 3
    await client.close()


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 422])
async def test_what_would_be_the_same_again_is_not_tried_again(server: StandIn, status: int) -> None:
    server.faults += [Answer("no " + "x" * 500, status)]
    client = client_of(server)
    with pytest.raises(ServerFailure) as caught:
        await client.post("/v1/completions", {})
    message = str(caught.value)
    assert len(server.seen) == 1
    assert caught.value.status == status
    assert f"POST {server.url}/v1/completions failed after 1 try: {status}" in message
    assert "(and 203 more characters)" in message
    assert len(message) < 800
    await client.close()


async def test_the_last_try_tells_everything(server: StandIn) -> None:
    server.faults += [Answer("out of memory", 503)] * 3
    client = client_of(server, retries=2)
    with pytest.raises(EngineFailure, match=r"after 3 tries: 503 .*'out of memory'.*server's own log"):
        await client.post("/x", {})
    server.faults += [Answer("out of memory", 503)]
    with pytest.raises(ServerFailure, match="after 1 try"):
        await client.post("/x", {}, retries=0)
    again = pickle.loads(pickle.dumps(ServerFailure("lost")))
    assert str(again) == "lost"
    await client.close()


async def test_half_an_answer_and_none_at_all_are_lost_connections(server: StandIn) -> None:
    server.faults += [Answer({"long": "x" * 200}, keep=0.5), Answer(keep=0.0)]
    client = client_of(server)
    assert await client.post("/x", {"n": 1}) == {"got": {"n": 1}}
    server.faults += [Answer({"long": "x" * 200}, keep=0.5)] * 2
    with pytest.raises(ServerFailure, match=r"after 2 tries: RemoteProtocolError.*Does the server run"):
        await client.post("/x", {}, retries=1)
    await client.close()


async def test_nobody_there_is_a_typed_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port on which nobody listens
        client = HTTPClient(f"http://127.0.0.1:{taken.getsockname()[1]}", retries=2, backoff=0.01)
        with pytest.raises(ServerFailure, match=r"after 3 tries: ConnectError.*inference\.server_url") as caught:
            await client.get("/health")
    assert caught.value.status is None
    await client.close()


async def test_a_server_that_hangs_is_asked_once(server: StandIn) -> None:
    server.faults += [Answer({}, seconds=3.0)]
    client = client_of(server)
    with pytest.raises(ServerFailure, match=r"after 1 try: no answer within 0.2 s. Raise inference.request_timeout"):
        await client.post("/x", {}, timeout=0.2)
    assert len(server.seen) <= 1  # none where the time was over before it came
    server.faults.clear()
    assert await client.post("/x", {}) == {"got": {}}
    await client.close()


async def test_the_key_is_read_at_the_call_and_shown_nowhere(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client = client_of(server, api_key_env="TEST_KEY", retries=1)
    monkeypatch.delenv("TEST_KEY", raising=False)
    await client.get("/x")
    assert "authorization" not in server.seen[-1].headers
    monkeypatch.setenv("TEST_KEY", f" {KEY}\n")
    await client.get("/x")
    assert server.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    told = [repr(client), str(vars(client))]
    for fault in (Answer(f"Incorrect API key: {KEY}", 401), Answer(f"{KEY} is no JSON"), Answer(f"{KEY}", 500)):
        server.faults += [fault, fault]
        with pytest.raises(ServerFailure) as caught:
            await client.post("/x", {})
        server.faults.clear()
        told += [str(caught.value), repr(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    assert "holds a key that it does not take" in told[2]
    assert "***" in told[2]
    assert not [text for text in [*told, caplog.text] if KEY in text]
    await client.close()


async def test_a_key_that_no_header_carries_is_named_not_shown(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(server, api_key_env="TEST_KEY")
    for bad in (f"{KEY}\r\nx-evil: 1", f"{KEY}é"):
        monkeypatch.setenv("TEST_KEY", bad)
        with pytest.raises(EngineFailure, match="TEST_KEY holds characters") as caught:
            await client.get("/x")
        assert KEY not in str(caught.value)
    monkeypatch.delenv("TEST_KEY")
    server.faults += [Answer("who are you", 401)]
    with pytest.raises(ServerFailure, match="TEST_KEY is not set"):
        await client.get("/x")
    assert len(server.seen) == 1
    await client.close()


@pytest.mark.parametrize(
    "address",
    [
        "host:8000",
        "",
        "ftp://host",
        "http://",
        f"http://me:{KEY}@host:1",
        f"http://host/v1?key={KEY}",
        f"http://{KEY}@host",
    ],
)
def test_what_is_no_address_is_refused_and_a_secret_in_it_not_repeated(address: str) -> None:
    with pytest.raises(ConfigError, match="http://host:8000") as caught:
        HTTPClient(address)
    assert KEY not in str(caught.value)


async def test_calls_after_the_end_fail(server: StandIn) -> None:
    client = client_of(server, retries=0)
    await client.get("/x")
    await client.close()
    await client.close()
    with pytest.raises(EngineFailure, match=f"the client of {server.url} is closed"):
        await client.get("/x")


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigError, match=r"pip install 'uirl\[server\]'"):
        HTTPClient("http://127.0.0.1:1")


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("name", ["undefined", "rot13", "zlib_codec", "hex", "idna", "punycode"])
async def test_an_encoding_that_is_none_is_a_failure_like_any(server: StandIn, status: int, name: str) -> None:
    server.faults.append(Answer(b"<html>\xff</html>", status, {"content-type": f"text/html; charset={name}"}))
    with pytest.raises(ServerFailure, match="<html>"):
        await client_of(server).post("/x", {})


async def test_a_small_answer_that_unpacks_to_a_large_one_is_refused(
    server: StandIn,
) -> None:
    client = client_of(server)
    client.transport.max_bytes = 2**20
    packed = {"content-encoding": "gzip"}
    server.faults += [Answer(gzip.compress(b" " * 2**24), 200, packed), Answer(gzip.compress(b'{"n": 7}'), 200, packed)]
    with pytest.raises(ServerFailure, match="more than 1048576 bytes"):
        await client.post("/x", {})
    assert await client.post("/x", {}) == {"n": 7}
    await client.close()
