"""Requests to a real server: pauses, repetitions, bounds, event loops and proxies."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from tenacity import AsyncRetrying, RetryCallState

from tests.inference.stand_in_http import Answer, Seen, StandIn
from tests.patience import PATIENCE
from uirl.errors import ConfigError
from uirl.runtime.http import (
    POOL,
    ClientClosed,
    ConnectionLost,
    ErrorStatus,
    HTTPTransport,
    NoResponse,
    Response,
    ResponseTooLarge,
    RetryPolicy,
    checked_url,
    count_tries,
    read_retry_after,
)

ONCE = RetryPolicy(retries=0)
QUICK = RetryPolicy(backoff=0.01)


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn() as running:
        yield running


async def ask(transport: HTTPTransport, url: str, policy: RetryPolicy = ONCE, timeout: float = 20.0) -> Response:
    return await transport.send("GET", url, policy, timeout=timeout, headers={})


async def test_an_answer_is_read_whole(server: StandIn) -> None:
    server.faults += [Answer("na\u00efve", 201, {"X-Kind": "text"})]
    transport = HTTPTransport("server")
    response = await transport.send(
        "GET", f"{server.url}/x", ONCE, timeout=20.0, headers={}, params={"n": 1, "seed": None}
    )
    assert (response.status, response.text, response.headers["x-kind"]) == (201, "na\u00efve", "text")
    assert response.url == f"{server.url}/x?n=1"
    await ask(transport, f"{server.url}/x?in=url")
    assert [seen.path for seen in server.seen] == ["/x?n=1", "/x?in=url"]
    await transport.close()


async def test_an_answer_that_is_too_large_is_refused_before_it_is_held(server: StandIn) -> None:
    server.faults += [Answer("x" * 1000), Answer("x" * 1001)]
    transport = HTTPTransport("server", max_bytes=1000)
    assert len((await ask(transport, server.url)).content) == 1000
    with pytest.raises(ResponseTooLarge, match="200 with more than 1000 bytes"):
        await ask(transport, server.url, QUICK)
    assert len(server.seen) == 2
    await transport.close()


async def test_pauses_grow_and_follow_the_server(server: StandIn) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    transport = HTTPTransport("server", sleep=note)
    policy = RetryPolicy(retries=9, backoff=1.0)
    server.faults += [
        Answer("", 429, {} if asked is None else {"retry-after": asked}) for asked in [*[None] * 6, "7", "4000"]
    ]
    await ask(transport, server.url, policy)
    # 1, 2, 4, 8, 16, then 32 cut to 30: each shortened by chance to at least half
    for pause, full in zip(pauses[:6], [1, 2, 4, 8, 16, 30], strict=True):
        assert full / 2 <= pause <= full
    # what the server asks for is not undercut, and not followed beyond 30 s
    assert pauses[6] >= 7
    assert pauses[7] == 30
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=29), usegmt=True)
    server.faults += [Answer("", 503, {"retry-after": later})]
    await ask(transport, server.url, policy)
    assert 5 <= pauses[8] <= 29  # by itself it would have waited a second
    await transport.close()


def test_the_pause_after_thousands_of_tries_is_the_longest() -> None:
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = 5000
    assert 15 <= RetryPolicy().pause(state, random.Random(0)) <= 30


@pytest.mark.parametrize("idempotent", [True, False])
async def test_what_may_not_happen_twice_is_sent_again_only_where_it_never_left(
    server: StandIn, idempotent: bool
) -> None:
    transport = HTTPTransport("server")
    policy = RetryPolicy(retries=2, backoff=0.01, statuses=(503,), idempotent=idempotent)
    sent = 3 if idempotent else 1
    for fault, kind in ((Answer("busy", 503), ErrorStatus), (Answer({"n": 1}, keep=0.5), ConnectionLost)):
        server.faults += [fault] * 3
        with pytest.raises(kind) as caught:
            await ask(transport, server.url, policy)
        assert (caught.value.tries, len(server.seen)) == (sent, sent)
        server.faults.clear()
        server.seen.clear()
    server.faults += [Answer("no", 500)]
    with pytest.raises(ErrorStatus, match=r"^500 Internal Server Error$"):
        await ask(transport, server.url, policy)
    with pytest.raises(ConnectionLost) as never:
        await ask(transport, "http://127.0.0.1:1", policy)
    assert (never.value.tries, never.value.never_sent) == (3, True)
    await transport.close()


async def test_a_try_without_an_answer_in_time_is_not_repeated(server: StandIn) -> None:
    server.faults += [Answer({}, seconds=3.0)]
    transport = HTTPTransport("server")
    with pytest.raises(NoResponse, match=r"no answer within 0\.2 s") as caught:
        await ask(transport, server.url, QUICK, timeout=0.2)
    assert caught.value.tries == 1
    await transport.close()


def test_one_transport_serves_many_loops(server: StandIn) -> None:
    transport = HTTPTransport("server")
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
    transport = HTTPTransport("server")
    together = threading.Barrier(120)

    def answer(seen: Seen) -> Answer:
        together.wait(timeout=PATIENCE)  # for all the others; one that waits for another's end would break it
        return Answer(seen.path)

    server.answer = answer  # type: ignore[method-assign]
    asked = [ask(transport, f"{server.url}/{n}", timeout=90) for n in range(120)]
    assert [response.text for response in await asyncio.gather(*asked)] == [f"/{n}" for n in range(120)]
    await transport.close()


async def test_what_a_request_costs_does_not_grow_with_the_others(server: StandIn) -> None:
    transport = HTTPTransport("server")
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
        transport = HTTPTransport("server")
        transport.hold()
        await asyncio.gather(*(ask(transport, server.url) for _ in range(3 * POOL)))
        pools = [pool for pools in transport._connections().pools.values() for pool in pools]
        assert len(pools) == 3
        monkeypatch.setattr("uirl.runtime.http.KEPT", 0.0)
        await ask(transport, another.url)
        assert all(pool.client.is_closed for pool in pools)
        assert list(transport._connections().pools) == [another.url.removeprefix("http://")]
        await transport.close()


async def test_connections_end_with_the_last_holder(server: StandIn) -> None:
    transport = HTTPTransport("client")
    transport.hold()
    transport.hold()
    await transport.release()
    await ask(transport, server.url)
    assert transport._open
    await transport.release()
    assert not transport._open


async def test_a_call_that_is_given_up_leaves_the_transport_whole(server: StandIn) -> None:
    transport = HTTPTransport("server")
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
    transport = HTTPTransport("server")
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
