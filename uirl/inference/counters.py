"""What an engine counts between two looks at it. Imports no torch."""

from __future__ import annotations


class Counters:
    """Numbers by name that add up until they are taken."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """Add `value` to the number of that name."""
        self._values[name] = self._values.get(name, 0.0) + value

    def take(self) -> dict[str, float]:
        """Return the numbers since the last call, and begin anew."""
        values, self._values = self._values, {}
        return values
