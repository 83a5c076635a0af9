"""The house of the small adventure: rooms on a grid, doors between them, things in them; drawn from a generator."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

DIRECTIONS: Mapping[str, tuple[int, int]] = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
ROOM_NAMES = (
    "hall", "kitchen", "library", "cellar", "attic", "garden", "workshop", "bedroom", "pantry", "study", "tower",
    "chapel",
)  # fmt: skip
CLUTTER = ("lamp", "rope", "apple", "coin", "cup")
LOOP_CHANCE = 0.3


@dataclass(frozen=True, slots=True)
class House:
    """Rooms by index; an episode starts in room 0. The vault has one door, which is locked, and holds the chest."""

    names: tuple[str, ...]
    exits: tuple[Mapping[str, int], ...]
    """Per room: direction -> room behind that door, the locked door included."""
    vault: int
    key_room: int
    clutter: Mapping[str, int]
    """Things of no use -> the room they lie in."""

    def way(self, start: int, goal: int, *, unlocked: bool) -> str | None:
        """Return the direction of the first step on a shortest way; None: already there, or no way."""
        first: dict[int, str | None] = {start: None}
        queue = deque([start])
        while queue:
            room = queue.popleft()
            if room == goal:
                return first[room]
            for direction, behind in self.exits[room].items():
                if behind not in first and (unlocked or behind != self.vault):
                    first[behind] = first[room] or direction
                    queue.append(behind)
        return None

    @property
    def door_room(self) -> int:
        """The room from which the locked door leads to the vault."""
        return next(iter(self.exits[self.vault].values()))


def build_house(rng: random.Random, rooms: int) -> House:
    """Build a house of `rooms` (3 to 12) rooms: every room can be reached, the vault only through its locked door."""
    places = {(0, 0): 0}
    exits: list[dict[str, int]] = [{}]
    for room in range(1, rooms):
        x, y, direction = rng.choice(_free_walls(places))
        place = _behind(x, y, direction)
        exits.append({})
        _connect(exits, places[x, y], direction, room)
        if room < rooms - 1:
            sides = {d: _behind(*place, d) for d in DIRECTIONS}
            _add_loops(rng, exits, {d: places[side] for d, side in sides.items() if side in places}, room)
        places[place] = room
    vault = rooms - 1
    return House(
        names=tuple(rng.sample(ROOM_NAMES, rooms)),
        exits=tuple({d: doors[d] for d in DIRECTIONS if d in doors} for doors in exits),
        vault=vault,
        key_room=rng.randrange(1, vault),
        clutter={thing: rng.randrange(vault) for thing in rng.sample(CLUTTER, 2)},
    )


def _free_walls(places: Mapping[tuple[int, int], int]) -> list[tuple[int, int, str]]:
    return [(x, y, d) for x, y in places for d in DIRECTIONS if _behind(x, y, d) not in places]


def _behind(x: int, y: int, direction: str) -> tuple[int, int]:
    dx, dy = DIRECTIONS[direction]
    return x + dx, y + dy


def _connect(exits: list[dict[str, int]], room: int, direction: str, behind: int) -> None:
    exits[room][direction] = behind
    exits[behind][OPPOSITE[direction]] = room


def _add_loops(rng: random.Random, exits: list[dict[str, int]], neighbours: Mapping[str, int], room: int) -> None:
    """Open some of the walls between a room and its `neighbours` (direction -> room)."""
    for direction in DIRECTIONS:
        neighbour = neighbours.get(direction)
        if neighbour is not None and direction not in exits[room] and rng.random() < LOOP_CHANCE:
            _connect(exits, room, direction, neighbour)
