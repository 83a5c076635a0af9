"""Plain code that calls coroutines, interrupted by a real signal."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from uirl.errors import ContractError
from uirl.runtime.event_loop import EventLoopThread, ctrl_c_heard, stops_as_ctrl_c

PROGRAM = """
import asyncio, sys
sys.path.insert(0, {root!r})
from uirl.runtime.event_loop import EventLoopThread

async def work():
    try:
        print("up", flush=True)
        {work}
    finally:
        await asyncio.sleep(0.2)  # the environment's sessions are closed, say
        print("cleaned up", flush=True)

loop = EventLoopThread()
try:
    loop.run(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
loop.close()
"""
WAITS = "await asyncio.sleep(1000)"
COMPUTES = "import time; time.sleep(0.5); await asyncio.sleep(1000)"  # an update, which nothing can cut off


@pytest.mark.parametrize("on_its_way", [True, False])
def test_an_interrupt_between_two_lines(monkeypatch: pytest.MonkeyPatch, on_its_way: bool) -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("begun")
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.01)
            done.append("cleaned up")

    schedule = asyncio.run_coroutine_threadsafe

    def interrupted(coroutine: Any, loop: Any) -> Any:
        if on_its_way:
            schedule(coroutine, loop)
        else:
            coroutine.close()
        raise KeyboardInterrupt

    loop = EventLoopThread()
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert done == (["begun", "cleaned up"] if on_its_way else [])
    loop.close()


@pytest.mark.parametrize("work", [WAITS, COMPUTES])
def test_ctrl_c_waits_for_the_clean_up(work: str) -> None:
    code = PROGRAM.format(root=str(Path(__file__).parents[2]), work=work)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "cleaned up\ninterrupted\n"
    assert process.returncode == 0


def test_a_signal_that_another_thread_received_is_heard() -> None:
    loop, asked = EventLoopThread(), asyncio.Event()

    async def work() -> bool:
        signal.raise_signal(signal.SIGINT)  # for this thread
        async with asyncio.timeout(20):
            return await asked.wait()

    with pytest.raises(KeyboardInterrupt):
        loop.run(work(), on_interrupt=asked.set)
    loop.close()


def test_a_coroutine_that_ends_when_asked_is_waited_for_and_a_second_ctrl_c_does_not_wait() -> None:
    loop, asked, saved = EventLoopThread(), asyncio.Event(), []

    async def saves() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asked.wait()
        await asyncio.sleep(0.01)
        saved.append("whole")

    with pytest.raises(KeyboardInterrupt):
        loop.run(saves(), on_interrupt=asked.set)
    assert saved == ["whole"]
    assert not loop.busy

    async def fails() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asked.wait()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        loop.run(fails(), on_interrupt=asked.set)

    again = asyncio.Event()

    async def goes_on() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await again.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1000)

    with pytest.raises(KeyboardInterrupt):
        loop.run(goes_on(), on_interrupt=again.set)
    assert loop.busy
    loop.close()


def test_a_call_from_the_loops_own_thread_is_refused_and_one_after_the_end_too() -> None:
    loop = EventLoopThread("test-loop")

    async def name() -> str:
        return threading.current_thread().name

    async def waits_for_itself() -> str:
        return loop.run(name())

    assert loop.submit(name()).result() == "test-loop"
    assert asyncio.run(loop.hand_over(name())) == "test-loop"
    with pytest.raises(ContractError, match="waits for its own event loop"):
        loop.run(waits_for_itself())
    loop.close()
    loop.close()
    for call in (loop.run, loop.submit):
        with pytest.raises(RuntimeError, match="the event loop is closed"):
            call(name())


def test_closing_waits_for_the_clean_up_of_what_still_runs() -> None:
    loop, ended = EventLoopThread(), []
    begun = threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    loop.submit(work())
    assert begun.wait(20)
    loop.close()
    assert ended == ["cleaned up"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_other_stops_are_ctrl_c_and_somebody_elses_handler_stays(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)  # the tests themselves may have been started by nohup
    with pytest.raises(KeyboardInterrupt), stops_as_ctrl_c():
        signal.raise_signal(number)
    assert signal.getsignal(number) is signal.SIG_DFL
    seen: list[int] = []
    signal.signal(number, lambda number, frame: seen.append(number))
    try:
        with stops_as_ctrl_c():
            signal.raise_signal(number)
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        with stops_as_ctrl_c():
            signal.raise_signal(number)
    finally:
        signal.signal(number, signal.SIG_DFL)
    assert seen == [number]


def test_a_ctrl_c_that_is_swallowed_is_raised_all_the_same() -> None:
    def swallow(error: type[Exception] | None) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if error is not None:
                raise error("cannot import name 'dispatch' from partially initialized module 'big'") from None

    for error in (None, ImportError):
        with pytest.raises(KeyboardInterrupt), ctrl_c_heard():
            swallow(error)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ImportError), ctrl_c_heard():
        raise ImportError("no such module")


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_exits_ends_its_caller_and_no_other(kind: type[BaseException]) -> None:
    loop = EventLoopThread()

    async def leave() -> None:
        raise kind(3)

    async def wait_for(task: asyncio.Task[None]) -> None:
        await task

    async def start() -> None:
        await wait_for(asyncio.ensure_future(leave()))

    async def answer() -> int:
        await asyncio.sleep(0.01)
        return 7

    other = loop.submit(answer())
    for work in (leave, start):
        with pytest.raises(kind):
            loop.submit(work()).result(60)
    assert other.result(60) == 7
    assert loop.submit(answer()).result(60) == 7
    loop.close()
