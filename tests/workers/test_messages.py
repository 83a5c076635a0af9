"""What processes of a run say to each other arrives digit for digit, and nothing but that is ever believed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import pickle
import random
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from tests.inference.fake_engines import FakeEngine
from uirl import ConfigStore
from uirl.errors import ConfigError, EngineFailure, PromptTooLong, UirlError
from uirl.images import Screenshot
from uirl.inference import Generation, GenerationRequest, SamplingParams
from uirl.inference.messages import Message
from uirl.inference.workers import EngineWorker
from uirl.rollout.episode import EpisodeSpec
from uirl.rollout.players import Order
from uirl.training.channels.episodes import ActorJob, EpisodeWorker, Played, Ready
from uirl.training.channels.workers import ActorPool
from uirl.types import (
    Action,
    Failure,
    Observation,
    PictureTransform,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
    Verdict,
)
from uirl.workers.children import Children
from uirl.workers.codec import RemoteError, ToldError, decode, encode, typed
from uirl.workers.peer import _HEADER, CALL, ERROR, MAX_FRAME, NOTIFY, PICTURE, RESULT, Handler, Peer, _taken

# -- what is said -------------------------------------------------------------------------------------------------

SHOT, OTHER = Screenshot(b"\x89PNG one"), Screenshot(b"\x89PNG two")
ODD = {
    "numbers": [0, -1, 2**63 - 1, -(2**63), 2**64, 10**300, -(10**300), True, False, None],
    "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 1 / 3, 3.0, 3],
    "text": ["", "\ud800", "a\udfff", "\x00", "ÄÖ", "😀" * 3, "x" * 70_000],
    "nested": {"a": [[], {}, [[1, (2, (3.5,))]], ()], "": None},
    "pair": (3, 4),
}
TASK = Task("t", "screen", "do it", {"target": (3, 4), **ODD}, ("easy", "ä"), 2**62)
CALLED = ToolResult("tap", ODD, success=False, result={"x": [1.5, None]}, id="c", seconds=0.25)
TURN = Turn(
    Observation("seen", ("a" * 32, "b" * 32), ODD, (CALLED,), "state"),
    context_ids=tuple(range(1000)),
    response_ids=(1, 2, 151_643),
    rollout_log_probs=(-0.1, -1e-38, float(np.float32(-0.3))),
    action=Action("text", (ToolCall("tap", ODD, "c"), ToolCall("x")), "thought", "cannot be read"),
    reward=-0.0,
    policy_version=7,
    starts_segment=True,
    context_images=("a" * 32, "b" * 32),
    pictures=(None, PictureTransform((10, 20), (5, 10), (0, 1, 2, 3), (1, 1, 2, 2), "nearest", (1, 2, 3))),
    finish_reason="length",
    truncated=True,
    info=ODD,
    tool_results=(CALLED,),
)
TRAJECTORY = Trajectory(
    "a-0",
    TASK,
    [TURN, Turn(Observation())],
    "truncated",
    "a",
    Verdict(0.5, False, "why", "judge", 1),
    Failure("engine", "lost", 1),
    2**63 - 1,
    {"success": 1.0, "seconds": 1 / 3, "odd": math.inf},
    Observation("end"),
    {"temperature": 1.0, "seed": None},
    "hard",
)
REQUEST = GenerationRequest(
    tuple(range(20_000)),
    (SHOT, OTHER, SHOT),
    SamplingParams(4, 0.7, 0.9, 5, (1, 2), 2**62),
    "a-0",
    (Message("user", "look", (SHOT,)), Message("assistant", tool_calls=(ToolCall("tap", ODD),))),
)
PLAIN = GenerationRequest((1,))
SAID: list[tuple[Any, Any]] = [
    (EpisodeSpec, EpisodeSpec(TASK, None, 2**62, "a-0", "a", "hard", (TURN,))),
    (EpisodeSpec, EpisodeSpec(Task("t"), 3, None, "a-0")),
    (Order, Order("eval", 0.1, True, "random")),
    (Order, Order()),
    (Played, Played(TRAJECTORY, (SHOT, OTHER), 2)),
    (Played, Played(Trajectory("a", Task("t")))),
    (Ready, Ready(3, tuple(range(99)))),
    (ActorJob, ActorJob(ConfigStore().to_dict(), {"train": 1, "eval": 2}, ("/a b", "/ä"), "/here")),
    (GenerationRequest, REQUEST),
    (GenerationRequest, PLAIN),
    (tuple[Generation, dict[str, float]], (Generation((1, 2), (-0.5, -1 / 3), "stop", 3, 7), {"tokens": 2.0})),
    (Generation, Generation((), None, "abort", 0)),
    (str, "\ud800"),
    (Mapping[str, Any] | None, ODD),
    (Mapping[str, Any] | None, None),
]


def same(a: Any, b: Any) -> bool:
    """Equal, kind for kind and bit for bit: -0.0 is not 0.0, True not 1, a tuple no list."""
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return struct.pack("d", a) == struct.pack("d", b) if isinstance(a, float) else bool(a == b)


@pytest.mark.parametrize(("kind", "value"), SAID)
def test_every_message_arrives_digit_for_digit(kind: Any, value: Any) -> None:
    data, named = encode(value)
    arrived, found = decode(data, named.__getitem__)
    assert same(typed(arrived, kind), value)
    assert list(found) == list(named)


def test_numbers_and_text_of_others_kinds_arrive_as_plain_ones() -> None:
    class Text(str):
        __slots__ = ()

    said = [np.float64(1 / 3), np.float32(0.1), np.int64(3), np.bool_(True), np.float64("nan"), Text("a")]
    arrived, _ = decode(encode(said)[0], {}.__getitem__)
    assert same(arrived[:4] + arrived[5:], [1 / 3, float(np.float32(0.1)), 3, True, "a"])
    assert math.isnan(arrived[4])


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (PromptTooLong("long"), PromptTooLong, "long"),
        (ConfigError("wrong"), ConfigError, "wrong"),
        (ValueError("v"), ValueError, "v"),
        (KeyError("k"), KeyError, "'k'"),
        (OSError(28, "full"), OSError, "full"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "x"), RemoteError, "UnicodeDecodeError"),
        (StopIteration("s"), RemoteError, "StopIteration"),
        (SystemExit(3), RemoteError, "SystemExit"),
        (ExceptionGroup("g", [ValueError()]), RemoteError, "ExceptionGroup"),
        (type("Mine", (EngineFailure,), {})("m"), EngineFailure, "m"),
        (type("Mine", (ValueError,), {})("m"), RemoteError, "Mine: m"),
    ],
)
def test_an_error_arrives_as_its_class_and_words(error: BaseException, kind: type, words: str) -> None:
    told, _ = decode(encode(ToldError.of(error, "there"))[0], {}.__getitem__)
    made = typed(told, ToldError).made()
    assert type(made) is kind
    assert words in str(made)
    assert "raised in there" in made.__notes__[0]


def test_no_words_of_a_message_choose_other_code_than_errors() -> None:
    for name in ("builtins.eval", "builtins.SystemExit", "builtins.object", "os.system", "uirl.errors.UirlError", ""):
        assert type(ToldError((name,), "words").made()) is RemoteError


# -- what is believed ---------------------------------------------------------------------------------------------


class Runs:
    """A pickle that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


async def readers() -> list[tuple[str, Mapping[str, Handler]]]:
    """Return all that answers calls in a run: the learner to actors, actors, engines."""
    pool = ActorPool(Children(), ["actor-0"], ActorJob({}, {"train": 1}), FakeEngine())
    return [
        ("the learner", pool.actors[0].handlers),
        ("an actor", EpisodeWorker().handlers),
        ("an engine", EngineWorker(FakeEngine()).handlers),
    ]


def hostile(path: Path, method: str) -> Iterator[bytes]:
    """Yield bodies of frames that no process of ours says."""
    draw = random.Random(3)
    good = encode((method, (REQUEST, Order(), TRAJECTORY)))[0]
    yield b""
    yield pickle.dumps(Runs(path))
    yield pickle.dumps((method, (Runs(path),)))
    yield encode((method, (pickle.dumps(Runs(path)),)))[0]
    yield from (draw.randbytes(size) for size in (1, 10, 100, 5000) for _ in range(20))
    yield from (good[:cut] for cut in (1, 2, 20, len(good) // 2, len(good) - 1))
    yield good + b"\x00"
    for code in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"):  # array, map, text, bytes, extension
        yield b"\x92" + msgpack.packb(method) + code + b"\xff\xff\xff\xff"
        yield b"\x92" + msgpack.packb(method) + b"\x91" + code + b"\x7f\xff\xff\xff"
    yield b"\x91" * 100_000
    yield b"\x81\xa1a" * 100_000
    yield b"\x92" + msgpack.packb(method) + b"\x91" * 400 + b"\xc0"
    for odd in (None, 3, "x", [], [1, 2], {"a": 1}, [[method]], ["no such method", []], [3, []], [method, {"a": 1}]):
        yield msgpack.packb(odd)
    wrong = [None, True, -1, 10**30, 1.5, math.nan, "x", b"x", (), [], {}, {"a": 1}, {"data": b"x", "hash": "y"}, [[]]]
    for count in (0, 1, 2, 3, 9):
        for one in wrong:
            if not fits(method, [one] * count):
                yield encode((method, [one] * count))[0]
    yield msgpack.packb([method, {"a": msgpack.ExtType(1, b"")}])
    yield b"\x92" + msgpack.packb(method) + b"\x91\xd6\xff" + bytes(4)  # a time
    yield msgpack.packb([method, {1: 2}])


def fits(method: str, args: list[Any]) -> bool:
    """Whether these are what a handler takes: text for a release, say."""
    here = method == "here" and len(args) == 2 and type(args[0]) is int and type(args[1]) is str
    start = method == "start" and len(args) == 2 and isinstance(args[0], dict)
    return here or start or (method == "release" and len(args) == 1 and isinstance(args[0], str))


async def hear(kind: int, body: bytes, method: str, handler: Handler) -> tuple[list[Any], BaseException | None]:
    """Let a peer with this handler hear one frame; return with what the handler was called, and what came of a call of
    its own that waits meanwhile."""
    called: list[Any] = []
    dealt = asyncio.Event()

    @functools.wraps(handler)
    async def watched(*args: Any) -> None:
        called.append(args)

    async def ping() -> None:
        dealt.set()

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    one = Peer(*await asyncio.open_connection(sock=ours), {method: watched, "ping": ping})
    waits = asyncio.ensure_future(one.call("anything", returns=Played))
    last = encode(("ping", ()))[0]
    for what, number, said in ((kind, 1, body), (CALL, 2, last)):
        with contextlib.suppress(OSError):  # it has ended the connection
            await asyncio.get_running_loop().sock_sendall(theirs, _HEADER.pack(what, number, len(said)) + said)
    ends = {asyncio.ensure_future(dealt.wait()), asyncio.ensure_future(one.wait_closed())}
    done, pending = await asyncio.wait(ends, timeout=60, return_when="FIRST_COMPLETED")
    assert done, "it hangs"
    for one_of_them in pending:
        one_of_them.cancel()
    one.close()
    theirs.close()
    await asyncio.wait({waits})
    return called, waits.exception()


async def test_every_handler_says_what_it_takes() -> None:
    for who, handlers in await readers():
        for method, handler in handlers.items():
            assert Any not in getattr(_taken(handler), "__args__", ()), (who, method)


@pytest.mark.parametrize("kind", [CALL, NOTIFY, RESULT, ERROR])
async def test_what_is_no_message_is_refused_without_effect(tmp_path: Path, kind: int) -> None:
    ran = tmp_path / "ran"
    for _, handlers in await readers():
        for method, handler in handlers.items():
            for body in hostile(ran, method):
                called, error = await hear(kind, body, method, handler)
                assert called == [], body[:100]
                assert isinstance(error, UirlError), body[:100]
                assert not ran.exists()
            if kind not in (CALL, NOTIFY):
                return  # the others name no method


@pytest.mark.parametrize("length", [MAX_FRAME + 1, 2**40, 2**64 - 1])
async def test_a_frame_that_would_fill_memory_ends_the_connection_at_once(length: int) -> None:
    for kind in range(PICTURE + 1):
        ours, theirs = socket.socketpair()
        one = Peer(*await asyncio.open_connection(sock=ours), {})
        theirs.sendall(_HEADER.pack(kind, 1, length))
        assert "cannot be understood" in await asyncio.wait_for(one.wait_closed(), 10)
        theirs.close()


def test_a_message_cannot_make_a_picture_with_anothers_hash() -> None:
    for data in (b"other", "b3RoZXI="):
        forged = {"prompt_ids": [1], "images": [{"data": data, "hash": SHOT.hash}]}
        with pytest.raises(RemoteError, match="images"):
            typed(decode(msgpack.packb(forged), {}.__getitem__)[0], GenerationRequest)
