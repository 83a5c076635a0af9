"""The end of a process in words: who was killed without a word is told to look at the memory, whoever started it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from types import SimpleNamespace
from typing import Any

from tests.patience import PATIENCE
from uirl.inference.processes.life import ChildProcess
from uirl.peers.way import Place
from uirl.runtime.endings import how_it_ended
from uirl.training.actors.launch_processes import ForkedActor, ForkLauncher
from uirl.training.actors.launch_ray import RayActor

MEMORY = "it was killed by SIGKILL, as the system does where memory runs out"


def test_ends_in_words() -> None:
    assert how_it_ended(-9) == how_it_ended(137) == f"{MEMORY} (`dmesg` tells)"
    assert how_it_ended(-15) == how_it_ended(143) == "it was killed by SIGTERM"
    assert how_it_ended(0) == "it ended with status 0"
    assert how_it_ended(200) == "it ended with status 200"


async def test_an_engine_process_that_was_killed() -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
    unused: Any = None
    assert MEMORY in await ChildProcess(process, unused).end()


async def test_an_engine_process_that_we_end_has_memory() -> None:
    unused: Any = None
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    assert await ChildProcess(process, unused).end() == "it did not end by itself and was killed"


async def test_an_actor_that_was_killed() -> None:
    launcher = ForkLauncher(lambda name, line: None)
    ours, theirs = socket.socketpair()
    with theirs:
        actor = launcher._actors[7] = ForkedActor("actor-0", lambda name, line: None)
        theirs.sendall(b'{"ended": 7, "status": 137}\n')
        theirs.shutdown(socket.SHUT_WR)
        await launcher._hear(ours, asyncio.get_running_loop().create_future())
        assert MEMORY in await actor.ended()


async def test_an_actor_under_ray_that_was_killed() -> None:
    async def work(way: Any, made: bytes | None) -> tuple[int, str]:
        return 137, ""

    handle, unused = SimpleNamespace(work=SimpleNamespace(remote=work)), Any
    way: Any = unused
    assert MEMORY in await RayActor(handle, way, None, Place("Ray process 7", "host")).ended()
