"""Requests to a real server: pauses, repetitions, bounds, keys, event loops and proxies, for every client of ours."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from tenacity import AsyncRetrying, RetryCallState

from tests.inference.stand_in_http import Answer, Seen, StandIn
from tests.patience import PATIENCE
from uirl.environments.remote.client.base import EnvironmentClient, NoAnswer, ServerLost
from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout, UirlError
from uirl.http.client import (
    POOL,
    ClientClosed,
    ConnectionLost,
    ErrorStatus,
    HTTPClient,
    NoResponse,
    RequestFailure,
    Response,
    ResponseTooLarge,
    checked_url,
    count_tries,
    read_retry_after,
)
from uirl.inference.http import ModelServerClient, ServerFailure

KEY = "sk-very-secret-4711"
KINDS = ["plain", "model server", "environment"]
FAILURES = (RequestFailure, ServerFailure, EnvironmentFailure, EpisodeTimeout)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


def client_of(kind: str, url: str, key_env: str | None = None, **options: Any) -> HTTPClient:
    options = {"backoff": 0.01, **options}
    if kind == "plain":
        return HTTPClient(key_env, **options)
    if kind == "environment":
        return EnvironmentClient(key_env, **options)
    return ModelServerClient(url, api_key_env=key_env, **options)


async def ask(client: HTTPClient, url: str, timeout: float = 20.0, **options: Any) -> Response:
    return await client.send("GET", url, timeout=timeout, **{"retries": 0, **options})


async def read(client: HTTPClient, url: str, **options: Any) -> Any:
    """What the JSON of an answer says, asked as each client is."""
    if isinstance(client, ModelServerClient):
        return await client.post("/x", {}, **options)
    if isinstance(client, EnvironmentClient):
        return await client.json("POST", url + "/x", json={}, **{"timeout": 20.0, **options})
    return await client.send("POST", url, json={}, **{"timeout": 20.0, **options})


# -- every client ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_passing_trouble_is_tried_again_and_the_rest_is_not(server: StandIn, kind: str) -> None:
    client = client_of(kind, server.url)
    server.faults += [Answer("busy", 503), Answer("busy", 429)]
    await read(client, server.url)
    assert len(server.seen) == 3
    for status in (302, 400, 401, 403, 404, 422):
        server.faults += [Answer("no " + "x" * 900, status)]
        with pytest.raises(FAILURES, match=str(status)) as caught:
            await read(client, server.url)
        assert len(str(caught.value)) < 900
    assert len(server.seen) == 9
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_half_an_answer_and_none_at_all_are_lost_connections(server: StandIn, kind: str) -> None:
    client = client_of(kind, server.url, retries=2)
    server.faults += [Answer({"long": "x" * 200}, keep=0.5), Answer(keep=0.0)]
    await read(client, server.url)
    server.faults += [Answer({"long": "x" * 200}, keep=0.5)] * 3
    with pytest.raises(FAILURES, match="the connection broke") as caught:
        await read(client, server.url)
    assert kind == "plain" or "after 3 tries" in str(caught.value)
    assert len(server.seen) == 6
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_there_is_a_typed_failure(kind: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # a port on which nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = client_of(kind, url, retries=2)
        with pytest.raises((ConnectionLost, ServerFailure, ServerLost), match="no connection") as caught:
            await read(client, url)
    assert kind == "plain" or "Does the server run, and is" in str(caught.value)
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_hangs_is_asked_once(server: StandIn, kind: str) -> None:
    server.faults += [Answer({}, seconds=3.0)]
    client = client_of(kind, server.url)
    with pytest.raises((NoResponse, ServerFailure, NoAnswer), match=r"no answer within 0\.2 s"):
        await read(client, server.url, timeout=0.2)
    assert len(server.seen) <= 1  # none where the time was over before it came
    server.faults.clear()
    await read(client, server.url)
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_key_is_read_at_the_call_and_shown_nowhere(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TEST_KEY", "another")
    client = client_of(kind, server.url, "TEST_KEY", retries=1)
    monkeypatch.setenv("TEST_KEY", f" {KEY}\n")
    await read(client, server.url)
    assert server.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    told = [repr(client), str(vars(client))]
    for fault in (Answer(f"Incorrect API key: {KEY}", 401), Answer(f"{KEY}", 500)):
        server.faults += [fault, fault]
        with pytest.raises(FAILURES) as caught:
            await read(client, server.url)
        server.faults.clear()
        told += [str(caught.value), repr(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    assert not [text for text in [*told, caplog.text] if KEY in text]
    for bad in (f"{KEY}\r\nx-evil: 1", f"{KEY}é"):
        monkeypatch.setenv("TEST_KEY", bad)
        with pytest.raises(ConfigError, match="TEST_KEY holds characters") as refused:
            await read(client, server.url)
        assert KEY not in str(refused.value)
    await client.close()


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("name", ["undefined", "rot13", "zlib_codec", "idna"])
async def test_an_encoding_that_is_none_is_a_failure_like_any(
    server: StandIn, status: int, name: str, kind: str
) -> None:
    server.faults.append(Answer(b"<html>\xff</html>", status, {"content-type": f"text/html; charset={name}"}))
    client = client_of(kind, server.url)
    with pytest.raises(FAILURES, match="<html>"):
        await read(client, server.url)
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_small_answer_that_unpacks_to_a_large_one_is_refused(server: StandIn, kind: str) -> None:
    client = client_of(kind, server.url)
    client.max_bytes = 2**20
    packed = {"content-encoding": "gzip"}
    server.faults += [Answer(gzip.compress(b" " * 2**24), 200, packed), Answer(gzip.compress(b'{"n": 7}'), 200, packed)]
    with pytest.raises(FAILURES, match="more than 1048576 bytes"):
        await read(client, server.url)
    assert (await ask(client, server.url)).content == b'{"n": 7}'
    await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_after_the_end_fail(server: StandIn, kind: str) -> None:
    client = client_of(kind, server.url)
    await read(client, server.url)
    await client.close()
    await client.close()
    with pytest.raises((ClientClosed, UirlError), match="is closed"):
        await read(client, server.url)


# -- the client itself ----------------------------------------------------------------------------------------------


async def test_an_answer_is_read_whole(server: StandIn) -> None:
    server.faults += [Answer("na\u00efve", 201, {"X-Kind": "text"})]
    transport = HTTPClient()
    response = await ask(transport, f"{server.url}/x", params={"n": 1, "seed": None})
    assert (response.status, response.text, response.headers["x-kind"]) == (201, "na\u00efve", "text")
    assert response.url == f"{server.url}/x?n=1"
    await ask(transport, f"{server.url}/x?in=url")
    assert [seen.path for seen in server.seen] == ["/x?n=1", "/x?in=url"]
    await transport.close()


async def test_an_answer_that_is_too_large_is_refused_before_it_is_held(server: StandIn) -> None:
    server.faults += [Answer("x" * 1000), Answer("x" * 1001)]
    transport = HTTPClient(max_bytes=1000)
    assert len((await ask(transport, server.url)).content) == 1000
    with pytest.raises(ResponseTooLarge, match="200 with more than 1000 bytes"):
        await ask(transport, server.url, retries=3)
    assert len(server.seen) == 2
    await transport.close()


async def test_pauses_grow_and_follow_the_server(server: StandIn) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    transport = HTTPClient(retries=9, backoff=1.0)
    transport.sleep = note
    server.faults += [
        Answer("", 429, {} if asked is None else {"retry-after": asked}) for asked in [*[None] * 6, "7", "4000"]
    ]
    await ask(transport, server.url, retries=None)
    # 1, 2, 4, 8, 16, then 32 cut to 30: each shortened by chance to at least half
    for pause, full in zip(pauses[:6], [1, 2, 4, 8, 16, 30], strict=True):
        assert full / 2 <= pause <= full
    # what the server asks for is not undercut, and not followed beyond 30 s
    assert pauses[6] >= 7
    assert pauses[7] == 30
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=29), usegmt=True)
    server.faults += [Answer("", 503, {"retry-after": later})]
    await ask(transport, server.url, retries=None)
    assert 5 <= pauses[8] <= 29  # by itself it would have waited a second
    await transport.close()


def test_the_pause_after_thousands_of_tries_is_the_longest() -> None:
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = 5000
    assert 15 <= HTTPClient()._pause(state) <= 30


@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_may_not_happen_twice_is_sent_again_only_where_it_never_left(
    server: StandIn, idempotent: bool
) -> None:
    transport = HTTPClient(retries=2, backoff=0.01, statuses=(503,))
    sent = 3 if idempotent else 1
    for fault, kind in ((Answer("busy", 503), ErrorStatus), (Answer({"n": 1}, keep=0.5), ConnectionLost)):
        server.faults += [fault] * 3
        with pytest.raises(kind) as caught:
            await ask(transport, server.url, retries=None, again=idempotent)
        assert (caught.value.tries, len(server.seen)) == (sent, sent)
        server.faults.clear()
        server.seen.clear()
    server.faults += [Answer("no", 500)]
    with pytest.raises(ErrorStatus, match=r"^500 Internal Server Error$"):
        await ask(transport, server.url, retries=None, again=idempotent)
    with pytest.raises(ConnectionLost) as never:
        await ask(transport, "http://127.0.0.1:1", retries=None, again=idempotent)
    assert (never.value.tries, never.value.never_sent) == (3, True)
    await transport.close()


def test_one_transport_serves_many_loops(server: StandIn) -> None:
    transport = HTTPClient()
    answers: list[Response] = []

    async def several() -> None:
        answers.extend(await asyncio.gather(*[ask(transport, server.url) for _ in range(8)]))

    asyncio.run(several())  # a loop that ends
    threads = [threading.Thread(target=lambda: asyncio.run(several())) for _ in range(2)]  # two at a time
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 24

    async def end() -> None:
        await several()
        assert len(transport._open) == 1  # those of loops that ended are forgotten
        await transport.close()
        await transport.close()
        with pytest.raises(ClientClosed):
            await ask(transport, server.url)

    asyncio.run(end())


async def test_hundreds_of_requests_run_at_once(server: StandIn) -> None:
    transport = HTTPClient()
    together = threading.Barrier(120)

    def answer(seen: Seen) -> Answer:
        together.wait(timeout=PATIENCE)  # for all the others; one that waits for another's end would break it
        return Answer(seen.path)

    server.answer = answer  # type: ignore[method-assign]
    asked = [ask(transport, f"{server.url}/{n}", timeout=90) for n in range(120)]
    assert [response.text for response in await asyncio.gather(*asked)] == [f"/{n}" for n in range(120)]
    await transport.close()


async def test_what_a_request_costs_does_not_grow_with_the_others(server: StandIn) -> None:
    transport = HTTPClient()
    transport.hold()
    for _ in range(3):
        await ask(transport, server.url)
    pools = transport._connections().pools[server.url.removeprefix("http://")]
    assert len(pools) == 1
    await asyncio.gather(*(ask(transport, server.url) for _ in range(5 * POOL)))
    assert len(pools) == 5
    assert [pool.busy for pool in pools] == [0] * 5
    assert all(len(pool.client._transport._pool.connections) <= POOL for pool in pools)
    await transport.release()
    assert all(pool.client.is_closed for pool in pools)


async def test_connections_of_a_burst_are_closed_although_nobody_needs_them_again(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StandIn() as another:
        transport = HTTPClient()
        transport.hold()
        await asyncio.gather(*(ask(transport, server.url) for _ in range(3 * POOL)))
        pools = [pool for pools in transport._connections().pools.values() for pool in pools]
        assert len(pools) == 3
        monkeypatch.setattr("uirl.http.client.KEPT", 0.0)
        await ask(transport, another.url)
        assert all(pool.client.is_closed for pool in pools)
        assert list(transport._connections().pools) == [another.url.removeprefix("http://")]
        await transport.close()


async def test_connections_end_with_the_last_holder(server: StandIn) -> None:
    transport = HTTPClient()
    transport.hold()
    transport.hold()
    await transport.release()
    await ask(transport, server.url)
    assert transport._open
    await transport.release()
    assert not transport._open


async def test_a_call_that_is_given_up_leaves_the_transport_whole(server: StandIn) -> None:
    transport = HTTPClient()
    server.faults += [Answer({}, seconds=1.0)]
    call = asyncio.ensure_future(ask(transport, server.url))
    while not server.seen:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await ask(transport, server.url)).status == 200
    await transport.close()


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    transport = HTTPClient()
    assert (await ask(transport, server.url)).status == 200
    await transport.close()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("", None), ("3", 3), ("0.5", 0.5), ("-3", 0), ("soon", None), ("inf", None), ("nan", None)],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert read_retry_after(value) == seconds


def test_retry_after_may_be_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    seconds = read_retry_after(later)
    assert seconds is not None
    assert 90 < seconds <= 100
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 -0000") == 0


def test_an_address_and_where_its_secret_belongs() -> None:
    assert checked_url("https://host:8000/v1/", "token_env") == "https://host:8000/v1"
    for address in ("http://me:secret@host", "http://host/?key=secret", "http://host/#secret"):
        with pytest.raises(ConfigError, match=r"the credential in token_env") as caught:
            checked_url(address, "token_env")
        assert address not in str(caught.value)
    for address in (None, 7, "", "host:8000", "ftp://host", "http://"):
        with pytest.raises(ConfigError, match="is no address of a server"):
            checked_url(address, "token_env")


def test_tries_in_words() -> None:
    assert [count_tries(n) for n in (1, 2)] == ["1 try", "2 tries"]
