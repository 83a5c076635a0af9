"""How many pages this machine can hold at the same time."""

from __future__ import annotations

import os

from uirl.runtime.memory import free_memory

PAGES_PER_CORE = 8
"""More pages than this wait for the processor, not for the policy."""
PAGE_BYTES = 100 << 20
"""Memory of a page without its pixels, with its share of the browser: from 25 MB to 100 MB for a heavy one."""
BYTES_PER_PIXEL = 40
"""Layers, tiles and the screenshot on its way out."""


def pages_that_fit(width: int, height: int, zoom: float = 1.0) -> int:
    """Return how many pages of `width` x `height` CSS pixels, drawn at `zoom`, this machine can hold; at least 1.

    They share half of the memory that is free now and the cores that this process may use.
    """
    page = PAGE_BYTES + round(width * height * zoom * zoom) * BYTES_PER_PIXEL
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = free_memory()
    by_memory = PAGES_PER_CORE * cores if memory is None else memory // 2 // page
    return max(1, min(by_memory, PAGES_PER_CORE * cores))
