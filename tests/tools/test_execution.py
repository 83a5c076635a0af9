"""On which thread a tool runs, for how long, and what a slow or cancelled call leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.patience import PATIENCE
from tests.threads import left_since
from tests.tools.registered import Waiter, add, ask, where
from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.tools import (
    FunctionTool,
    Tool,
    ToolRegistry,
)


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


@pytest.mark.parametrize("tool", [FunctionTool(add, runs_inline=True), FunctionTool(add)])
async def test_the_synchronous_front_works_inside_a_loop(tool: Tool) -> None:
    registry = ToolRegistry([tool])
    assert registry.execute_tool("add", a=1) == (True, 2)
    assert registry.execute_tool("add", a=2) == (True, 3)
    await registry.close()


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


def test_inline_calls_of_the_front_stay_on_the_callers_thread() -> None:
    registry = ToolRegistry([FunctionTool(where, runs_inline=True)])
    assert registry.execute_tool("where") == (True, threading.current_thread().name)


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
