"""One event loop for the life of a trainer or an engine, on a thread of its own.

Environments and engines hold sockets and tasks that belong to a loop, while `fit`, `generate` and the rest are plain
calls, also in a notebook whose own loop is running.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopThread:
    """Runs coroutines for callers that are not coroutines."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._calls = 0
        self._thread = threading.Thread(target=self._serve, name="uirl-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] | None = None) -> T:
        """What the coroutine returns. Ctrl-C cancels it, waits for its clean-up, and is raised here; a second Ctrl-C
        does not wait.

        `on_interrupt`: called in the loop's thread instead of the cancelling, for a coroutine that ends by itself when
        it is asked to. What it raises then is raised here in place of the interrupt.
        """
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the event loop is closed; make a new trainer or engine")
        running: list[asyncio.Task[Any] | None] = []
        failures: list[Exception] = []
        ended = threading.Event()

        async def whole() -> T:
            running.append(asyncio.current_task())
            self._calls += 1
            try:
                return await coroutine
            except Exception as error:
                failures.append(error)
                raise
            finally:
                self._calls -= 1
                ended.set()

        def stop() -> None:
            if not running:  # the interrupt came before it was on its way
                coroutine.close()
                ended.set()
            elif on_interrupt is not None:
                on_interrupt()
            else:
                for task in running:
                    assert task is not None
                    task.cancel()

        try:
            return asyncio.run_coroutine_threadsafe(whole(), self._loop).result()
        except KeyboardInterrupt:
            # a hop further than the first step of what may be on its way
            self._loop.call_soon_threadsafe(self._loop.call_soon, stop)
            ended.wait()  # an update under way is finished first: nothing can cut it off
            if on_interrupt is not None and failures:
                raise failures[0] from None
            raise

    @property
    def busy(self) -> bool:
        """Whether something still runs: a caller that was interrupted twice did not wait for it."""
        return self._calls > 0

    async def hand_over(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, for a caller on another loop, which goes on meanwhile. Cancelling the caller
        cancels it."""
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the event loop is closed; make a new trainer or engine")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def close_after(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run `coroutine`, then stop the loop, and wait for neither: for finalizers, which may run on any thread, this
        loop's own included. What the coroutine raises is lost."""
        if not self._thread.is_alive():
            coroutine.close()
            return
        ended = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))

    def close(self) -> None:
        """Stops the loop. Calling it twice is fine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=10)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # what still waits (a browser's socket, an engine's worker) ends in order, not with the interpreter
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


@contextlib.contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """A context in which SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    Does nothing outside the main thread, and where somebody else already handles the signal.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
