"""The protocol client against a small server of our own: no browser needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import serve

from uirl.environments.browser.cdp import CdpConnection
from uirl.errors import EnvironmentFailure, EpisodeTimeout

Handler = Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def connected(handler: Handler, timeout: float = 5.0) -> AsyncIterator[tuple[CdpConnection, list[str]]]:
    """A connection to a server that runs `handler(socket)`, and a list that says how often it was lost."""
    lost: list[str] = []
    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await CdpConnection.open(
            f"ws://127.0.0.1:{port}", timeout=timeout, on_lost=lambda: lost.append("lost")
        )
        try:
            yield connection, lost
        finally:
            await connection.close()


async def echo(socket: Any) -> None:
    async for text in socket:
        message = json.loads(text)
        await socket.send(json.dumps({"id": message["id"], "result": {"said": message}}))


async def silent(socket: Any) -> None:
    async for _ in socket:
        pass


async def test_a_call_carries_method_parameters_and_session() -> None:
    async with connected(echo) as (connection, _):
        answer = await connection.call("Page.navigate", {"url": "about:blank"}, session="S")
    said = answer["said"]
    assert (said["method"], said["params"], said["sessionId"]) == ("Page.navigate", {"url": "about:blank"}, "S")


async def test_answers_in_another_order_reach_their_callers() -> None:
    async def backwards(socket: Any) -> None:
        messages = [json.loads(await socket.recv()) for _ in range(3)]
        for message in reversed(messages):
            await socket.send(json.dumps({"id": message["id"], "result": {"for": message["method"]}}))
        await socket.wait_closed()

    async with connected(backwards) as (connection, _):
        answers = await asyncio.gather(*(connection.call(method) for method in "abc"))
    assert [answer["for"] for answer in answers] == ["a", "b", "c"]


async def test_a_refused_call_says_which_and_why() -> None:
    async def refuse(socket: Any) -> None:
        async for text in socket:
            await socket.send(json.dumps({"id": json.loads(text)["id"], "error": {"message": "no such target"}}))

    async with connected(refuse) as (connection, _):
        with pytest.raises(EnvironmentFailure, match=r"Target\.close.*no such target"):
            await connection.call("Target.close")


async def test_a_call_without_answer_ends_at_its_time_limit() -> None:
    async with connected(silent, timeout=0.1) as (connection, _):
        with pytest.raises(EpisodeTimeout, match=r"Page\.reload.*0\.1 s"):
            await connection.call("Page.reload")
        assert connection.lost is None
    async with connected(silent, timeout=60.0) as (connection, _), asyncio.timeout(5.0):
        with pytest.raises(EpisodeTimeout, match=r"0\.05 s"):
            await connection.call("Page.reload", timeout=0.05)


async def test_a_message_that_the_browser_cannot_read_costs_its_caller_alone() -> None:
    async def picky(socket: Any) -> None:
        async for text in socket:
            message = json.loads(text)
            unread = {"error": {"code": -32700, "message": "JSON: invalid token"}}
            await socket.send(json.dumps(unread if message["params"] else {"id": message["id"], "result": {}}))

    async with connected(picky) as (connection, lost):
        with pytest.raises(EpisodeTimeout):
            await connection.call("Page.navigate", {"seed": 10**400}, timeout=0.2)
        with pytest.raises(ValueError, match="not JSON compliant"):
            await connection.call("Page.navigate", {"seed": float("nan")})
        assert await connection.call("Page.reload") == {}
        assert not lost


async def test_a_late_answer_is_not_given_to_the_next_call() -> None:
    async def late(socket: Any) -> None:
        first = json.loads(await socket.recv())
        second = json.loads(await socket.recv())
        await socket.send(json.dumps({"id": first["id"], "result": {"call": 1}}))
        await socket.send(json.dumps({"id": second["id"], "result": {"call": 2}}))
        await socket.wait_closed()

    async with connected(late) as (connection, _):
        with pytest.raises(EpisodeTimeout):
            await connection.call("one", timeout=0.05)
        assert await connection.call("two") == {"call": 2}


async def test_calls_that_wait_fail_when_the_socket_dies_and_so_do_later_ones() -> None:
    async def die(socket: Any) -> None:
        await socket.recv()
        await socket.recv()
        socket.transport.abort()

    async with connected(die) as (connection, lost):
        waiting = await asyncio.gather(connection.call("a"), connection.call("b"), return_exceptions=True)
        assert [type(error) for error in waiting] == [EnvironmentFailure, EnvironmentFailure]
        with pytest.raises(EnvironmentFailure, match=r"c: .*browser"):
            await connection.call("c")
    assert lost == ["lost"]


async def test_nonsense_on_the_socket_ends_the_connection_with_its_reason() -> None:
    async def babble(socket: Any) -> None:
        await socket.recv()
        await socket.send("{no json")
        await socket.wait_closed()

    async with connected(babble) as (connection, _):
        with pytest.raises(EnvironmentFailure, match="JSONDecodeError"):
            await connection.call("a")


async def test_events_reach_the_handler_of_their_session_until_it_is_forgotten() -> None:
    async def tell(socket: Any) -> None:
        async for text in socket:
            for session in ("S", "T"):
                event = {"method": "Page.loaded", "sessionId": session, "params": {"for": session}}
                await socket.send(json.dumps(event))
            await socket.send(json.dumps({"id": json.loads(text)["id"], "result": {}}))

    seen: list[Any] = []
    async with connected(tell) as (connection, _):
        connection.on("S", "Page.loaded", seen.append)
        await connection.call("go")
        assert seen == [{"for": "S"}]
        connection.forget("S")
        await connection.call("go")
        assert seen == [{"for": "S"}]


async def test_failing_one_session_leaves_the_calls_of_others() -> None:
    async def answer_t_later(socket: Any) -> None:
        messages = [json.loads(await socket.recv()) for _ in range(3)]
        for message in messages:
            if message.get("sessionId") == "T":
                await socket.send(json.dumps({"id": message["id"], "result": {"fine": True}}))
        await socket.wait_closed()

    async with connected(answer_t_later) as (connection, _):
        crashed = asyncio.create_task(connection.call("a", session="S"))
        fine = asyncio.create_task(connection.call("b", session="T"))
        await asyncio.sleep(0)
        connection.fail_session("S", "the page crashed")
        with pytest.raises(EnvironmentFailure, match="a: the page crashed"):
            await crashed
        with pytest.raises(EpisodeTimeout):
            await connection.call("c", timeout=0.05)
        assert await fine == {"fine": True}


async def test_an_address_where_nobody_listens() -> None:
    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    with pytest.raises(EnvironmentFailure, match="no connection to the browser"):
        await CdpConnection.open(f"ws://127.0.0.1:{port}", timeout=5.0)


def test_the_end_of_the_event_loop_ends_the_connection() -> None:
    lost: list[str] = []

    async def open_and_leave() -> None:
        async with serve(echo, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await CdpConnection.open(f"ws://127.0.0.1:{port}", timeout=5.0, on_lost=lambda: lost.append("lost"))

    asyncio.run(open_and_leave())
    assert lost == ["lost"]


def test_a_connection_is_refused_on_another_event_loop() -> None:
    first = asyncio.new_event_loop()
    try:
        server = first.run_until_complete(_serve_echo())
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connection = first.run_until_complete(CdpConnection.open(url, timeout=5.0))
        with pytest.raises(EnvironmentFailure, match="another event loop"):
            asyncio.run(connection.call("a"))
        first.run_until_complete(connection.close())
        server.close()
        first.run_until_complete(server.wait_closed())
    finally:
        first.close()


async def _serve_echo() -> Any:
    return await serve(echo, "127.0.0.1", 0)
