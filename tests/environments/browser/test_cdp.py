"""The protocol client against a small browser of our own at the other ends of the pipes: none is started."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl.environments.browser.chromium import cdp, pipe
from uirl.environments.browser.chromium.cdp import CdpConnection, TooMuch
from uirl.environments.browser.chromium.pipe import PipeEnds
from uirl.errors import EnvironmentFailure, EpisodeTimeout


class Browser:
    """The browser's ends of the two pipes."""

    def __init__(self, reader: asyncio.StreamReader, calls: asyncio.BaseTransport, answers: int) -> None:
        self._reader, self._calls, self._answers = reader, calls, answers

    async def recv(self) -> bytes:
        """The next call; raises IncompleteReadError where there is none any more."""
        return (await self._reader.readuntil(b"\0"))[:-1]

    async def send(self, message: str) -> None:
        await self.send_raw(message.encode() + b"\0")

    async def send_raw(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._answers, data) :]
            except BlockingIOError:
                await asyncio.sleep(0)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield await self.recv()

    async def wait_closed(self) -> None:
        await self._reader.read()

    def die(self) -> None:
        """Closes both pipes, as the kernel does for a process that is killed."""
        self._calls.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1


Handler = Callable[[Browser], Awaitable[None]]


async def pipes() -> tuple[PipeEnds, Browser]:
    """Both sides."""
    calls_read, calls_write = os.pipe()
    answers_read, answers_write = os.pipe()
    os.set_blocking(answers_write, False)
    reader = asyncio.StreamReader(limit=1 << 26)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(calls_read, "rb", 0)
    )
    ends = PipeEnds(answers=os.fdopen(answers_read, "rb", 0), calls=os.fdopen(calls_write, "wb", 0))
    return ends, Browser(reader, transport, answers_write)


@asynccontextmanager
async def connected(handler: Handler, timeout: float = 5.0) -> AsyncIterator[tuple[CdpConnection, list[str]]]:
    """A connection to a browser that is `handler`, and a list that says how often it was lost."""
    lost: list[str] = []
    ends, browser = await pipes()
    connection = await CdpConnection.open(ends, timeout=timeout, on_lost=lambda: lost.append("lost"))
    playing = asyncio.ensure_future(handler(browser))
    try:
        yield connection, lost
    finally:
        await connection.close()
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        browser.die()


async def echo(browser: Browser) -> None:
    async for text in browser:
        message = json.loads(text)
        await browser.send(json.dumps({"id": message["id"], "result": {"said": message}}))


async def silent(browser: Browser) -> None:
    async for _ in browser:
        pass


async def test_a_call_carries_method_parameters_and_session() -> None:
    async with connected(echo) as (connection, _):
        answer = await connection.call("Page.navigate", {"url": "about:blank"}, session="S")
    said = answer["said"]
    assert (said["method"], said["params"], said["sessionId"]) == ("Page.navigate", {"url": "about:blank"}, "S")


async def test_answers_in_another_order_reach_their_callers() -> None:
    async def backwards(browser: Browser) -> None:
        messages = [json.loads(await browser.recv()) for _ in range(3)]
        for message in reversed(messages):
            await browser.send(json.dumps({"id": message["id"], "result": {"for": message["method"]}}))
        await browser.wait_closed()

    async with connected(backwards) as (connection, _):
        answers = await asyncio.gather(*(connection.call(method) for method in "abc"))
    assert [answer["for"] for answer in answers] == ["a", "b", "c"]


async def test_a_refused_call_says_which_and_why() -> None:
    async def refuse(browser: Browser) -> None:
        async for text in browser:
            await browser.send(json.dumps({"id": json.loads(text)["id"], "error": {"message": "no such target"}}))

    async with connected(refuse) as (connection, _):
        with pytest.raises(EnvironmentFailure, match=r"Target\.close.*no such target"):
            await connection.call("Target.close")


async def test_a_call_without_answer_ends_at_its_time_limit() -> None:
    async with connected(silent, timeout=0.1) as (connection, _):
        with pytest.raises(EpisodeTimeout, match=r"Page\.reload.*0\.1 s"):
            await connection.call("Page.reload")
        assert connection.lost is None
    async with connected(silent, timeout=60.0) as (connection, _), asyncio.timeout(PATIENCE):
        with pytest.raises(EpisodeTimeout, match=r"0\.05 s"):
            await connection.call("Page.reload", timeout=0.05)


async def test_a_message_that_the_browser_cannot_read_costs_its_caller_alone() -> None:
    async def picky(browser: Browser) -> None:
        async for text in browser:
            message = json.loads(text)
            unread = {"error": {"code": -32700, "message": "JSON: invalid token"}}
            await browser.send(json.dumps(unread if message["params"] else {"id": message["id"], "result": {}}))

    async with connected(picky) as (connection, lost):
        with pytest.raises(EpisodeTimeout):
            await connection.call("Page.navigate", {"seed": 10**400}, timeout=0.2)
        with pytest.raises(ValueError, match="not JSON compliant"):
            await connection.call("Page.navigate", {"seed": float("nan")})
        assert await connection.call("Page.reload") == {}
        assert not lost


async def test_a_late_answer_is_not_given_to_the_next_call() -> None:
    async def late(browser: Browser) -> None:
        first = json.loads(await browser.recv())
        second = json.loads(await browser.recv())
        await browser.send(json.dumps({"id": first["id"], "result": {"call": 1}}))
        await browser.send(json.dumps({"id": second["id"], "result": {"call": 2}}))
        await browser.wait_closed()

    async with connected(late) as (connection, _):
        with pytest.raises(EpisodeTimeout):
            await connection.call("one", timeout=0.05)
        assert await connection.call("two") == {"call": 2}


async def test_calls_that_wait_fail_when_the_browser_dies_and_so_do_later_ones() -> None:
    async def die(browser: Browser) -> None:
        await browser.recv()
        await browser.recv()
        browser.die()

    async with connected(die) as (connection, lost):
        waiting = await asyncio.gather(connection.call("a"), connection.call("b"), return_exceptions=True)
        assert [type(error) for error in waiting] == [EnvironmentFailure, EnvironmentFailure]
        with pytest.raises(EnvironmentFailure, match=r"c: .*browser"):
            await connection.call("c")
    assert lost == ["lost"]


async def test_a_browser_that_closes_one_pipe_alone_leaves_no_error_in_the_event_loop() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    async def deaf(browser: Browser) -> None:
        await browser.recv()
        browser._calls.close()

    async with connected(deaf) as (connection, lost):
        with pytest.raises(EnvironmentFailure, match="the browser ended"):
            await connection.call("a")
    await asyncio.sleep(0)
    assert (lost, errors) == (["lost"], [])


async def test_a_call_that_nobody_waits_for_is_sent_and_its_refusal_disturbs_nobody() -> None:
    heard: list[Any] = []

    async def refuse_the_first(browser: Browser) -> None:
        async for text in browser:
            heard.append(message := json.loads(text))
            answer = {"result": {}} if len(heard) > 1 else {"error": {"message": "no such download"}}
            await browser.send(json.dumps({"id": message["id"]} | answer))

    async with connected(refuse_the_first) as (connection, _):
        connection.post("Browser.cancelDownload", {"guid": "g"}, session="S")
        assert await connection.call("after") == {}
        assert not connection._pending
    connection.post("on a closed pipe")
    posted = heard[0]
    assert (posted["method"], posted["params"], posted["sessionId"]) == ("Browser.cancelDownload", {"guid": "g"}, "S")
    assert [message["method"] for message in heard] == ["Browser.cancelDownload", "after"]


async def test_nonsense_on_the_pipe_ends_the_connection_with_its_reason() -> None:
    async def babble(browser: Browser) -> None:
        await browser.recv()
        await browser.send("{no json")
        await browser.wait_closed()

    async with connected(babble) as (connection, _):
        with pytest.raises(EnvironmentFailure, match="JSONDecodeError"):
            await connection.call("a")


async def test_events_reach_the_handler_of_their_session_until_it_is_forgotten() -> None:
    async def tell(browser: Browser) -> None:
        async for text in browser:
            for session in ("S", "T"):
                event = {"method": "Page.loaded", "sessionId": session, "params": {"for": session}}
                await browser.send(json.dumps(event))
            await browser.send(json.dumps({"id": json.loads(text)["id"], "result": {}}))

    seen: list[Any] = []
    async with connected(tell) as (connection, _):
        connection.on("S", "Page.loaded", seen.append)
        await connection.call("go")
        assert seen == [{"for": "S"}]
        connection.forget("S")
        await connection.call("go")
        assert seen == [{"for": "S"}]


async def test_failing_one_session_leaves_the_calls_of_others() -> None:
    async def answer_t_later(browser: Browser) -> None:
        messages = [json.loads(await browser.recv()) for _ in range(3)]
        for message in messages:
            if message.get("sessionId") == "T":
                await browser.send(json.dumps({"id": message["id"], "result": {"fine": True}}))
        await browser.wait_closed()

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


async def test_messages_in_pieces_and_several_in_one_piece() -> None:
    async def stammer(browser: Browser) -> None:
        first, second = [json.loads(await browser.recv()) for _ in range(2)]
        data = b"".join(
            json.dumps({"id": call["id"], "result": {"said": "ü" * 3}}, ensure_ascii=False).encode() + b"\0"
            for call in (first, second)
        )
        for at in range(len(data) - 40):
            await browser.send_raw(data[at : at + 1])
            await asyncio.sleep(0)
        await browser.send_raw(data[len(data) - 40 :])
        await browser.wait_closed()

    async with connected(stammer) as (connection, _):
        answers = await asyncio.gather(connection.call("a"), connection.call("b"))
    assert answers == [{"said": "üüü"}] * 2


async def test_messages_far_beyond_what_a_pipe_holds_both_ways() -> None:
    async with connected(echo) as (connection, _):
        text = "x" * (8 << 20)
        answers = await asyncio.gather(*(connection.call("a", {"text": text, "n": n}) for n in range(3)))
    assert [(a["said"]["params"]["n"], a["said"]["params"]["text"] == text) for a in answers] == [
        (0, True),
        (1, True),
        (2, True),
    ]


async def test_a_browser_that_dies_in_the_middle_of_a_message() -> None:
    async def die_halfway(browser: Browser) -> None:
        number = json.loads(await browser.recv())["id"]
        await browser.send_raw(f'{{"id": {number}, "result": {{"data": "'.encode() + b"x" * 1000)
        browser.die()

    async with connected(die_halfway) as (connection, lost):
        with pytest.raises(EnvironmentFailure, match="a: the browser ended"):
            await connection.call("a")
        assert lost == ["lost"]
        assert connection.lost == "the browser ended"


async def test_a_browser_that_reads_nothing_is_a_time_out() -> None:
    async def deaf(browser: Browser) -> None:
        await asyncio.Event().wait()

    async with connected(deaf, timeout=0.1) as (connection, _):
        with pytest.raises(EpisodeTimeout):
            await connection.call("a", {"text": "x" * (8 << 20)})


async def test_a_message_without_end_is_not_collected_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "ENDLESS", 1 << 20)

    async def flood(browser: Browser) -> None:
        await browser.recv()
        while True:
            await browser.send_raw(b"x" * (1 << 16))
            await asyncio.sleep(0)

    async with connected(flood) as (connection, lost):
        with pytest.raises(EnvironmentFailure, match="more than 1048576 bytes in one message"):
            await connection.call("a")
    assert lost == ["lost"]


@pytest.mark.parametrize(
    "answer",
    [b'"' + b"x" * (1 << 20) + b'"', b"[" + b"1," * (1 << 12) + b"1]", b"[" * 5000 + b"]" * 5000],
    ids=["long", "many values", "deep"],
)
async def test_an_answer_that_is_too_much_is_refused_and_disturbs_nobody(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "LONGEST_MESSAGE", 1 << 16)
    monkeypatch.setattr(cdp, "MOST_VALUES", 1 << 10)

    async def much(browser: Browser) -> None:
        numbers = [json.loads(await browser.recv())["id"] for _ in range(2)]
        await browser.send_raw(b'{"method": "event", "params": {"value": %s}}\0' % answer)
        await browser.send_raw(b'{"id":%d,"result":{"value":%s}}\0' % (numbers[0], answer))
        await browser.send_raw(b'{"id":%d,"result":{"value":1}}\0' % numbers[1])

    async with connected(much) as (connection, lost):
        first, second = await asyncio.gather(connection.call("a"), connection.call("b"), return_exceptions=True)
        assert isinstance(first, TooMuch)
        assert f"its answer has {len(answer) + 28} bytes" in str(first)
        assert second == {"value": 1}
        assert (lost, connection.lost) == ([], None)


async def test_a_browser_that_dies_while_it_is_connected_leaves_nothing_to_the_next_one() -> None:
    # its descriptors are given to the next browser's pipes: what still watched them would take its answers away
    for _ in range(3):
        ends, browser = await pipes()
        browser.die()
        await asyncio.sleep(0)

        def close(ends: PipeEnds = ends) -> None:
            for end in ends:
                end.close()

        connection = await CdpConnection.open(ends, timeout=60.0, on_lost=close)
        with pytest.raises(EnvironmentFailure, match="the browser ended"):
            await connection.call("Browser.getVersion")
        async with connected(echo, timeout=5.0) as (following, lost):
            assert (await following.call("a"))["said"]["method"] == "a"
            assert lost == []


def test_the_end_of_the_event_loop_ends_the_connection() -> None:
    lost: list[str] = []

    async def open_and_leave() -> None:
        ends, browser = await pipes()
        await CdpConnection.open(ends, timeout=5.0, on_lost=lambda: lost.append("lost"))
        asyncio.get_running_loop().call_soon(browser.die)

    asyncio.run(open_and_leave())
    assert lost == ["lost"]


async def test_a_connection_is_refused_on_another_event_loop() -> None:
    async with connected(echo) as (connection, _):

        def elsewhere() -> None:
            asyncio.run(connection.call("a"))

        with pytest.raises(EnvironmentFailure, match="another event loop"):
            await asyncio.to_thread(elsewhere)
