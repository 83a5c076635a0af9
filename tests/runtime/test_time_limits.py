"""Calls of other people's code within their time, awaited and on a thread."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading

import pytest

from tests.patience import PATIENCE
from uirl.runtime.time_limits import Escaped, TimedOut, Worker, as_raised, awaited, contained, within

SPEAKER: contextvars.ContextVar[str] = contextvars.ContextVar("speaker", default="nobody")


async def test_calls_share_one_thread_and_see_their_callers_context() -> None:
    worker = Worker("test-worker")
    assert not worker.busy
    SPEAKER.set("the caller")
    seen = [await worker.run(lambda: (threading.current_thread().name, SPEAKER.get()), 20) for _ in range(2)]
    assert seen == [("test-worker", "the caller")] * 2
    assert not worker.busy
    worker.stop()


async def test_what_a_call_raises_is_raised_where_it_is_awaited() -> None:
    worker = Worker("test-worker")
    for error in (ValueError("no"), TimeoutError("its own")):

        def fails(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await worker.run(fails, None)
        assert caught.value is error
    worker.stop()


ESCAPES = [SystemExit(3), KeyboardInterrupt(), GeneratorExit("left"), asyncio.CancelledError(), BaseException("own")]


@pytest.mark.parametrize("error", ESCAPES, ids=lambda error: type(error).__name__)
async def test_what_is_no_exception_does_not_escape(error: BaseException) -> None:
    """It would end the loop, or pass for a cancellation or for a person's Ctrl-C."""
    worker = Worker("test-worker")

    def fails() -> None:
        raise error

    async def fails_later() -> None:
        await asyncio.sleep(0)
        raise error

    with pytest.raises(Escaped, match=type(error).__name__) as caught:
        await worker.run(fails, None)
    assert as_raised(caught.value) is error
    worker.stop()
    if isinstance(error, KeyboardInterrupt):
        return  # in this thread, the main one, it may be a person's
    with pytest.raises(Escaped) as caught:
        contained(fails)
    assert as_raised(caught.value) is error
    with pytest.raises(Escaped) as caught:
        await within(fails_later(), None)
    assert type(as_raised(caught.value)) is type(error)


async def test_a_cancellation_that_was_asked_for_passes() -> None:
    for call in (within, lambda awaitable, _: awaited(awaitable)):
        task = asyncio.ensure_future(call(asyncio.sleep(20), None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_call_that_is_given_up_occupies_the_thread_until_it_returns() -> None:
    worker, free = Worker("test-worker"), threading.Event()
    with pytest.raises(TimedOut):
        await worker.run(lambda: free.wait(20), 0.02)
    assert worker.busy
    queued = asyncio.ensure_future(worker.run(lambda: "next", None))
    free.set()
    assert await queued == "next"
    assert not worker.busy
    worker.stop()


async def test_a_forgotten_worker_ends_its_thread() -> None:
    worker = Worker("test-forgotten")
    thread = await worker.run(threading.current_thread, None)
    del worker
    gc.collect()
    thread.join(timeout=PATIENCE)
    assert not thread.is_alive()


async def test_an_awaitable_that_resists_its_cancellation_is_not_waited_for() -> None:
    free, ended = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        try:
            await free.wait()
        except asyncio.CancelledError:
            await free.wait()
        ended.set()

    with pytest.raises(TimedOut):
        await within(stubborn(), 0.02)
    assert not ended.is_set()
    free.set()
    await ended.wait()
    assert await within(asyncio.sleep(0, "in time"), None) == "in time"


async def test_a_call_that_is_given_up_before_it_began_is_closed() -> None:
    async def call() -> None: ...

    coroutine = call()
    waiting = within(coroutine, 1.0)
    waiting.send(None)  # as far as its first wait: nothing of the call has run
    waiting.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
