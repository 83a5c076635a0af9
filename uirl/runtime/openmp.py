"""Torch's helper threads on a CPU, of which OpenMP gives every Python thread that computes a team of its own.

Between two operations a team waits awake, for they follow each other within microseconds. But where all teams of a
process together have more threads than the machine has cores, GNU's OpenMP puts every team to sleep, also those whose
owner computes nothing, and each operation wakes its helpers anew: some 70 us, so that two threads were slower than one.
A thread that begins to wait for another one therefore gives its team back.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_SOFT = 1
"""omp_pause_soft (OpenMP 5.0, 3.2.44): threads go, what was set stays."""


def give_back_team() -> None:
    """End the helper threads of the calling thread, which must be outside of an operation. Its next operation makes
    them again. Nothing happens where torch is not loaded whole, or has another OpenMP than GNU's on Linux.

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
