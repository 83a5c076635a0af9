"""Plain code that calls coroutines, interrupted by a real signal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys
sys.path.insert(0, {root!r})
from uirl.event_loop import EventLoopThread

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


@pytest.mark.parametrize("work", [WAITS, COMPUTES])
def test_ctrl_c_waits_for_the_clean_up(work: str) -> None:
    code = PROGRAM.format(root=str(Path(__file__).parents[1]), work=work)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "cleaned up\ninterrupted\n"
    assert process.returncode == 0
