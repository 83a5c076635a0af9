"""Whose fault a call was: a mistake of the policy is a result, a failure of the tool is raised."""

from __future__ import annotations

import pytest

from tests.tools.registered import add, ask, raising
from uirl.errors import ConfigError, EngineFailure, EnvironmentFailure
from uirl.tools import (
    FunctionTool,
    ToolError,
    ToolRegistry,
    blame,
)
from uirl.types import ToolCall, ToolResult


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
    pressed = raising(KeyboardInterrupt())
    pressed.runs_inline = True  # in the main thread, where Ctrl-C is raised
    with pytest.raises(KeyboardInterrupt):
        await ask(ToolRegistry([pressed]), "fail")
    assert (await ask(ToolRegistry([raising(KeyboardInterrupt())]), "fail")).success is False
