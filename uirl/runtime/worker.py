"""A daemon thread with a queue: blocking calls of one environment, always on the same thread."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

_Job = Callable[[], None]


class Worker:
    """Runs calls one after the other on a thread of its own, and gives up on one that hangs.

    The thread is a daemon that no pool joins, so a call that never returns does not keep the interpreter alive. It
    starts with the first call and ends with `stop`, or when the worker is forgotten.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = False
        # The thread knows the queue alone: a worker that nobody holds can be collected, and then its thread ends.
        weakref.finalize(self, self._jobs.put, None)

    async def run(self, function: Callable[[], Any], timeout: float) -> Any:
        """What `function` returns; raises what it raises.

        Raises `TimedOut` after `timeout` seconds; the call then still occupies the thread.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def job() -> None:
            answer: tuple[Any, BaseException | None]
            try:
                answer = (function(), None)
            except BaseException as error:
                answer = (None, error)
            with suppress(RuntimeError):  # the loop is closed: the caller gave up long ago
                loop.call_soon_threadsafe(_deliver, outcome, answer)

        self.post(job)
        done, _ = await asyncio.wait({outcome}, timeout=timeout)
        if not done:
            outcome.cancel()
            raise TimedOut
        value, error = outcome.result()
        if error is not None:
            raise error
        return value

    def post(self, job: _Job) -> None:
        """Queues a job that nobody waits for."""
        if not self._started:
            self._started = True
            threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
        self._jobs.put(job)

    def stop(self) -> None:
        """Lets the thread end after what is queued."""
        self._jobs.put(None)


class TimedOut(Exception):
    """The limit passed before the call returned. Not a TimeoutError: an environment may raise one of its own."""


async def within(awaitable: Any, timeout: float) -> Any:
    """The result of `awaitable`; raises `TimedOut` after `timeout` seconds, even where it resists cancellation."""
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


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # the job holds the environment and its last answer


def _deliver(outcome: asyncio.Future[Any], answer: tuple[Any, BaseException | None]) -> None:
    if not outcome.done():
        outcome.set_result(answer)


def _look_at_result(task: asyncio.Future[Any]) -> None:
    # asyncio logs exceptions of tasks nobody looked at; the time-out has already been reported.
    if not task.cancelled():
        task.exception()
