"""A thread that waits for another one keeps no helper threads of torch, which would put those of the other to sleep."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys, time
from uirl.runtime.event_loop import EventLoopThread

async def nothing():
    return 1

loop = EventLoopThread()
loop.run(nothing())  # without torch

import torch
torch.set_num_threads(3)
helpers = lambda: len(os.listdir("/proc/self/task"))
before = helpers()
numbers = torch.ones(1000, 1000)
assert (numbers @ numbers).sum() == 1e9
assert helpers() == before + 2, (helpers(), before)

async def compute():
    assert (numbers @ numbers).sum() == 1e9
    return torch.get_num_threads()

def expect(count):
    for _ in range(500):  # a thread that ends is there for a moment more
        if helpers() == count:
            return
        time.sleep(0.01)
    sys.exit(f"{helpers()} threads, expected {count}")

loop.run(nothing())
expect(before)
assert loop.run(compute()) == 3
expect(before + 2)  # those of the loop
assert (numbers @ numbers).sum() == 1e9
expect(before + 4)
loop.run(nothing())
expect(before + 2)
loop.close()
expect(before - 1)
"""


def test_the_caller_of_a_loop_has_no_helper_threads_meanwhile() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


FORK = """
import os, signal, sys
import torch
from uirl.runtime.event_loop import EventLoopThread

async def nothing():
    return 1

torch.set_num_threads(2)
torch.ones(500, 500).exp()
if (child := os.fork()) == 0:
    signal.alarm(20)
    EventLoopThread().run(nothing())
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def test_a_forked_child_waits_for_no_helper_threads_of_its_parent() -> None:
    assert subprocess.run([sys.executable, "-c", FORK], check=False).returncode == 0
