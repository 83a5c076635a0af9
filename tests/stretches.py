"""How long work keeps the thread of an event loop: CPU seconds between two chances that others get."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pool
from dataclasses import dataclass
from typing import Any

import pytest

BOUND = 0.2
"""CPU seconds that one stretch on the event loop may take."""
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


def call(entry: str, what: str, work: Callable[[], Any], bound: float = BOUND) -> None:
    """Runs `work` as a callback would; it may refuse its input, and must not take longer than `bound`."""
    best = float("inf")
    for _ in range(TRIES):
        started = time.thread_time()
        work()
        best = min(best, time.thread_time() - started)
        if best <= bound:
            break
    note(entry, best)
    assert best <= bound, f"{entry} on {what} kept the thread for {best:.2f} s of CPU; at most {bound:g} s are meant"


def table() -> str:
    """What was measured, longest first, as a table in Markdown."""
    rows = sorted(MEASURED.items(), key=lambda row: -row[1])
    return "\n".join(["", "| entry | longest stretch |", "|---|--:|", *(f"| {n} | {s:.3f} s |" for n, s in rows)])
