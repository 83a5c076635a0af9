"""`ToolRegistry`: the tools of one episode, and the one place where a call is run, judged and answered."""

from __future__ import annotations

import errno
import inspect
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from uirl.errors import (
    ConfigError,
    ContractError,
    EnvironmentFailure,
    EpisodeTimeout,
    RolloutFailure,
    UirlError,
    did_you_mean,
    is_round,
    without_addresses,
)
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.limits import InputError, LimitError, as_plain, in_words, shown
from uirl.runtime.time_limits import TimedOut, Worker, as_raised, contained, within
from uirl.tools.base import FunctionTool, Tool, ToolError
from uirl.types import ToolCall, ToolResult

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
BY_ARGUMENTS = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY}
    | {errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.E2BIG, errno.EFBIG}
)
"""What an OSError says of a path or a size that a call named."""
_MISHAPS: Counter[tuple[str, str]] = Counter()
"""(tool, what happened) -> how often in this process."""


class ToolRegistry:
    """Tools by name. Parallel episodes each take a `spawn()`.

    Who is told what: an unknown name, arguments that do not fit and a `ToolError` are the policy's mistakes and come
    back as results with `success` False. So does what else a call brings about, and a call beyond its time; the person
    is warned, since it may be a mistake of the tool. What the tool names as its `failures` is an `EnvironmentFailure`.
    """

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._left_behind: dict[str, Worker] = {}
        self._front: EventLoopThread | None = None
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Register a tool and return it; a plain function becomes a `FunctionTool`.

        Raises ConfigError for a name that is taken and for what is no tool, ContractError for an `execute` that does
        not fit its definition.
        """
        if isinstance(tool, type):
            raise ConfigError(f"got the class {tool.__name__}; expected an instance: register({tool.__name__}(...))")
        if not isinstance(tool, Tool):
            if not callable(tool):
                raise ConfigError(f"got {shown(tool)} ({type(tool).__name__}); expected a Tool or a function")
            tool = FunctionTool(tool)
        tool.check_signature()
        name = tool.definition.name
        if name in self._tools:
            raise ConfigError(f"a tool named {name!r} is registered already; give one of them another name")
        if tool.timeout is not None and not tool.timeout > 0:
            raise ConfigError(f"the timeout of tool {name!r} is {tool.timeout!r}; expected positive seconds, or None")
        if tool.max_result_chars is not None and tool.max_result_chars < 1:
            raise ConfigError(f"max_result_chars of tool {name!r} is {tool.max_result_chars!r}; expected at least 1")
        self._tools[name] = tool
        return tool

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of registration."""
        return tuple(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __getstate__(self) -> dict[str, Any]:
        # An environment that holds tools is copied for parallel episodes, and sent to other processes.
        return {"_tools": self._tools, "_left_behind": {}, "_front": None}

    def __getitem__(self, name: str) -> Tool:
        if name not in self._tools:
            raise ConfigError(f"no tool named {name!r}; {did_you_mean(name, self._tools)}")
        return self._tools[name]

    def schemas(self) -> list[dict[str, Any]]:
        """Return the definitions as a chat template takes them (`tools=`)."""
        return [tool.definition.schema() for tool in self]

    def describe(self) -> str:
        """Return the tools as a plain list for a system prompt: `- name(argument: type, ...): description`."""
        return "\n".join(tool.definition.describe() for tool in self)

    def execute_tool(self, name: str, /, **arguments: Any) -> tuple[bool, Any]:
        """Return (success, result) of one call, from code that does not await.

        Works where an event loop already runs, and then blocks it. Raises what `call` raises.
        """
        coroutine = self.call(ToolCall(name, arguments))
        tool = self._tools.get(name)
        if tool is None or tool.never_waits:
            remedy = f"tool {name!r} has runs_inline and waits; make its execute `async def`, or runs_inline False"
            result = run_at_once(coroutine, remedy)
        else:
            self._front = self._front or EventLoopThread("tool-registry")
            result = self._front.run(coroutine)
        return result.success, result.result

    async def call(self, call: ToolCall) -> ToolResult:
        """Return what came of `call`. Raises `EnvironmentFailure` or `EpisodeTimeout` where the fault is ours."""
        started = time.perf_counter()
        tool = self._tools.get(call.name)
        try:
            result = await self._answer(tool, call)
            success = True
        except ToolError as error:
            result, success = self._as_text(error, tool), False
        seconds = time.perf_counter() - started
        return ToolResult(call.name, call.arguments, success, result, call.id, seconds)

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode: reset every tool. Raises `EnvironmentFailure` where one cannot be."""
        for tool in self:
            name = tool.definition.name
            if self._is_occupied(name):
                raise EnvironmentFailure(
                    f"tool {name!r} is still busy with a call that was given up; take a fresh spawn()"
                )
            try:
                tool.reset(seed)
            except RolloutFailure:
                raise
            except Exception as error:  # a tool is somebody else's code
                raise EnvironmentFailure(f"tool {name!r}: reset raised {in_words(error)}") from error

    def spawn(self) -> ToolRegistry:
        """Return the same tools as independent instances, for a parallel episode."""
        copy = ToolRegistry()
        for tool in self:
            name = tool.definition.name
            try:
                copy.register(tool.spawn())
            except (TypeError, AttributeError) as error:
                raise ContractError(
                    f"tool {name!r} cannot be copied: {error}; write spawn() to say what parallel episodes share"
                ) from error
        return copy

    async def close(self) -> None:
        """Close every tool, also where one of them fails; then raise `EnvironmentFailure` for those that did."""
        problems = []
        for tool in self:
            try:
                closed = tool.close()
                if inspect.isawaitable(closed):
                    await closed
            except Exception as error:  # raised below, when the other tools are closed too
                problems.append(f"tool {tool.definition.name!r}: close raised {in_words(error)}")
        if self._front is not None:
            self._front.close()
            self._front = None
        if problems:
            raise EnvironmentFailure("; ".join(problems))

    async def _answer(self, tool: Tool | None, call: ToolCall) -> Any:
        """Return the result as plain data. Raises `ToolError` for the policy's mistakes, failures for ours."""
        if tool is None:
            suggestion = did_you_mean(call.name, self._tools) if self._tools else "there are none"
            raise ToolError(f"unknown tool {call.name[:60]!r}; {suggestion}")
        problem = tool.definition.check(call.arguments)
        if problem is not None:
            raise ToolError(problem)
        value = await self._run(tool, tool.read_arguments(call.arguments))
        try:
            plain = as_plain(value, "the result", whole=True)
        except LimitError as error:  # how much a tool finds is the policy's choice
            raise ToolError(f"{error}; ask for less") from None
        except InputError as error:
            raise EnvironmentFailure(f"tool {call.name!r} returned what cannot be kept: {error}") from None
        text, limit = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False), tool.max_result_chars
        return plain if limit is None or len(text) <= limit else cut(text, limit)

    async def _run(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        name = tool.definition.name
        if self._is_occupied(name):
            raise ToolError(f"{name} is still busy with an earlier call")
        try:
            return await self._execute(tool, arguments)
        except (ToolError, RolloutFailure):
            raise
        except TimedOut:
            late = f"tool {name!r} did not return within {tool.timeout:g} s"
            if not await tool.is_well():
                raise EpisodeTimeout(f"{late}, and what it depends on does not answer") from None
            raise _told(name, "took too long", f"the call did not return within {tool.timeout:g} s") from None
        except Exception as error:  # a tool must not end the run
            raised = as_raised(error)
            message = in_words(raised)
            if any(isinstance(e, (*tool.failures, UirlError)) and not _of_the_call(e) for e in _causes(raised)):
                raise EnvironmentFailure(f"tool {name!r} raised {message}") from raised
            raise _told(name, f"raised {type(raised).__name__}", f"the call failed: {message}") from raised

    async def _execute(self, tool: Tool, arguments: dict[str, Any]) -> Any:
        """Return what `tool.execute` returns: on the caller's thread, on a thread of its own, or awaited. Raises
        `TimedOut` after the tool's limit; a call that still runs then keeps the tool occupied."""
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
                    self._left_behind[tool.definition.name] = worker
        return await within(value, tool.timeout) if inspect.isawaitable(value) else value

    def _is_occupied(self, name: str) -> bool:
        """Return whether a call that was given up still runs."""
        worker = self._left_behind.get(name)
        if worker is not None and not worker.busy:
            del self._left_behind[name]
        return name in self._left_behind

    def _as_text(self, error: ToolError, tool: Tool | None) -> str:
        text = without_addresses(str(error)).encode(errors="replace").decode()
        text = text or "the call failed, and the tool gave no reason"
        return cut(text, Tool.max_result_chars if tool is None else tool.max_result_chars)


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


def cut(text: str, limit: int | None) -> str:
    """Return the first `limit` characters, and how many are missing; None: all of them."""
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}... (cut, {len(text) - limit} more characters)"


def _told(tool: str, what: str, words: str) -> ToolError:
    """Return what the policy is shown of a failed call; the person is warned the first time, the 10th, the 100th."""
    _MISHAPS[tool, what] += 1
    count = _MISHAPS[tool, what]
    if is_round(count):
        _LOG.warning(
            "tool %r %s (time %d in this process), and the policy was told: %.200s. Is it the policy's doing? Raise "
            "ToolError in the tool to say so, EnvironmentFailure where it is not",
            *(tool, what, count, words),
        )
    return ToolError(words)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _of_the_call(error: BaseException) -> bool:
    """Return whether an error is about a path or a time limit: arguments bring those about, whatever `failures` say."""
    return isinstance(error, OSError) and (isinstance(error, TimeoutError) or error.errno in BY_ARGUMENTS)
