"""A cache that forgets by bytes, not by entries: prompts differ a thousandfold in length."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """Values by key, the most recently used within `most_bytes`. Threads may share it.

    A value of more than an eighth of `most_bytes` is not kept: it would push out many that come again.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self.held = most_bytes, 0
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of `key`, from `make` where it is not kept. `size`: bytes of key and value."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found[0]
        value = make()
        count = size(value)
        if count * 8 <= self._most:
            with self._lock:
                self._put(key, value, count)
        return value

    def _put(self, key: Hashable, value: T, count: int) -> None:
        old = self._kept.pop(key, None)
        self.held += count - (old[1] if old is not None else 0)
        self._kept[key] = (value, count)
        while self.held > self._most:
            _, (_, freed) = self._kept.popitem(last=False)
            self.held -= freed
