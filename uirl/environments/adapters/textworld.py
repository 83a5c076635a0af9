"""Generated games of TextWorld (1806.11532): rooms, doors, keys and things, and a quest.

The games are played by TextWorld's own logic, without its Z-machine, and told here in short sentences: what can be seen
in the room, and what is carried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from uirl.config.section import Count
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, MistakeReward, OptionsLike
from uirl.errors import ConfigError
from uirl.types import Observation, Task

QUIET = ("look", "inventory", "examine")
"""Commands that change nothing: what they would tell is seen in every turn."""
DIRECTIONS = ("north", "east", "south", "west")


class TextWorldOptions(EnvironmentOptions):
    """Generated games of TextWorld."""

    key = "textworld"

    rooms: Count = 3
    """Rooms of a game."""
    objects: Count = 6
    """Things in it."""
    quest_length: Count = 4
    """Commands that the shortest solution takes, at most."""
    only_goal: bool = False
    """Tell the last step of the quest alone; false: all of them, in order."""
    list_commands: bool = False
    """List the commands that are possible in every turn."""
    max_turns: Count = 30
    """Commands until the game is over, and not won."""
    mistake_reward: MistakeReward = 0.0
    """What a command that is not possible pays."""
    instructions: str = (
        "You play a text adventure. Reply with one command: go DIRECTION, open THING, close THING, take THING, take "
        "THING from THING, drop THING, put THING on THING, insert THING into THING, unlock THING with KEY, lock THING "
        "with KEY, eat THING."
    )
    """The system prompt; empty: none."""


class TextWorldEnvironment(ConfigurableEnvironment):
    """A quest in a few rooms: done is solved. A command that is not possible changes nothing."""

    runs_inline = False  # a game is made in seconds

    options_class = TextWorldOptions
    options: TextWorldOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Try the options. Options: see `TextWorldOptions`. Raises ConfigError for some of which no game can be made,
        and where the package is missing."""
        super().__init__(config, options, **keys)
        self.max_turns, self.mistake_reward = self.options.max_turns, self.options.mistake_reward
        try:
            self._begin(0)
        except ImportError as error:
            raise ConfigError(f"textworld: cannot import it ({error}); pip install textworld") from error
        except Exception as error:
            raise ConfigError(f"textworld: no game of {self.options.model_dump()}: {error}") from error

    def get_prompt_prefix(self) -> str:
        return self.options.instructions

    def reset(self, task: Task | None = None, *, seed: int | None = None) -> Observation:
        """Return the quest and the first room of the game that this seed makes."""
        self._begin(random.getrandbits(31) if seed is None else seed % 2**31)
        return Observation(f"{self._game.objective}\n\n{self._seen()}", state_key=self._state())

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Carry out a command."""
        chosen = self._chosen(action)
        if chosen is None:
            text = f"That is not possible.\n{self._seen()}"
            return text, self.options.mistake_reward, False, {"success": False, "mistake": "not possible"}
        self._progress.update(chosen)
        won, lost = bool(self._progress.completed), bool(self._progress.failed)
        return self._seen(), float(won), won or lost, {"success": won}

    def get_state_description(self) -> str:
        """Return what can be seen."""
        return self._seen()

    def state_key(self) -> str:
        return self._state()

    def expert_action(self) -> str | None:
        """Return the next command of TextWorld's own solution; None where the quest cannot be done any more."""
        policy = self._progress.winning_policy
        return self._commands(policy[:1])[0] if policy else None

    def _begin(self, seed: int) -> None:
        chosen = self.options
        self._game = _made(seed, chosen.rooms, chosen.objects, chosen.quest_length, chosen.only_goal)
        from textworld.generator.game import GameProgression
        from textworld.generator.inform7 import Inform7Game

        self._commands = Inform7Game(self._game).gen_commands_from_actions
        self._progress = GameProgression(self._game, track_quests=True)

    def _possible(self) -> dict[str, Any]:
        """Return command -> action, of those that change something."""
        actions = [one for one in self._progress.valid_actions if one.name.partition("/")[0] not in QUIET]
        return dict(zip(self._commands(actions), actions, strict=True))

    def _chosen(self, command: str) -> Any:
        """Return the action of a command, however it is spaced and capitalised; None: it is not possible."""
        words = " ".join(command.lower().split())
        return next((action for told, action in self._possible().items() if told.lower() == words), None)

    def _state(self) -> str:
        return "\n".join(sorted(map(str, self._progress.state.facts)))

    def _facts(self, name: str) -> Iterator[list[str]]:
        """Yield the names of what stands in each fact of this name, in order."""
        found = [[one.name for one in fact.arguments] for fact in self._progress.state.facts if fact.name == name]
        yield from sorted(found)

    def _called(self, thing: str) -> str:
        """Return the name of a thing, and whether it is open."""
        states = [state for state in ("open", "closed", "locked") if [thing] in self._facts(state)]
        return str(self._game.infos[thing].name) + (f" ({states[0]})" if states else "")

    def _holds(self, thing: str) -> str:
        """Return a thing with what can be seen in or on it."""
        inside = [a for a, b in self._facts("in") if b == thing and [thing] in self._facts("open")]
        inside += [a for a, b in self._facts("on") if b == thing]
        return self._called(thing) + (f" with {_listed(map(self._called, inside))}" if inside else "")

    def _seen(self) -> str:
        room = next(b for a, b in self._facts("at") if a == "P")
        things = [self._holds(a) for a, b in self._facts("at") if b == room and a != "P"]
        carried = [self._called(a) for a, b in self._facts("in") if b == "I"]
        exits = []
        for direction in DIRECTIONS:
            for there, here in self._facts(f"{direction}_of"):
                if here == room:
                    doors = [door for a, door, b in self._facts("link") if (a, b) == (room, there)]
                    exits.append(direction + (f" through the {self._called(doors[0])}" if doors else ""))
        lines = [f"You are in the {self._game.infos[room].name}. Exits: {_listed(exits)}."]
        lines += [f"You see: {_listed(things)}.", f"You carry: {_listed(carried)}."]
        if self.options.list_commands:
            lines.append(f"Possible: {'; '.join(sorted(self._possible()))}.")
        return "\n".join(lines)


@lru_cache(256)
def _made(seed: int, rooms: int, objects: int, quest_length: int, only_goal: bool) -> Any:
    """Return a game, which takes a second to make: the episodes of a group share it, and none changes it."""
    import textworld
    from textworld.generator import make_game

    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest_length
    options.seeds = seed
    options.grammar.only_last_action = only_goal
    return make_game(options)


def _listed(words: Any) -> str:
    return ", ".join(words) or "nothing"
