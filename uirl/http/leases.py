"""The sessions of a server: opened within a limit, found by a secret id, over when nobody uses them any more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

REMEMBERED = 1000
"""Sessions that are over and of which it is still known why."""

L = TypeVar("L")


class Leases(Generic[L]):
    """The sessions of one server, oldest first. Use it on one event loop."""

    def __init__(self, capacity: int, why_overdue: Callable[[L], str | None]) -> None:
        """`capacity`: sessions at a time. `why_overdue`: why a session ends now, without its client; None: it does
        not."""
        self.capacity, self._why_overdue = capacity, why_overdue
        self._active: dict[str, L] = {}
        self._over: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._active)

    def __iter__(self) -> Iterator[L]:
        return iter(list(self._active.values()))  # they may end meanwhile

    @property
    def full(self) -> bool:
        """Whether there is no place for another one."""
        return len(self._active) >= self.capacity

    def add(self, id: str, lease: L) -> L:
        """Take in a session; `id`: long and random, for whoever knows it may use the session."""
        self._active[id] = lease
        return lease

    def get(self, id: str) -> L | None:
        """Return the session of that id; None: it is over, or never was."""
        return self._active.get(id)

    def end(self, id: str, why: str) -> None:
        """Forget a session but for the reason. Twice is fine."""
        if self._active.pop(id, None) is not None:
            self._over[id] = why
            while len(self._over) > REMEMBERED:
                self._over.popitem(last=False)

    def why_over(self, id: str) -> str | None:
        """Return why the session of that id is over, or about to be; None: it is open, or unknown."""
        lease = self._active.get(id)
        return self._over.get(id) if lease is None else self._why_overdue(lease)

    def overdue(self) -> list[tuple[L, str]]:
        """Return the sessions that nobody uses any more, with the reasons."""
        return [(lease, why) for lease in self if (why := self._why_overdue(lease)) is not None]
