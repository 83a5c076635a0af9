"""Time limits on the calls of other people's code: awaited, or blocking on a thread of their own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from uirl.runtime.limits import in_words

T = TypeVar("T")
_Job = Callable[[], None]


class TimedOut(Exception):
    """The limit passed before the call returned. Not a TimeoutError: what is called may raise one of its own."""


class Escaped(Exception):
    """Called code raised what is no `Exception`: a SystemExit, a KeyboardInterrupt that no person sent, a cancellation
    that nobody asked for. Let out, it would end the loop, or leave the caller without an answer. `__cause__` is it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(in_words(error))
        self.__cause__ = error


def contained(call: Callable[[], T]) -> T:
    """Return what `call` returns, called here and now; raise what it raises, and `Escaped` for what is no Exception.

    A KeyboardInterrupt passes in the main thread, where it may be a person's.
    """
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        raise _kept_in(error) from error


async def awaited(awaitable: Awaitable[T]) -> T:
    """Return the result of `awaitable`; raise what it raises, and `Escaped` for a SystemExit, KeyboardInterrupt or
    cancellation of its own."""
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Escaped(error) from error
    except (KeyboardInterrupt, SystemExit) as error:  # a task passes these on to its loop, and that ends
        raise _kept_in(error) from error


async def within(awaitable: Awaitable[T], timeout: float | None) -> T:
    """Return the result of `awaitable`; raise what it raises, and `Escaped` for what is no Exception.

    Raises `TimedOut` after `timeout` seconds (None: no limit), even where the awaitable resists cancellation.
    """
    task = asyncio.ensure_future(awaited(awaitable))
    if asyncio.iscoroutine(awaitable):
        task.add_done_callback(lambda _: awaitable.close())  # it was not begun where the task was cancelled at once
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        # No wait for the end of a cancelled task: one that swallows the cancellation would hang the episode.
        task.cancel()
    if not done:
        task.add_done_callback(_retrieve_exception)
        raise TimedOut
    error = task.exception()
    if error is not None:
        raise error if isinstance(error, Exception) else _kept_in(error)
    return task.result()


def _kept_in(error: BaseException) -> BaseException:
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        return error
    return Escaped(error)


class Worker:
    """Runs blocking calls one after the other on a thread of its own, and gives up on one that hangs.

    The thread is a daemon that no pool joins, so a call that never returns does not keep the interpreter alive. It
    starts with the first call and ends with `stop`, or when the worker is forgotten.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = False
        self._returned = threading.Event()
        """Of the last call."""
        self._returned.set()
        # The thread knows the queue alone: a worker that nobody holds can be collected, and then its thread ends.
        weakref.finalize(self, self._jobs.put, None)

    async def run(self, function: Callable[[], T], timeout: float | None) -> T:
        """Return what `function` returns, called in the caller's context variables; raise what it raises, and `Escaped`
        for what is no Exception.

        Raises `TimedOut` after `timeout` seconds (None: no limit); the call then still occupies the thread.
        """
        call = _Call(function)
        self.post(call.run)
        self._returned = call.returned
        done, _ = await asyncio.wait({call.outcome}, timeout=timeout)
        if not done:
            call.outcome.cancel()
            raise TimedOut
        value, error = call.outcome.result()
        if error is not None:
            raise error if isinstance(error, Exception) else Escaped(error)
        return value[0]

    def post(self, job: _Job) -> None:
        """Queue a job that nobody waits for."""
        if not self._started:
            threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
            self._started = True  # not before: where no thread begins, the next call tries again
        self._jobs.put(job)

    @property
    def busy(self) -> bool:
        """Whether a call, be it one that was given up, still occupies the thread."""
        return not self._returned.is_set()

    def stop(self) -> None:
        """Let the thread end after what is queued."""
        self._jobs.put(None)


class _Call(Generic[T]):
    """One call of `Worker.run`, and the future in which the waiting loop gets its outcome."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function, self._context = function, contextvars.copy_context()
        self.returned = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[tuple[list[T], BaseException | None]] = self._loop.create_future()

    def run(self) -> None:
        value: list[T] = []
        error: BaseException | None = None
        try:
            value.append(self._context.run(self._function))
        except BaseException as raised:  # raised where the call is awaited; this thread has nobody to tell
            error = raised
        self.returned.set()
        with suppress(RuntimeError):  # the loop is closed: the caller gave up long ago
            self._loop.call_soon_threadsafe(self._deliver, value, error)

    def _deliver(self, value: list[T], error: BaseException | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result((value, error))


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # the job holds the environment and its last answer


def as_raised(error: BaseException) -> BaseException:
    """Return what called code raised: the cause of an `Escaped`, or of the RuntimeError that Python makes of a
    StopIteration that leaves a coroutine."""
    cause = error.__cause__
    return cause if isinstance(cause, StopIteration) or (cause is not None and isinstance(error, Escaped)) else error


def _retrieve_exception(task: asyncio.Future[T]) -> None:
    # asyncio logs exceptions of tasks nobody looked at; the time-out has already been reported.
    if not task.cancelled():
        task.exception()
