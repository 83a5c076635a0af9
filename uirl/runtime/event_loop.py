"""Event loops on threads of their own, for callers that are not coroutines.

Environments and engines hold sockets and tasks that belong to a loop, while `fit`, `generate` and the rest are plain
calls, also in a notebook whose own loop is running.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from uirl.errors import ContractError

T = TypeVar("T")

_HEARS_SIGNALS = 0.2
"""Seconds after which the main thread, while it waits for a lock, looks for signals: one that another thread received
does not wake it, and on Windows none does."""
_SOFT = 1
"""omp_pause_soft (OpenMP 5.0, 3.2.44): threads go, what was set stays."""


def give_back_team() -> None:
    """End torch's helper threads of the calling thread, which must be outside of an operation. Its next operation makes
    them again. Nothing happens where torch is not loaded whole, or has another OpenMP than GNU's on Linux.

    OpenMP gives every thread that computes a team, which waits awake between two operations. Where all teams of a
    process have more threads than the machine has cores, GNU's puts every team to sleep, and each operation wakes its
    helpers anew (70 us). So a thread that begins to wait for another one gives its team back.

    Threads that wait otherwise (`asyncio.to_thread`, `WorkerThread`) keep theirs.
    """
    if hasattr(sys.modules.get("torch"), "set_num_threads") and (pause := _pause_of(os.getpid())) is not None:
        pause(_SOFT)


@cache
def _pause_of(process: int) -> Callable[[int], int] | None:
    """Return `omp_pause_resource_all` of the OpenMP that is loaded; None: there is none, or an older one."""
    try:
        maps = Path(f"/proc/{process}/maps").read_text(errors="surrogateescape")
    except OSError:
        return None
    for path in {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "/libgomp" in line}:
        try:
            return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
    return None


# a forked child has none of these threads, and would wait for ever to end them
os.register_at_fork(before=give_back_team)


class WorkerThread:
    """Runs one call after another on a thread of its own, which begins with the first."""

    def __init__(self, name: str, on_start: Callable[[], None] | None = None) -> None:
        """`on_start`: called on the thread before anything else; settings of a thread are its own."""
        self._pool = ThreadPoolExecutor(1, name, on_start or (lambda: None))

    async def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns. A call under way cannot be cut off: cancelled, this waits for its end."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def close(self) -> None:
        """End the thread once its calls have ended; do not wait."""
        self._pool.shutdown(wait=False)


_JOIN = 10.0
"""Seconds that `close` waits for what is cancelled then."""
_CLEAN_UP = 60.0
"""Seconds after which the thread gives up on tasks that resist their cancellation."""


class EventLoopThread:
    """An event loop on a daemon thread. The thread ends with `close`, or when the object is forgotten."""

    def __init__(self, name: str = "uirl-loop") -> None:
        self._loop = asyncio.new_event_loop()
        self._calls = 0
        self._counting = threading.Lock()
        # The thread knows the loop alone, so that an object that nobody holds can be collected.
        self._thread = threading.Thread(target=_serve, args=(self._loop,), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, _stop, self._loop).atexit = False

    def run(
        self, coroutine: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] | None = None, alone: bool = False
    ) -> T:
        """Return what the coroutine returns. Ctrl-C cancels it, waits for its clean-up, and is raised here; a second
        Ctrl-C does not wait.

        `on_interrupt`: called in the loop's thread instead of the cancelling, for a coroutine that ends by itself when
        it is asked to. What it raises then is raised here in place of the interrupt. `alone`: refuse while another call
        is under way. Raises ContractError then, and on the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise ContractError(
                "a call waits for its own event loop; code that is awaited awaits the asynchronous method instead "
                "(of tools: await ToolRegistry.call)"
            )
        self._check_open(coroutine)
        with self._counting:
            if alone and self._calls:
                coroutine.close()
                raise ContractError("this was called while another call is under way; wait for that")
            self._calls += 1
        running: list[asyncio.Task[Any] | None] = []
        failures: list[Exception] = []
        ended = threading.Event()

        def end() -> None:
            with self._counting:
                self._calls -= 1
            ended.set()

        async def whole() -> T:
            running.append(asyncio.current_task())
            try:
                return await coroutine
            except Exception as error:
                failures.append(error)
                raise
            finally:
                end()

        def stop() -> None:
            if not running:  # the interrupt came before it was on its way
                coroutine.close()
                end()
            elif on_interrupt is not None:
                on_interrupt()
            else:
                for task in running:
                    assert task is not None
                    task.cancel()

        give_back_team()
        try:
            future = asyncio.run_coroutine_threadsafe(whole(), self._loop)
            while not wait([future], _HEARS_SIGNALS).done:
                pass
            return future.result()
        except KeyboardInterrupt:
            # a hop further than the first step of what may be on its way
            self._loop.call_soon_threadsafe(self._loop.call_soon, stop)
            while not ended.wait(_HEARS_SIGNALS):  # an update under way is finished first: nothing can cut it off
                pass
            if on_interrupt is not None and failures:
                raise failures[0] from None
            raise

    @property
    def busy(self) -> bool:
        """Whether something still runs: a caller that was interrupted twice did not wait for it."""
        return self._calls > 0

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the coroutine on the loop; the future is safe to wait for on any other thread."""
        self._check_open(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def hand_over(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns, to a caller on another loop, which goes on meanwhile. Cancelling the
        caller cancels it."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def close_after(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run `coroutine`, then stop the loop, and wait for neither: for finalizers, which may run on any thread, this
        loop's own included. What the coroutine raises is lost."""
        if not self._thread.is_alive():
            coroutine.close()
            return
        ended = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        ended.add_done_callback(lambda _: _stop(self._loop))  # holds `self`: a loop that is forgotten stops at once

    def close(self) -> None:
        """End the loop and its thread. What still runs on it is cancelled. A second call does nothing."""
        _stop(self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=_JOIN)

    def _check_open(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the event loop is closed; make a new trainer or engine")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        _run_on(loop)
        # what still waits (a browser's socket, an engine's worker) ends in order, not with the interpreter
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            ended = asyncio.gather(*tasks, return_exceptions=True)
            loop.run_until_complete(asyncio.wait([ended], timeout=_CLEAN_UP))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _run_on(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. SystemExit or KeyboardInterrupt of a task is for whoever waits for that task:
    it must not end the loop, whose other callers would wait for ever."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(loop.stop)


@contextlib.contextmanager
def stops_as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (the terminal is closed) raise KeyboardInterrupt, as Ctrl-C does.

    Does nothing outside the main thread, and leaves a signal that somebody else handles or ignores, as `nohup` does.
    """
    with _handled(("SIGTERM", "SIGHUP"), signal.SIG_DFL, signal.default_int_handler):
        yield


@contextlib.contextmanager
def ctrl_c_heard() -> Iterator[None]:
    """Raise a KeyboardInterrupt that came inside, also where what runs there swallowed it, or failed over it: some
    packages do while they are imported. For code of the main thread that runs no event loop there."""
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    with _handled(("SIGINT", "SIGTERM", "SIGHUP"), signal.default_int_handler, hear):
        try:
            yield
        except Exception as error:
            if heard:
                raise KeyboardInterrupt from error
            raise
    if heard:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handled(names: Sequence[str], before: Any, handler: Any) -> Iterator[None]:
    """Handle the signals whose handler is `before`, in the main thread; give it back at the end."""
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows has no SIGHUP
    ours = [number for number in numbers if signal.getsignal(number) is before]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before)
