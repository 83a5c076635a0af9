"""One call of one tool: on the caller's thread, on a thread of its own, or awaited; within its time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from uirl.errors import ContractError
from uirl.runtime.time_limits import Worker, contained, within
from uirl.tools.base import Tool

T = TypeVar("T")


async def execute(tool: Tool, arguments: dict[str, Any], left_behind: Callable[[Worker], None]) -> Any:
    """Return what `tool.execute` returns; raise what it raises.

    Raises `TimedOut` after the tool's limit. A worker whose call still runs when the wait ends goes to `left_behind`.
    """
    call = partial(tool.execute, **arguments)
    if tool.runs_inline or inspect.iscoroutinefunction(tool.execute):
        value = contained(call)
    else:
        worker = Worker(f"tool-{tool.definition.name}")
        try:
            value = await worker.run(call, tool.timeout)
        finally:
            worker.stop()
            if worker.busy:
                left_behind(worker)
    return await within(value, tool.timeout) if inspect.isawaitable(value) else value


def run_at_once(coroutine: Coroutine[Any, Any, T], remedy: str) -> T:
    """Return what a coroutine returns that never waits, without a loop. Raises ContractError with `remedy` where it
    does wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise ContractError(remedy)


def runs_without_loop(tool: Tool) -> bool:
    """Return whether a call of `tool` never waits."""
    return tool.runs_inline and not inspect.iscoroutinefunction(tool.execute)
