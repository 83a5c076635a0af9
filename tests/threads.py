"""Threads that a piece of code may leave behind."""

from __future__ import annotations

import threading
from collections.abc import Set

from tests.patience import PATIENCE


def left_since(before: Set[threading.Thread]) -> set[threading.Thread]:
    """Those begun since `before` that do not end by themselves. One that is on its way out, such as asyncio's that
    waits for a dead child, gets the time for it."""
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(timeout=PATIENCE)
    return {thread for thread in new if thread.is_alive()}
