"""Tasks in one queue per place, of which any can be taken out in constant time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator


class Queues:
    """Each name is in one queue: new ones come last, and what is played goes to the end. So the first of a queue is the
    one that was not played for longest. Everything but the iteration takes constant time."""

    def __init__(self, places: Iterable[str]) -> None:
        self._queues: dict[str, OrderedDict[str, None]] = {place: OrderedDict() for place in places}
        self._place: dict[str, str] = {}

    def put(self, name: str, place: str, *, first: bool = False) -> None:
        """Move a name to the end of the queue of `place`, or to its beginning."""
        old = self._place.get(name)
        if old is not None and old != place:
            del self._queues[old][name]
        self._place[name] = place
        self._queues[place][name] = None
        self._queues[place].move_to_end(name, last=not first)

    def place_of(self, name: str) -> str:
        return self._place[name]

    def first(self, place: str) -> str | None:
        """Return the name that waits longest; None: the queue is empty."""
        return next(iter(self._queues[place]), None)

    def size(self, place: str) -> int:
        return len(self._queues[place])

    def names(self, place: str) -> Iterator[str]:
        """Return the names of a queue, the first one first."""
        return iter(self._queues[place])

    def __contains__(self, name: object) -> bool:
        return name in self._place

    def __len__(self) -> int:
        return len(self._place)
