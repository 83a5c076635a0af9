"""How many pages this machine can hold at the same time."""

from __future__ import annotations

import os
from pathlib import Path

PAGES_PER_CORE = 8
"""More pages than this wait for the processor, not for the policy."""
PAGE_BYTES = 100 << 20
"""Memory of a page without its pixels, with its share of the browser: from 25 MB to 100 MB for a heavy one."""
BYTES_PER_PIXEL = 40
"""Layers, tiles and the screenshot on its way out."""

_CGROUP = Path("/sys/fs/cgroup")


def pages_that_fit(width: int, height: int, zoom: float = 1.0) -> int:
    """Return how many pages of `width` x `height` CSS pixels, drawn at `zoom`, this machine can hold; at least 1.

    They share half of the memory that is free now and the cores that this process may use.
    """
    page = PAGE_BYTES + round(width * height * zoom * zoom) * BYTES_PER_PIXEL
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = free_memory()
    by_memory = PAGES_PER_CORE * cores if memory is None else memory // 2 // page
    return max(1, min(by_memory, PAGES_PER_CORE * cores))


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that this process can still take; None: the system does not say.

    The machine's, or its container's (cgroup v2) where that is less.
    """
    limits = [value for value in (_of_machine(meminfo), _of_container(cgroup)) if value is not None]
    return min(limits, default=None)


def _of_machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _of_container(cgroup: Path) -> int | None:
    try:
        limit = int((cgroup / "memory.max").read_text())  # 'max' where there is none
        return max(0, limit - int((cgroup / "memory.current").read_text()))
    except (OSError, ValueError):
        return None
