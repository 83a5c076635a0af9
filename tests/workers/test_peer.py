"""Two peers over a socket pair: calls, errors, cancels, pictures, and the ways in which a connection ends."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.patience import PATIENCE
from uirl.errors import ContractError, EngineFailure, PromptTooLong, StorageError
from uirl.images import Screenshot
from uirl.runtime.limits import LimitError
from uirl.runtime.time_limits import TimedOut
from uirl.workers import peer as peer_module
from uirl.workers.codec import RemoteError, decode, encode
from uirl.workers.peer import Peer, PeerLost

Wire = Callable[..., Awaitable[tuple[Peer, Peer]]]


class Folder:
    """Pictures in memory, as `SharedPictures` keeps them in a folder."""

    def __init__(self) -> None:
        self.there: dict[str, Screenshot] = {}
        self.put_count = 0

    def put(self, image: Screenshot) -> None:
        self.put_count += 1
        self.there[image.hash] = image

    def get(self, hash: str) -> Screenshot:
        return Screenshot(bytes(bytearray(self.there[hash].data)))


class Odd(Exception):
    """Of a module that the other side does not have, say."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd words")


class Leaves(BaseException):
    """No Exception: code that catches those alone lets it pass."""


class Silent(Exception):
    """Has no words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class OddFailure(EngineFailure):
    """A failure of somebody's own, which is not made of words alone."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    """Makes pairs of peers, and closes them."""
    peers: list[Peer] = []

    async def make(left: Any = None, right: Any = None, **options: Any) -> tuple[Peer, Peer]:
        a, b = socket.socketpair()
        ends = []
        for sock, handlers, name in ((a, left, "right"), (b, right, "left")):
            streams = await asyncio.open_connection(sock=sock)
            mine = {k: v[name] if isinstance(v, dict) else v for k, v in options.items()}
            shared = mine.pop("shared", None)
            ends.append(Peer(*streams, handlers or {}, name=name, **mine))
            if shared is not None:
                ends[-1].share(shared)
        peers.extend(ends)
        return ends[0], ends[1]

    yield make
    for one in peers:
        one.close()


async def echo(value: Any) -> Any:
    return value


async def hang() -> None:
    await asyncio.sleep(1000)


async def test_both_sides_call_each_other_at_the_same_time(wire: Wire) -> None:
    left, right = await wire({"double": lambda x: echo(2 * x)}, {"echo": echo})
    assert await asyncio.gather(left.call("echo", "a"), right.call("double", 4), left.call("echo", None)) == [
        "a",
        8,
        None,
    ]


async def test_ten_thousand_calls_are_under_way_and_each_gets_its_own_answer(wire: Wire) -> None:
    gate = asyncio.Event()
    begun = []

    async def wait(x: int) -> int:
        begun.append(x)
        await gate.wait()
        return -x

    left, _ = await wire(None, {"wait": wait})
    calls = [asyncio.ensure_future(left.call("wait", x)) for x in range(10_000)]
    while len(begun) < 10_000:
        await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*calls) == [-x for x in range(10_000)]


async def test_what_a_handler_raises_is_raised_by_the_call(wire: Wire) -> None:
    async def fail(error: str) -> None:
        if error == "prompt":
            raise PromptTooLong("too long")
        if error == "odd":
            raise Odd(1, 2)
        if error == "odd failure":
            raise OddFailure(1, 2)
        raise ValueError("no")

    left, _ = await wire(None, {"fail": fail})
    with pytest.raises(PromptTooLong, match="too long") as caught:
        await left.call("fail", "prompt")
    assert "in fail" in caught.value.__notes__[0], "the traceback of the other side goes along"
    with pytest.raises(ValueError, match="no"):
        await left.call("fail", "value")
    with pytest.raises(RemoteError, match="Odd: odd words"):
        await left.call("fail", "odd")
    with pytest.raises(EngineFailure, match="1 and 2") as failure:
        await left.call("fail", "odd failure")
    assert type(failure.value) is EngineFailure
    with pytest.raises(ContractError, match="'unknown' is not known here; expected one of fail"):
        await left.call("unknown")


async def test_what_no_message_can_hold_is_said_to_whom_it_concerns(wire: Wire) -> None:
    async def give() -> Any:
        return {"x": [lambda: None]}

    left, _ = await wire(None, {"give": give, "echo": echo})
    with pytest.raises(ContractError, match="cannot be told"):
        await left.call("give")
    with pytest.raises(ContractError, match="cannot be told"):
        await left.call("echo", lambda: None)
    assert await left.call("echo", 1) == 1, "the connection goes on"


async def test_a_message_that_is_not_what_its_receiver_takes_fails_that_call_alone(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    async def double(x: int) -> int:
        return 2 * x

    left, _ = await wire(None, {"double": double})
    with pytest.raises(RemoteError, match=r"the call of 'double' cannot be .* Expected `int`, got `str`.*same code\?"):
        await left.call("double", "2")
    with pytest.raises(RemoteError, match="Expected `array` of length 1, got 2"):
        await left.call("double", 1, 2)
    with pytest.raises(RemoteError, match=r"an answer of right cannot be read by its receiver.*Expected `str`"):
        await left.call("double", 1, returns=str)
    left.notify("double", None)
    assert await left.call("double", 1, returns=int) == 2
    assert "Expected `int`, got `null`" in caplog.text


async def test_cancelling_the_caller_cancels_the_handler_in_both_directions(wire: Wire) -> None:
    cancelled = {"left": asyncio.Event(), "right": asyncio.Event()}
    begun = {"left": asyncio.Event(), "right": asyncio.Event()}

    def hanging(side: str) -> Any:
        async def run() -> None:
            begun[side].set()
            try:
                await hang()
            except asyncio.CancelledError:
                cancelled[side].set()
                raise

        return run

    left, right = await wire({"hang": hanging("left")}, {"hang": hanging("right")})
    for caller, side in ((left, "right"), (right, "left")):
        task = asyncio.ensure_future(caller.call("hang"))
        await asyncio.wait_for(begun[side].wait(), PATIENCE)
        task.cancel()
        await asyncio.wait_for(cancelled[side].wait(), PATIENCE)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert left.reason is None
    assert right.reason is None


async def test_a_call_that_takes_too_long_is_given_up_on_both_sides(wire: Wire) -> None:
    ended = asyncio.Event()

    async def slow() -> None:
        try:
            await hang()
        finally:
            ended.set()

    left, _ = await wire(None, {"slow": slow})
    with pytest.raises(TimedOut, match=r"right did not answer 'slow' within 0\.05 s"):
        await left.call("slow", timeout=0.05)
    await asyncio.wait_for(ended.wait(), PATIENCE)


async def test_a_handler_that_cancels_itself_leaves_no_caller_waiting(wire: Wire) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    left, _ = await wire(None, {"give_up": give_up})
    with pytest.raises(RemoteError, match="was cancelled by the process"):
        await asyncio.wait_for(left.call("give_up"), PATIENCE)


@pytest.mark.parametrize("error", [GeneratorExit("left"), SystemExit(3), Leaves("left")])
async def test_a_handler_that_raises_what_is_no_exception_leaves_no_caller_waiting(
    wire: Wire, error: BaseException
) -> None:
    async def fail() -> None:
        raise error

    left, _ = await wire(None, {"fail": fail})
    with pytest.raises(RemoteError, match=type(error).__name__):
        await asyncio.wait_for(left.call("fail"), PATIENCE)


async def test_a_process_that_ends_does_not_answer_for_what_it_gave_up(wire: Wire) -> None:
    """Its caller hears that the process is lost, which is somebody else's failure than the handler's."""
    serving: list[asyncio.Task[Any] | None] = []

    async def play() -> None:
        serving.append(asyncio.current_task())
        await asyncio.sleep(60)

    left, right = await wire(None, {"play": play})
    call = asyncio.ensure_future(left.call("play"))
    while not serving:
        await asyncio.sleep(0)
    assert serving[0] is not None
    serving[0].cancel()  # as `asyncio.run` does after Ctrl-C
    await asyncio.wait(serving)
    right.close()
    with pytest.raises(PeerLost):
        await asyncio.wait_for(call, PATIENCE)


async def test_errors_with_words_that_fail_or_fill_the_wire_are_told_briefly(wire: Wire) -> None:
    async def fail(kind: str) -> None:
        if kind == "silent":
            raise Silent
        raise ValueError("h" * 50_000_000)

    left, _ = await wire(None, {"fail": fail})
    with pytest.raises(RemoteError, match="Silent: its words cannot be shown"):
        await left.call("fail", "silent")
    with pytest.raises(ValueError, match="hhh") as caught:
        await left.call("fail", "huge")
    assert len(str(caught.value)) < 100_000


async def test_notifications_come_in_order_and_their_errors_end_nothing(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    async def hear(x: int) -> None:
        heard.append(x)
        if x == 1:
            raise ValueError("not that one")

    left, _ = await wire(None, {"hear": hear, "echo": echo})
    for x in range(5):
        left.notify("hear", x)
    await left.call("echo", 0)
    assert heard == [0, 1, 2, 3, 4]
    assert "'hear'" in caplog.text
    left.close()
    left.notify("hear", 5)  # nobody is there: fine


async def test_a_huge_message_arrives_whole_while_others_go_on(wire: Wire) -> None:
    left, _ = await wire(None, {"echo": echo})
    huge = os.urandom(50_000_000)
    big, small = asyncio.ensure_future(left.call("echo", huge)), left.call("echo", 1)
    assert await small == 1
    assert await big == huge


async def test_a_message_beyond_the_limit_is_refused_by_its_sender(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "MAX_FRAME", 1000)
    left, _ = await wire(None, {"echo": echo, "much": lambda: echo(bytes(2000))})
    with pytest.raises(LimitError, match="at most 1000"):
        await left.call("echo", bytes(2000))
    with pytest.raises(LimitError, match="at most 1000"):
        await left.call("much")
    assert await left.call("echo", 1) == 1


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "it closed the connection$"),
        (b"GET / HTTP/1.1\r\n\r\n" + bytes(20), "what cannot be understood.*a frame of kind 71"),
        (struct.pack(">BQQ", peer_module.NOTIFY, 1, 1 << 60), "what cannot be understood.*bytes"),
        (struct.pack(">BQQ", peer_module.NOTIFY, 1, 100) + b"torn", "in the middle of a message"),
    ],
)
async def test_torn_and_wild_frames_end_the_connection_and_every_call_hears_it(said: bytes, reason: str) -> None:
    ours, theirs = socket.socketpair()
    one = Peer(*await asyncio.open_connection(sock=ours), {}, name="the stranger")
    call = asyncio.ensure_future(one.call("anything"))
    await asyncio.sleep(0)
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerLost, match=f"the stranger is gone: .*{reason}"):
        await asyncio.wait_for(call, PATIENCE)
    with pytest.raises(PeerLost):
        await one.call("anything")
    assert await one.wait_closed() == one.reason
    theirs.close()


async def test_the_end_of_one_side_fails_calls_and_cancels_handlers_of_the_other(wire: Wire) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await hang()
        finally:
            ended.set()

    left, right = await wire({"hang": hang}, {"work": work})
    theirs = asyncio.ensure_future(right.call("hang"))
    mine = asyncio.ensure_future(left.call("work"))
    await begun.wait()
    left.close("enough")
    left.close()
    with pytest.raises(PeerLost, match="enough"):
        await mine
    with pytest.raises(PeerLost, match="closed the connection"):
        await theirs
    await asyncio.wait_for(ended.wait(), PATIENCE)
    assert "closed" in await right.wait_closed()


async def test_a_broken_connection_is_not_written_to_again_and_again(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    left, right = await wire()
    left._writer.transport.pause_reading()  # type: ignore[attr-defined]
    right._writer.transport.abort()
    await asyncio.sleep(0.01)
    for _ in range(20):  # in one step of the loop, as many episodes do
        left.notify("hear", bytes(100_000))
    assert "socket.send() raised exception" not in caplog.text
    with pytest.raises(PeerLost):
        await asyncio.wait_for(left.call("echo", 1), PATIENCE)


async def test_what_was_said_before_closing_arrives(wire: Wire) -> None:
    heard: list[bytes] = []

    async def hear(data: bytes) -> None:
        heard.append(data)

    left, right = await wire(None, {"hear": hear})
    left.notify("hear", bytes(5_000_000))
    left.close()
    await right.wait_closed()
    assert [len(data) for data in heard] == [5_000_000]


async def test_a_frozen_process_is_noticed_by_its_silence(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "BEAT_SECONDS", 0.005)
    left, right = await wire(silence={"right": 0.5, "left": None})  # a hundred beats
    await asyncio.sleep(1.0)
    assert left.reason is None, "heartbeats alone keep it"
    right._writer.transport.pause_reading()  # type: ignore[attr-defined]
    right._write = lambda *frame: None  # type: ignore[method-assign]
    assert "it said nothing for" in await asyncio.wait_for(left.wait_closed(), PATIENCE)


async def test_time_in_which_this_process_stood_still_does_not_count(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(peer_module, "BEAT_SECONDS", 0.02)
    left, _ = await wire(None, {"echo": echo}, silence=0.2)
    await asyncio.sleep(0.1)
    time.sleep(0.5)  # an update, in the loop's own thread
    assert await left.call("echo", 1) == 1


# -- pictures ------------------------------------------------------------------------------------------------------


def pictures(count: int, size: int) -> list[Screenshot]:
    return [Screenshot(os.urandom(size)) for _ in range(count)]


def sent_bytes(one: Peer) -> list[int]:
    """Grows with every frame of `one`."""
    sizes: list[int] = []
    write = one._write

    def counted(kind: int, number: int, body: bytes) -> None:
        sizes.append(len(body))
        write(kind, number, body)

    one._write = counted  # type: ignore[method-assign]
    return sizes


async def test_a_hundred_large_pictures_sent_twice_are_bytes_once(wire: Wire) -> None:
    left, right = await wire(None, {"count": lambda shots: echo([s.hash for s in shots])})
    shots = pictures(100, 200_000)  # a 1080x2400 screen, compressed
    hashes = [shot.hash for shot in shots]
    sizes = sent_bytes(left)
    assert await left.call("count", shots) == hashes
    assert 20_000_000 < sum(sizes) < 20_100_000
    sizes.clear()
    assert await left.call("count", shots) == hashes
    assert sum(sizes) < 20_000
    assert right._came._held == 20_000_000


async def test_pictures_in_a_shared_folder_do_not_travel(wire: Wire) -> None:
    folder = Folder()
    left, _ = await wire(None, {"echo": echo}, shared=folder)
    shots = pictures(3, 100_000)
    sizes = sent_bytes(left)
    assert await left.call("echo", {"shots": shots, "again": shots[0]}) == {"shots": shots, "again": shots[0]}
    assert sum(sizes) < 2000
    assert set(folder.there) == {shot.hash for shot in shots}


async def test_a_picture_that_is_not_in_the_folder_ends_the_connection(wire: Wire) -> None:
    """The worker at the other end is started again: it would be the same with each message that names it."""
    folder = Folder()
    left, right = await wire(None, {"echo": echo}, shared=folder)
    folder.put = lambda image: None  # type: ignore[method-assign]
    with pytest.raises(PeerLost):
        await asyncio.wait_for(left.call("echo", pictures(1, 1000)), PATIENCE)
    assert "KeyError" in await right.wait_closed()


async def test_both_ends_forget_the_same_pictures(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "_REMEMBERED", 5000)
    left, right = await wire(None, {"echo": lambda shots: echo([len(shots), shots[0].hash])})
    shots = pictures(12, 1000)
    assert await left.call("echo", shots) == [12, shots[0].hash], "more than memory takes"
    draw = random.Random(3)
    for _ in range(200):
        named = draw.choices(shots, k=draw.randint(1, 8))
        assert await left.call("echo", named) == [len(named), named[0].hash]
        assert list(left._sent._kept) == list(right._came._kept)
        assert right._came._held <= 5000


async def test_a_full_disk_is_told_to_the_sender(wire: Wire) -> None:
    class Full(Folder):
        def put(self, image: Screenshot) -> None:
            raise StorageError("the disk is full")

    left, _ = await wire(None, {"echo": echo}, shared=Full())
    with pytest.raises(StorageError, match="full"):
        await left.call("echo", pictures(1, 10)[0])
    assert await left.call("echo", 1) == 1


def test_what_names_a_picture_is_small() -> None:
    shot = Screenshot(bytes(100_000))
    data, named = encode((shot, [1.5] * 3, {"again": shot}))
    assert len(data) < 300
    assert named == {shot.hash: shot}
    assert decode(data, lambda hash: named[hash]) == ((shot, [1.5] * 3, {"again": shot}), named)


def test_a_picture_goes_with_the_message_that_named_it() -> None:
    said, _ = encode([Screenshot(b"page"), Screenshot(b"page")])
    gc.disable()  # in a quiet process nobody collects cycles for minutes
    try:
        first, second = decode(said, lambda hash: Screenshot(b"page"))[0]
        seen = weakref.ref(first)
        del first, second
        assert seen() is None
    finally:
        gc.enable()
