"""How long work keeps the thread of an event loop: CPU time between two chances that others get.

The unit is the machine's own: the time it takes, just then, to read the JSON of 100 000 small objects. A slow or busy
machine is slow at both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pool
from dataclasses import dataclass
from typing import Any

import pytest

BOUND = 10.0
"""Units that one stretch on the event loop may take: some 0.4 s of CPU time."""
HARMLESS = 0.02
"""CPU seconds that are below the bound on any machine."""
UNIT = json.dumps([{"role": "user", "content": "text"}] * 100_000)
TRIES = 3
"""A stretch beyond the bound is measured again: page faults and a cold cache are not the input's doing."""
MEASURED: dict[str, float] = {}
"""Entry -> its longest stretch so far, in CPU seconds."""


@dataclass(slots=True)
class Stretches:
    """CPU seconds of the longest callback on the loop, and of the longest piece of work on a pool's thread."""

    loop: float = 0.0
    beside: float = 0.0


@contextlib.contextmanager
def watching() -> Iterator[Stretches]:
    """What runs on event loops and in thread pools while the context lasts, on whichever thread of this process."""
    seen = Stretches()

    def timed(run: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(item: Any) -> Any:
            started = time.thread_time()
            try:
                return run(item)
            finally:
                setattr(seen, name, max(getattr(seen, name), time.thread_time() - started))

        return wrapped

    handle, item = asyncio.events.Handle, pool._WorkItem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handle, "_run", timed(handle._run, "loop"))  # type: ignore[attr-defined]
        patch.setattr(item, "run", timed(item.run, "beside"))
        yield seen


def note(entry: str, seconds: float) -> None:
    """Keeps the longest stretch of an entry for the table."""
    MEASURED[entry] = max(MEASURED.get(entry, 0.0), seconds)


def units(seconds: float) -> float:
    """CPU seconds in units of this machine at this moment."""
    if seconds <= HARMLESS:
        return 0.0
    started = time.thread_time()
    json.loads(UNIT)
    return seconds / (time.thread_time() - started)


def call(entry: str, what: str, work: Callable[[], Any]) -> None:
    """Runs `work` as a callback would; it may refuse its input, and must not take longer than the bound."""
    best = float("inf")
    for _ in range(TRIES):
        started = time.thread_time()
        work()
        seconds = time.thread_time() - started
        note(entry, seconds)
        best = min(best, units(seconds))
        if best <= BOUND:
            return
    raise AssertionError(
        f"{entry} on {what} kept the thread for {best:.1f} units of CPU time; at most {BOUND:g} are meant"
    )


def table() -> str:
    """What was measured, longest first, as a table in Markdown."""
    rows = sorted(MEASURED.items(), key=lambda row: -row[1])
    return "\n".join(["", "| entry | longest stretch |", "|---|--:|", *(f"| {n} | {s:.3f} s |" for n, s in rows)])
