"""The end of a process in words: who was killed without a word is told to look at the memory, whoever started it."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace
from typing import Any

from uirl.workers.children import Child, Children, how_it_ended
from uirl.workers.ray import Place, RayProcess

MEMORY = "it was killed by SIGKILL, as the system does where memory runs out"


def test_ends_in_words() -> None:
    assert how_it_ended(-9) == how_it_ended(137) == f"{MEMORY} (`dmesg` tells)"
    assert how_it_ended(-15) == how_it_ended(143) == "it was killed by SIGTERM"
    assert how_it_ended(0) == "it ended with status 0"
    assert how_it_ended(200) == "it ended with status 200"


async def test_a_child_that_was_killed() -> None:
    children = Children(lambda name, line: None)
    ours, theirs = socket.socketpair()
    with theirs:
        child = children._children[7] = Child("actor-0", lambda name, line: None)
        os.close(child.output.end)
        theirs.sendall(b'{"ended": 7, "status": 137}\n')
        theirs.shutdown(socket.SHUT_WR)
        await children._hear(ours, asyncio.get_running_loop().create_future())
        assert MEMORY in await child.ended()


async def test_a_worker_under_ray_that_was_killed() -> None:
    async def begin(*_: Any) -> None: ...

    async def wait() -> tuple[str, str]:
        return how_it_ended(137), ""

    handle = SimpleNamespace(begin=SimpleNamespace(remote=begin), wait=SimpleNamespace(remote=wait))
    assert MEMORY in await RayProcess(handle, Place("host", 7, "node"), "actor-0", "a:B", inside=False).ended()
