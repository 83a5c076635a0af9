"""Generated games of TextWorld: won by its own solution, repeatable, and told in what can be seen."""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

import pytest

from uirl.environments.adapters.textworld import TextWorldEnvironment
from uirl.environments.conformance import check_environment
from uirl.environments.scripted import scripted_success
from uirl.errors import ConfigError
from uirl.types import Action

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """TextWorld imports the interpreter of Z-machine games, whose build downloads its sources; no game here uses it."""
    if "textworld" not in sys.modules:
        jericho = ModuleType("jericho")
        jericho.TruncatedInputActionWarning = jericho.UnsupportedGameWarning = Warning  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jericho", jericho)


def test_the_contract_holds_and_its_solution_wins() -> None:
    assert check_environment(TextWorldEnvironment(), episodes=2).expert_success == 1.0
    assert scripted_success(TextWorldEnvironment(), episodes=3) == 1.0


def test_what_is_no_command_does_nothing() -> None:
    env = TextWorldEnvironment(mistake_reward=-0.5)
    env.reset(seed=0)
    before = env.state_key()
    for reply in ("", "xyzzy", "go", "look", "__import__('os')", "take " * 5000, "\x00"):
        text, reward, done, info = env.step(reply)
        assert (reward, done, info["success"]) == (-0.5, False, False)
        assert text.startswith("That is not possible.\nYou are in the ")
    assert env.state_key() == before
    assert scripted_success(env, lambda turn: Action(text="go east"), episodes=3) == 0.0


def test_a_command_is_read_however_it_is_written() -> None:
    env = TextWorldEnvironment()
    for seed in range(3):
        env.reset(seed=seed)
        command = env.expert_action()
        *_, info = env.step(f"  {command.upper()}\n")
        assert "mistake" not in info


def test_only_what_is_in_the_room_and_in_open_things_is_seen() -> None:
    env = TextWorldEnvironment()
    hidden = 0
    for seed in range(3):
        env.reset(seed=seed)
        facts = list(env._progress.state.facts)
        room = next(f.arguments[1].name for f in facts if f.name == "at" and f.arguments[0].name == "P")
        seen = env.get_state_description()
        for fact in facts:
            if fact.name == "at" and fact.arguments[0].name != "P" and fact.arguments[0].type != "d":
                name = env._game.infos[fact.arguments[0].name].name
                assert (name in seen) or fact.arguments[1].name != room
                hidden += name not in seen
    assert hidden > 0


def test_chance_wins_seldom() -> None:
    env = TextWorldEnvironment()
    assert scripted_success(env, lambda turn: Action(text=random.Random(turn).choice(WORDS)), episodes=3) == 0.0


WORDS = ("go north", "go east", "go south", "go west", "open chest", "take key", "unlock door with key", "look")


@pytest.mark.parametrize(
    ("option", "value"),
    [("rooms", 5), ("objects", 12), ("quest_length", 2), ("only_goal", True), ("list_commands", True)],
)
def test_every_option_of_a_game_shows(option: str, value: Any) -> None:
    plain, other = TextWorldEnvironment(), TextWorldEnvironment(**{option: value})
    assert plain.reset(seed=0) != other.reset(seed=0)


def test_options_of_the_episode() -> None:
    env = TextWorldEnvironment(max_turns=3, instructions="Play.")
    assert (env.max_turns, env.get_prompt_prefix()) == (3, "Play.")
    with pytest.raises(ConfigError, match=r"textworld\.rooms: got 0"):
        TextWorldEnvironment(rooms=0)
