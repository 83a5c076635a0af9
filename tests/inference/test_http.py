"""The client of a model server that fails in every way: what is tried again, told, and kept secret."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from tests.inference.stand_in_http import Answer, StandIn
from uirl.errors import ConfigError, EngineFailure
from uirl.inference.http import ModelServerClient, ServerFailure

KEY = "sk-very-secret-4711"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


def client_of(server: StandIn, **options) -> ModelServerClient:
    return ModelServerClient(server.url, **({"backoff": 0.01, "timeout": 5.0} | options))


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


async def test_a_failure_tells_what_was_asked_what_came_back_and_what_to_do(server: StandIn) -> None:
    client = client_of(server, retries=2)
    server.faults += [Answer("no " + "x" * 500, 422)]
    with pytest.raises(ServerFailure) as caught:
        await client.post("/v1/completions", {})
    assert caught.value.status == 422
    assert f"POST {server.url}/v1/completions failed after 1 try: 422" in str(caught.value)
    assert "(and 203 more characters)" in str(caught.value)
    server.faults += [Answer("out of memory", 503)] * 3
    with pytest.raises(EngineFailure, match=r"after 3 tries: 503 .*'out of memory'.*server's own log"):
        await client.post("/x", {})
    server.faults += [Answer("out of memory", 503)]
    with pytest.raises(ServerFailure, match="after 1 try"):  # what may not happen twice, such as loading an adapter
        await client.post("/x", {}, retries=0)
    again = pickle.loads(pickle.dumps(ServerFailure("lost")))
    assert str(again) == "lost"


async def test_what_to_do_about_a_key(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(server, api_key_env="TEST_KEY")
    monkeypatch.setenv("TEST_KEY", KEY)
    server.faults += [Answer(f"Incorrect API key: {KEY}", 401), Answer("who are you", 401)]
    with pytest.raises(ServerFailure, match=r"\*\*\*.*TEST_KEY holds a key that it does not take"):
        await client.post("/x", {})
    monkeypatch.delenv("TEST_KEY")
    with pytest.raises(ServerFailure, match="TEST_KEY is not set"):
        await client.get("/x")


def test_what_is_no_address_is_refused_and_a_secret_in_it_not_repeated() -> None:
    for address in ("host:8000", f"http://me:{KEY}@host:1"):
        with pytest.raises(ConfigError, match="http://host:8000") as caught:
            ModelServerClient(address)
        assert KEY not in str(caught.value)
