"""One call of one tool: on the caller's thread, on a thread of its own, or awaited; within its time."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from uirl.errors import ContractError
from uirl.tools.base import Tool


class TimedOut(Exception):
    """The limit passed before the call returned. Not a TimeoutError: a tool may raise one of its own."""


class CallThread(threading.Thread):
    """A daemon thread that runs one call: one that never returns does not keep the interpreter alive."""

    def __init__(self, function: Callable[[], Any], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._function, self._context = function, contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()

    def run(self) -> None:
        answer: tuple[Any, BaseException | None]
        try:
            answer = (self._context.run(self._function), None)
        except BaseException as error:  # raised where the call is awaited; this thread has nobody to tell
            answer = (None, error)
        with suppress(RuntimeError):  # the loop is closed: the caller gave up long ago
            self._loop.call_soon_threadsafe(self._deliver, answer)

    def _deliver(self, answer: tuple[Any, BaseException | None]) -> None:
        if not self.outcome.done():
            self.outcome.set_result(answer)


async def execute(tool: Tool, arguments: dict[str, Any], left_behind: Callable[[threading.Thread], None]) -> Any:
    """What `tool.execute` returns; raises what it raises.

    Raises `TimedOut` after the tool's limit. A thread that still runs when the wait ends goes to `left_behind`.
    """
    call = partial(tool.execute, **arguments)
    if tool.runs_inline or inspect.iscoroutinefunction(tool.execute):
        value = call()
    else:
        value = await _in_thread(call, tool, left_behind)
    return await _within(value, tool.timeout) if inspect.isawaitable(value) else value


def runs_without_loop(tool: Tool) -> bool:
    """Whether a call of `tool` never waits."""
    return tool.runs_inline and not inspect.iscoroutinefunction(tool.execute)


async def _in_thread(call: Callable[[], Any], tool: Tool, left_behind: Callable[[threading.Thread], None]) -> Any:
    thread = CallThread(call, f"tool-{tool.definition.name}")
    thread.start()
    try:
        done, _ = await asyncio.wait({thread.outcome}, timeout=tool.timeout)
    finally:
        if not thread.outcome.done():
            thread.outcome.cancel()
            left_behind(thread)
    if not done:
        raise TimedOut
    value, error = thread.outcome.result()
    if error is not None:
        raise error
    return value


async def _within(awaitable: Any, timeout: float | None) -> Any:
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        # No wait for the end of a cancelled task: one that swallows the cancellation would hang the episode.
        task.cancel()
    if not done:
        task.add_done_callback(_look_at_result)
        raise TimedOut
    return task.result()


def _look_at_result(task: asyncio.Future[Any]) -> None:
    # asyncio logs exceptions of tasks nobody looked at; the time-out has already been reported.
    if not task.cancelled():
        task.exception()


class LoopThread:
    """An event loop on a daemon thread, for callers that have none or must not block their own.

    The thread ends with `stop`, or when the object is forgotten.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # The thread knows the loop alone, so that an object that nobody holds can be collected.
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, _end, self._loop).atexit = False

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Starts `coroutine` on the loop; the future is safe to wait for on any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The result of `coroutine`, waited for on this thread. Raises ContractError on the loop's own thread."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ContractError("a call waits for its own event loop; await ToolRegistry.call in code that is awaited")
        future = self.submit(coroutine)
        try:
            return future.result()
        finally:
            future.cancel()

    def stop(self) -> None:
        """Ends the loop and its thread. What still runs on it is cancelled. A second call does nothing."""
        _end(self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=5))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _end(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)
