"""ToolRegistry: whose fault it was, on which thread it ran, and what came back."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from tests.threads import left_since
from uirl.errors import ConfigError, ContractError, EngineFailure, EnvironmentFailure, EpisodeTimeout
from uirl.tools import (
    CalculatorTool,
    FunctionTool,
    LookupTool,
    SearchTool,
    Tool,
    ToolDefinition,
    ToolError,
    ToolRegistry,
    blame,
)
from uirl.types import ToolCall, ToolResult


class MyTool(Tool):
    """Doubles.

    More words.
    """

    def execute(self, param: str, times: int = 2) -> str:
        return param * times


class Counter(Tool):
    """Counts."""

    runs_inline = True

    def __init__(self) -> None:
        self.count = 0
        self.seeds: list[int | None] = []
        self.closed = 0

    def execute(self) -> int:
        self.count += 1
        return self.count

    def reset(self, seed: int | None = None) -> None:
        self.count = 0
        self.seeds.append(seed)

    def close(self) -> None:
        self.closed += 1


class Waiter(Tool):
    """Waits, awaited."""

    async def execute(self) -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: The first.
    """
    return a + b


def where() -> str:
    """On which thread."""
    return threading.current_thread().name


def raising(error: BaseException, inline: bool = False) -> Tool:
    def fail() -> None:
        raise error

    return FunctionTool(fail, runs_inline=inline)


def returning(value: Any) -> ToolRegistry:
    return ToolRegistry([FunctionTool(lambda: value, name="give", runs_inline=True)])


async def ask(registry: ToolRegistry, name: str, **arguments: Any) -> ToolResult:
    return await registry.call(ToolCall(name, arguments))


def test_the_documented_snippet() -> None:
    registry = ToolRegistry()
    registry.register(MyTool())
    assert registry.execute_tool("my_tool", param="value") == (True, "valuevalue")


def test_a_class_defines_itself() -> None:
    definition = MyTool().definition
    assert (definition.name, definition.description) == ("my_tool", "Doubles.")
    assert definition.check({"param": "a"}) is None
    assert MyTool.definition is definition, "made once"


def test_a_given_definition_counts() -> None:
    class Given(Tool):
        definition = ToolDefinition("given", "Says.", {"type": "object", "properties": {"x": {"type": "integer"}}})

        def execute(self, x: int = 0) -> int:
            return x

    assert (Given.name, Given.description) == ("given", "Says.")
    assert ToolRegistry([Given()]).execute_tool("given", x=3) == (True, 3)


@pytest.mark.parametrize(
    ("properties", "required", "words"),
    [
        ({"y": {}}, ["y"], "'y', which .*execute cannot take"),
        ({"x": {}}, [], "needs 'x', which the definition of 'given' does not require"),
    ],
)
def test_a_definition_that_does_not_fit_is_found_at_once(
    properties: dict[str, Any], required: list[str], words: str
) -> None:
    class Given(Tool):
        definition = ToolDefinition("given", "", {"type": "object", "properties": properties, "required": required})

        def execute(self, x: int) -> int:
            return x

    with pytest.raises(ContractError, match=words):
        ToolRegistry([Given()])


def test_tools_by_name_in_order() -> None:
    registry = ToolRegistry([MyTool(), add])
    assert registry.names == ("my_tool", "add")
    assert (len(registry), "add" in registry, "sub" in registry) == (2, True, False)
    assert [tool.definition.name for tool in registry] == ["my_tool", "add"]
    assert [schema["function"]["name"] for schema in registry.schemas()] == ["my_tool", "add"]
    with pytest.raises(ConfigError, match="did you mean 'add'"):
        registry["ad"]


def test_the_list_for_a_system_prompt() -> None:
    def paint(colour: Enum("Colour", {"R": "red"}), sizes: list[int], at: int | None = None) -> None: ...  # type: ignore[valid-type]

    registry = ToolRegistry([add, FunctionTool(where)])
    registry.register(ToolRegistry([paint])["paint"])
    assert registry.describe() == (
        "- add(a: integer, b: integer (optional)): Adds two numbers.\n"
        "    a: The first.\n"
        "- where(): On which thread.\n"
        "- paint(colour: 'red', sizes: list of integer, at: integer | null (optional))"
    )


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (add, "registered already"),
        (MyTool, r"the class MyTool; expected an instance: register\(MyTool\(\.\.\.\)\)"),
        ("add", "expected a Tool or a function"),
        (lambda x: x, "name of letters|no type hint"),
        (FunctionTool(where, timeout=0), "expected positive seconds"),
        (FunctionTool(where, max_result_chars=0), "expected at least 1"),
    ],
)
def test_what_cannot_be_registered(tool: Any, words: str) -> None:
    with pytest.raises((ConfigError, ContractError), match=words):
        ToolRegistry([add]).register(tool)


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
    blame._MISHAPS.clear()
    registry = ToolRegistry([raising(error, inline)])
    for _ in range(11):
        got = await ask(registry, "fail")
        assert (got.success, got.result) == (False, f"the call failed: {type(error).__name__}: {error}")
    assert [f"(time {n} in" in record.getMessage() for n, record in zip((1, 10), caplog.records, strict=True)] == [
        True,
        True,
    ]
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


async def test_typed_failures_pass_as_they_are() -> None:
    with pytest.raises(EngineFailure, match="as it was"):
        await ask(ToolRegistry([raising(EngineFailure("as it was"))]), "fail")


async def test_interrupts_are_nobodys_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        await ask(ToolRegistry([raising(KeyboardInterrupt())]), "fail")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        ("é", "é"),
        ((1, [2.5, True]), [1, [2.5, True]]),
        ({"a": {"b": ()}}, {"a": {"b": []}}),
    ],
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
    meet = threading.Barrier(8, timeout=20)  # breaks unless all eight wait in it together

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
    thread.join(timeout=20)
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


def test_spawned_tools_are_independent() -> None:
    registry = ToolRegistry([Counter(), add])
    other = registry.spawn()
    assert [registry.execute_tool("counter")[1] for _ in range(3)] == [1, 2, 3]
    assert other.execute_tool("counter") == (True, 1)
    assert other.names == registry.names


def test_a_bound_method_is_spawned_with_its_object() -> None:
    class Basket:
        def __init__(self) -> None:
            self.items: list[str] = []

        def put(self, item: str) -> list[str]:
            self.items.append(item)
            return self.items

    registry = ToolRegistry([Basket().put])
    other = registry.spawn()
    registry.execute_tool("put", item="apple")
    assert other.execute_tool("put", item="pear") == (True, ["pear"])


class Shop:
    """What environments do: they hold tools that act on them."""

    def __init__(self) -> None:
        self.sold: list[str] = []
        self.tools = ToolRegistry([self.sell, SearchTool(["a", "b"]), LookupTool({}), CalculatorTool(), Waiter()])

    def sell(self, item: str) -> int:
        self.sold.append(item)
        return len(self.sold)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda shop: pickle.loads(pickle.dumps(shop))])
def test_an_environment_with_tools_is_copied_whole(copied: Any) -> None:
    shop = Shop()
    assert shop.tools.execute_tool("sell", item="apple") == (True, 1)
    shop.tools.execute_tool("waiter")  # by now a thread runs, which no copy takes along
    other = copied(shop)
    assert other.tools.execute_tool("sell", item="pear") == (True, 2)
    assert (shop.sold, other.sold) == (["apple"], ["apple", "pear"])
    assert other.tools.schemas() == shop.tools.schemas()
    assert other.tools.execute_tool("waiter")[0]
    for one in (shop, other):
        asyncio.run(one.tools.close())


def test_a_tool_that_cannot_be_copied_is_told_what_to_do() -> None:
    class Locked(Tool):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def execute(self) -> None: ...

    with pytest.raises(ContractError, match=r"'locked' cannot be copied: .*; write spawn\(\)"):
        ToolRegistry([Locked()]).spawn()


def test_reset_reaches_every_tool() -> None:
    registry = ToolRegistry([Counter()])
    registry.execute_tool("counter")
    registry.reset(7)
    assert registry.execute_tool("counter") == (True, 1)
    assert registry["counter"].seeds == [7]  # type: ignore[attr-defined]


def test_a_reset_that_fails_is_ours() -> None:
    class Broken(Counter):
        def reset(self, seed: int | None = None) -> None:
            raise OSError("no disk")

    with pytest.raises(EnvironmentFailure, match="tool 'broken': reset raised OSError: no disk"):
        ToolRegistry([Broken()]).reset()


async def test_close_goes_on_after_a_tool_that_fails() -> None:
    class Broken(Counter):
        async def close(self) -> None:  # type: ignore[override]
            raise OSError("stuck")

    good = Counter()
    registry = ToolRegistry([Broken(), good])
    with pytest.raises(EnvironmentFailure, match="tool 'broken': close raised OSError: stuck"):
        await registry.close()
    assert good.closed == 1


def test_the_room_loads_neither_torch_nor_optional_packages() -> None:
    code = (
        "import sys, uirl.tools as tools; [getattr(tools, name) for name in tools.__all__]; "
        "tools.ToolRegistry([tools.CalculatorTool()]).execute_tool('calculator', expression='1'); "
        "print([name for name in ('torch', 'transformers', 'mcp', 'httpx2', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.strip() == "[]"


def test_a_call_that_never_returns_does_not_keep_the_thread_pool() -> None:
    """A hung tool runs on a daemon thread, which no pool joins at exit."""
    free = threading.Event()
    registry = ToolRegistry([FunctionTool(lambda: free.wait(60), name="hung", timeout=0.01)])
    assert registry.execute_tool("hung") == (False, "the call did not return within 0.01 s")
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "tool-hung"] == [True]
    free.set()
    asyncio.run(registry.close())
