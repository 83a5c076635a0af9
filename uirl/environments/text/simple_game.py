"""A small text adventure: find the key, open the door, open the chest, take the treasure."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from uirl.config.section import Count
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, OptionsLike

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


REWARDS = {"key": 0.2, "door": 0.2, "chest": 0.2, "treasure": 0.4}
"""Paid once each; together 1."""

_VERBS = {
    "go": "go walk move run",
    "take": "take get grab pick",
    "open": "open unlock",
    "look": "look l examine",
    "inventory": "inventory inv i",
    "help": "help",
}
_VERB_OF = {word: verb for verb, words in _VERBS.items() for word in words.split()}
_FILLERS = frozenset(["the", "a", "an", "to", "up", "at", "around", "my", "through", "please"])
_HELP = "Commands: go north, take key, open door, open chest, look, inventory."


class SimpleGameOptions(EnvironmentOptions):
    """A small text adventure. No house needs more than `2 * rooms + 3` turns."""

    key = "simple_game"

    rooms: int = Field(5, ge=3, le=len(ROOM_NAMES))
    """Rooms of the house: start, key and vault at least."""
    max_turns: Count = 30
    """Turns after which the episode is truncated."""


class SimpleGameEnvironment(ConfigurableEnvironment):
    """A house drawn from the seed, played in commands like "go north" or "take key".

    Unknown words are answered with help, and cost a turn. The treasure ends the episode as a success; after
    `max_turns` turns it is truncated.
    """

    runs_inline = True

    options_class = SimpleGameOptions
    options: SimpleGameOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Build a house to play in. Options: see `SimpleGameOptions`."""
        super().__init__(config, options, **keys)
        self.max_turns = self.options.max_turns
        self._begin(random.Random(0))

    def reset(self, *, seed: int | None = None) -> str:
        """Return the goal and the first room. `seed` None draws a new house."""
        self._begin(random.Random(seed))
        return f"Find the treasure. {self.get_state_description()}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Return the answer to one command. The game is over with the treasure, or when the turns are used up."""
        self._turns += 1
        paid = len(self._paid)
        answer = self._obey(action)
        reward = REWARDS[self._paid[-1]] if len(self._paid) > paid else 0.0
        success = "treasure" in self._paid
        done = success or self._turns >= self.options.max_turns
        return answer, reward, done, {"success": success, "progress": len(self._paid) / len(REWARDS)}

    def get_state_description(self) -> str:
        """Return the room as the player sees it."""
        doors = [d + (" (locked door)" if self._locked(d) else "") for d in self._house.exits[self._room]]
        things = self._things_here()
        seen = f" You see: {', '.join(things)}." if things else ""
        return f"You are in the {self._house.names[self._room]}. Exits: {', '.join(doors)}.{seen}"

    def get_prompt_prefix(self) -> str:
        return f"You play a text adventure. Answer with one command. {_HELP}"

    def expert_action(self) -> str:
        """Return the next command on a shortest way to the treasure."""
        house = self._house
        if "key" not in self._paid:
            way = house.way(self._room, house.key_room, unlocked=False)
            return f"go {way}" if way else "take key"
        if "door" not in self._paid:
            way = house.way(self._room, house.door_room, unlocked=False)
            return f"go {way}" if way else "open door"
        way = house.way(self._room, house.vault, unlocked=True)
        if way:
            return f"go {way}"
        return "take treasure" if "chest" in self._paid else "open chest"

    def state_key(self) -> str:
        """Return where the player is, what was opened and what he carries; an answer tells one of these."""
        return f"{self._room} {sorted(self._paid)} {sorted(self._bag)}"

    def _begin(self, rng: random.Random) -> None:
        self._house: House = build_house(rng, self.options.rooms)
        self._room = 0
        self._turns = 0
        # Milestones in the order in which they were reached: also the state of key, door, chest and treasure.
        self._paid: list[str] = []
        self._clutter = dict(self._house.clutter)
        self._bag: list[str] = []

    def _obey(self, command: str) -> str:
        words = [word for word in re.findall(r"[a-z]+", command.lower()) if word not in _FILLERS]
        if words and words[0] in DIRECTIONS:
            words = ["go", *words]
        verb = _VERB_OF.get(words[0]) if words else None
        thing = words[1] if len(words) > 1 else ""
        methods = {"go": self._go, "take": self._take, "open": self._open}
        if verb in methods:
            return methods[verb](thing)
        if verb == "look":
            return self.get_state_description()
        if verb == "inventory":
            return f"You carry: {', '.join(self._bag) or 'nothing'}."
        return _HELP if verb == "help" else f'I do not know "{command.strip()[:40]}". {_HELP}'

    def _go(self, direction: str) -> str:
        if direction not in self._house.exits[self._room]:
            return f"No exit there. {self.get_state_description()}"
        if self._locked(direction):
            return "The door is locked."
        self._room = self._house.exits[self._room][direction]
        return self.get_state_description()

    def _take(self, thing: str) -> str:
        if thing not in self._things_here() or thing == "chest":
            return f"You cannot take {thing or 'that'}." if thing == "chest" else f"No {thing or 'such thing'} here."
        if thing in self._clutter:
            del self._clutter[thing]
        else:
            self._paid.append(thing)
        self._bag.append(thing)
        return f"You take the {thing}."

    def _open(self, thing: str) -> str:
        if thing == "chest" and self._room == self._house.vault:
            if "chest" in self._paid:
                return "It is open."
            self._paid.append("chest")
            return "The chest opens. You see: treasure."
        if thing != "door" or self._room != self._house.door_room:
            return f"No {thing or 'such thing'} to open here."
        if "door" in self._paid:
            return "It is open."
        if "key" not in self._paid:
            return "You need a key."
        self._paid.append("door")
        return "The door opens."

    def _locked(self, direction: str) -> bool:
        return self._house.exits[self._room][direction] == self._house.vault and "door" not in self._paid

    def _things_here(self) -> list[str]:
        things = [thing for thing, room in self._clutter.items() if room == self._room]
        if self._room == self._house.key_room and "key" not in self._paid:
            things.append("key")
        if self._room == self._house.vault:
            things.append("chest")
            if "chest" in self._paid and "treasure" not in self._paid:
                things.append("treasure")
        return sorted(things)
