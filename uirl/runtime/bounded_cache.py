"""A least-recently-used cache that is bounded by bytes, not by entries: prompts differ a thousandfold in length."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """Values by key, the most recently used within `max_bytes`. Threads may share it.

    A value of more than an eighth of `max_bytes` is not kept: it would push out many that come again. With
    `keeps_newest` it is, and the newest always, whatever it takes.
    """

    def __init__(self, max_bytes: int, *, keeps_newest: bool = False) -> None:
        self.max_bytes, self.held = max_bytes, 0
        self._keeps_newest = keeps_newest
        self._entries: OrderedDict[Hashable, tuple[T, int, float]] = OrderedDict()
        """With its bytes and the time at which it was last used, the oldest first."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the value of `key`, from `make` where it is not kept. `size`: bytes of key and value."""
        kept = self.find(key)
        if kept is not None:
            return kept
        value = make()
        self.put(key, value, size(value))
        return value

    def find(self, key: Hashable) -> T | None:
        """Return the value of `key`; None where it is not kept."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries[key] = (*entry[:2], time.time())
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: T, size: int) -> None:
        """Keep the value of `key`, which takes `size` bytes, if that is not too much."""
        if self._keeps_newest or size * 8 <= self.max_bytes:
            with self._lock:
                self._put(key, value, size)

    def keep_at_most(self, max_bytes: int) -> None:
        """Keep so many bytes from now on."""
        with self._lock:
            self.max_bytes = max_bytes
            self._shrink()

    def forget_before(self, moment: float) -> None:
        """Drop what was not used since `moment`, in seconds since 1970."""
        with self._lock:
            while self._entries and next(iter(self._entries.values()))[2] < moment:
                self._drop()

    def _put(self, key: Hashable, value: T, count: int) -> None:
        old = self._entries.pop(key, None)
        self.held += count - (old[1] if old is not None else 0)
        self._entries[key] = (value, count, time.time())
        self._shrink()

    def _shrink(self) -> None:
        while self.held > self.max_bytes and len(self._entries) > 1:
            self._drop()

    def _drop(self) -> None:
        _, (_, freed, _) = self._entries.popitem(last=False)
        self.held -= freed
