"""A call of a tool: on which thread and for how long it runs, whose fault it is, and what the policy sees of it."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.patience import PATIENCE
from tests.threads import left_since
from tests.tools.registered import Waiter, add, ask, where
from uirl.errors import ConfigError, EngineFailure, EnvironmentFailure, EpisodeTimeout
from uirl.tools import FunctionTool, Tool, ToolError, ToolRegistry
from uirl.tools.registry import _MISHAPS
from uirl.types import ToolCall, ToolResult


def raising(error: BaseException, inline: bool = False) -> Tool:
    def fail() -> None:
        raise error

    return FunctionTool(fail, runs_inline=inline)


# -- on which thread, for how long ------------------------------------------------------------------------------------


class Shade(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check_even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("must be even")
        return n


def test_arguments_arrive_as_the_hints_say() -> None:
    def kinds(shade: Shade, point: Point, points: list[Point], n: int, x: float, even: Even | None = None) -> str:
        return f"{shade} {point} {points[0]} {n!r} {x!r} {even}"

    registry = ToolRegistry([kinds])
    arguments = {"shade": "red", "point": {"x": 1}, "points": [{"x": 2}], "n": 3.0, "x": 4}
    assert registry.execute_tool("kinds", **arguments) == (True, "Shade.RED Point(x=1) Point(x=2) 3 4.0 None")
    success, text = registry.execute_tool("kinds", **arguments, even={"n": 3})
    assert not success
    assert "argument 'even" in text
    assert "must be even" in text


async def test_inline_runs_here_and_blocking_runs_elsewhere() -> None:
    here = threading.current_thread().name
    assert (await ask(ToolRegistry([FunctionTool(where, runs_inline=True)]), "where")).result == here
    assert (await ask(ToolRegistry([where]), "where")).result == "tool-where"
    assert (await ask(ToolRegistry([Waiter()]), "waiter")).result == here


async def test_blocking_calls_of_parallel_episodes_run_side_by_side() -> None:
    meet = threading.Barrier(8, timeout=PATIENCE)  # breaks unless all eight wait in it together

    def together() -> int:
        return int(meet.wait() >= 0)

    registry = ToolRegistry([together])
    spawned = [registry.spawn() for _ in range(8)]
    results = await asyncio.gather(*(ask(one, "together") for one in spawned))
    assert [one.result for one in results] == [1] * 8


@pytest.mark.parametrize("kind", ["blocking", "awaited", "stubborn"])
async def test_a_call_beyond_its_time_is_cut_off(kind: str) -> None:
    free = threading.Event()

    def blocking() -> bool:
        return free.wait(20)

    async def awaited() -> None:
        await asyncio.sleep(20)

    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                continue

    function = {"blocking": blocking, "awaited": awaited, "stubborn": stubborn}[kind]
    registry = ToolRegistry([FunctionTool(function, name="slow", timeout=0.05)])
    late = await ask(registry, "slow")
    assert (late.success, late.result) == (False, "the call did not return within 0.05 s")
    free.set()


async def test_a_slow_call_to_what_does_not_answer_is_a_failure() -> None:
    class Remote(FunctionTool):
        async def is_well(self) -> bool:
            return False

    async def awaited() -> None:
        await asyncio.sleep(20)

    with pytest.raises(EpisodeTimeout, match=r"tool 'awaited' did not return within 0\.05 s, and what it depends on"):
        await ask(ToolRegistry([Remote(awaited, timeout=0.05)]), "awaited")


async def test_a_tool_that_still_runs_takes_no_further_call() -> None:
    free, left = threading.Event(), threading.Event()

    def slow() -> int:
        free.wait(20)
        left.set()
        return 1

    registry = ToolRegistry([FunctionTool(slow, timeout=0.05)])
    assert not (await ask(registry, "slow")).success
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "tool-slow"] == [True]  # no exit waits
    again = await ask(registry, "slow")
    assert (again.success, again.result) == (False, "slow is still busy with an earlier call")
    with pytest.raises(EnvironmentFailure, match=r"still busy .* take a fresh spawn"):
        registry.reset()
    free.set()
    assert left.wait(20)
    while any(thread.name == "tool-slow" for thread in threading.enumerate()):
        await asyncio.sleep(0.001)
    assert (await ask(registry, "slow")).result == 1


async def test_a_cancelled_call_leaves_its_thread_behind() -> None:
    free = threading.Event()
    registry = ToolRegistry([FunctionTool(lambda: free.wait(20), name="left", timeout=None)])
    call = asyncio.ensure_future(ask(registry, "left"))
    while not any(thread.name == "tool-left" for thread in threading.enumerate()):
        await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await ask(registry, "left")).result == "left is still busy with an earlier call"
    free.set()


@pytest.mark.parametrize("inside", [True, False])
def test_the_synchronous_front_awaits(inside: bool) -> None:
    registry = ToolRegistry([Waiter()])
    before = set(threading.enumerate())

    async def call() -> tuple[bool, Any]:
        return registry.execute_tool("waiter")

    assert (asyncio.run(call()) if inside else registry.execute_tool("waiter")) == (True, "tool-registry")
    asyncio.run(registry.close())
    assert not left_since(before)


def test_a_forgotten_registry_ends_its_thread() -> None:
    registry = ToolRegistry([Waiter()])
    before = set(threading.enumerate())
    registry.execute_tool("waiter")
    [thread] = set(threading.enumerate()) - before
    del registry
    gc.collect()
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()


def test_arguments_may_be_called_name_and_self() -> None:
    def greet(name: str) -> str:
        return f"hello {name}"

    assert ToolRegistry([greet]).execute_tool("greet", name="Ada") == (True, "hello Ada")


def test_a_tool_that_calls_back_does_not_hang() -> None:
    registry = ToolRegistry([add])

    async def nested() -> Any:
        return registry.execute_tool("add", a=1)[1]

    registry.register(nested)
    with pytest.raises(EnvironmentFailure, match=r"await ToolRegistry\.call"):
        registry.execute_tool("nested")
    asyncio.run(registry.close())


# -- whose fault it is ------------------------------------------------------------------------------------------------


async def test_the_policys_mistakes_are_results() -> None:
    def strict(n: int) -> int:
        raise ToolError(f"{n} is too much")

    registry = ToolRegistry([add, strict, FunctionTool(lambda: 1, name="silent", runs_inline=True)])
    assert (await ask(registry, "ad")).result == "unknown tool 'ad'; did you mean 'add'?"
    assert (await ask(registry, "add", a="x")).result == "argument 'a': got \"x\" (string), expected integer"
    got = await registry.call(ToolCall("strict", {"n": 9}, "call-7"))
    assert (got.name, got.arguments, got.success, got.result, got.id) == (
        "strict", {"n": 9}, False, "9 is too much", "call-7",
    )  # fmt: skip
    assert (await ToolRegistry().call(ToolCall("add"))).result == "unknown tool 'add'; there are none"
    assert (await ask(ToolRegistry([raising(ToolError())]), "fail")).result.startswith("the call failed")


async def test_what_comes_back_says_what_was_called() -> None:
    got = await ToolRegistry([add]).call(ToolCall("add", {"a": 2, "b": 3}, "7"))
    assert got == ToolResult("add", {"a": 2, "b": 3}, True, 5, "7", got.seconds)
    assert got.seconds > 0


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("boom"), KeyError("boom"), RecursionError("boom"), SystemExit(3), StopIteration("boom")),
        *(FileNotFoundError(2, "boom"), PermissionError(13, "boom"), TimeoutError("boom"), MemoryError()),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_call_brings_about_is_told_to_the_policy_and_to_the_person(
    error: BaseException, inline: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _MISHAPS.clear()
    registry = ToolRegistry([raising(error, inline)])
    for _ in range(11):
        got = await ask(registry, "fail")
        assert (got.success, got.result) == (False, f"the call failed: {type(error).__name__}: {error}")
    first, tenth = (record.getMessage() for record in caplog.records)
    assert "(time 1 in" in first
    assert "(time 10 in" in tenth
    assert caplog.records[0].getMessage().startswith(f"tool 'fail' raised {type(error).__name__}")


def caused(error: Exception, cause: Exception) -> Exception:
    """As after `raise error from cause`."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("boom"),
        OSError(28, "no space left on device"),
        OSError("the cable was pulled"),
        ModuleNotFoundError("no module named httpx"),
        ConfigError("boom"),
        caused(RuntimeError("boom"), caused(ValueError("boom"), ConnectionRefusedError("boom"))),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_no_argument_brings_about_is_a_failure(error: BaseException, inline: bool) -> None:
    registry = ToolRegistry([raising(error, inline)])
    with pytest.raises(EnvironmentFailure, match=f"tool 'fail' raised {type(error).__name__}") as caught:
        await ask(registry, "fail")
    assert caught.value.__cause__ is error


async def test_a_tool_says_what_its_failures_are() -> None:
    fetch, query = raising(ConnectionRefusedError("boom")), raising(LookupError("the database is away"))
    fetch.failures = ()  # the policy says which host
    assert (await ask(ToolRegistry([fetch]), "fail")).success is False
    query.failures = (LookupError,)
    with pytest.raises(EnvironmentFailure, match="tool 'fail' raised LookupError"):
        await ask(ToolRegistry([query]), "fail")
    with pytest.raises(EngineFailure, match="as it was"):  # a typed failure passes as it is
        await ask(ToolRegistry([raising(EngineFailure("as it was"))]), "fail")


async def test_interrupts_are_nobodys_failure() -> None:
    pressed = raising(KeyboardInterrupt())
    pressed.runs_inline = True  # in the main thread, where Ctrl-C is raised
    with pytest.raises(KeyboardInterrupt):
        await ask(ToolRegistry([pressed]), "fail")
    assert (await ask(ToolRegistry([raising(KeyboardInterrupt())]), "fail")).success is False


# -- what the policy sees ---------------------------------------------------------------------------------------------


def returning(value: Any) -> ToolRegistry:
    return ToolRegistry([FunctionTool(lambda: value, name="give", runs_inline=True)])


@pytest.mark.parametrize(
    ("value", "plain"),
    [(None, None), ("é", "é"), ((1, [2.5, True]), [1, [2.5, True]]), ({"a": {"b": ()}}, {"a": {"b": []}})],
)
def test_plain_results(value: Any, plain: Any) -> None:
    success, result = returning(value).execute_tool("give")
    assert success
    assert result == plain
    assert json.loads(json.dumps(result)) == plain


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "tool 'give' returned what cannot be kept: the result is <object .*expected what JSON holds"),
        ({"a": [1, {2}]}, r"the result\.a\[1\] is \{2\} \(set\)"),
        (float("nan"), "the result is nan"),
        ({1: 2}, "the result has the key 1"),
        (b"x", "the result is b'x'"),
        pytest.param(10**5000, "an int of 16610 bits", id="huge"),  # pytest cannot print it either
        ("\ud800", "half a character"),
    ],
)
def test_other_results_are_ours_to_mend(value: Any, words: str) -> None:
    with pytest.raises(EnvironmentFailure, match=words):
        returning(value).execute_tool("give")


def test_results_beyond_the_limits_are_the_policys_to_avoid() -> None:
    """A policy that could break a tool by asking for much would turn lost episodes into no evidence."""
    loop: list[Any] = []
    loop.append(loop)
    for value, words in ((loop, "too deep"), ([0] * 300_000, "too many values")):
        success, text = returning(value).execute_tool("give")
        assert not success
        assert words in text
        assert "ask for less" in text


def test_long_results_are_cut_and_say_so() -> None:
    registry = returning("ab" * 20)
    registry["give"].max_result_chars = 30
    assert registry.execute_tool("give") == (True, "ab" * 15 + "... (cut, 10 more characters)")
    listed = returning(list(range(100)))
    listed["give"].max_result_chars = 10
    # json.dumps(range(100)): 10 numbers of one digit, 90 of two, 99 times ', ', two brackets: 390 characters
    assert listed.execute_tool("give") == (True, "[0, 1, 2, ... (cut, 380 more characters)")
    failed = ToolRegistry([raising(ToolError("x" * 9000))])
    assert failed.execute_tool("fail") == (False, "x" * 8000 + "... (cut, 1000 more characters)")
