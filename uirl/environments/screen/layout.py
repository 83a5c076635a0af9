"""Where things stand on the screen: boxes in a grid of slots, moved a little at random."""

from __future__ import annotations

import random
from dataclasses import dataclass

BASE_SIZE = 56
"""The size, in pixels, whose geometry the proportions below give: slots of 28, bars of 4, buttons of 24 x 20."""
BUTTON_WIDTH, BUTTON_HEIGHT = 24 / 28, 20 / 28
"""Of a slot."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels."""

    left: int
    top: int
    width: int
    height: int

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x < self.left + self.width and self.top <= y < self.top + self.height

    @property
    def centre(self) -> tuple[int, int]:
        return self.left + self.width // 2, self.top + self.height // 2


def bar_width(size: int) -> int:
    """Return the thickness in pixels of the title bar at the top and of the side bar at the left."""
    return size * 4 // BASE_SIZE


@dataclass(frozen=True, slots=True)
class Grid:
    """`slots` x `slots` places on a square screen of `size` pixels."""

    size: int
    slots: int
    jitter: int
    """How far a box moves from the middle of its slot, at most, in pixels of a screen of `BASE_SIZE`."""

    def place(self, rng: random.Random, slot: int) -> Box:
        """Return a button-sized box in the slot, moved at random and never out of it."""
        edge = self.size // self.slots
        width, height = round(edge * BUTTON_WIDTH), round(edge * BUTTON_HEIGHT)
        row, column = divmod(slot, self.slots)
        return Box(
            column * edge + self._offset(rng, edge - width),
            row * edge + self._offset(rng, edge - height),
            width,
            height,
        )

    def scatter(self, rng: random.Random, count: int) -> list[Box]:
        """Return boxes in `count` different slots, in random order."""
        return [self.place(rng, slot) for slot in rng.sample(range(self.slots**2), count)]

    def _offset(self, rng: random.Random, free: int) -> int:
        middle = free // 2
        reach = min(middle, round(self.jitter * self.size / BASE_SIZE))
        return middle + rng.randint(-reach, reach)
