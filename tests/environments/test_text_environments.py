"""The number puzzle and the adventure: rules, rewards, demonstrators."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from uirl.environments import check_environment, create_environment, scripted_success
from uirl.environments.text.guess_number import GuessNumberEnvironment
from uirl.environments.text.simple_game import OPPOSITE, REWARDS, SimpleGameEnvironment, build_house
from uirl.errors import ConfigError
from uirl.types import Action


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("guess_number", {}),
        ("guess_number", {"n": 15, "guesses": 5}),
        ("guess_number", {"n": 1, "guesses": 1}),
        ("simple_game", {}),
        ("simple_game", {"rooms": 3}),
        ("simple_game", {"rooms": 12}),
    ],
)
def test_shipped_text_environments_keep_the_contract(name: str, options: dict[str, Any]) -> None:
    report = check_environment(create_environment(name, options), episodes=10)
    assert report.seeded
    assert report.expert_success == 1.0


def game_with(secret: int, **options: Any) -> GuessNumberEnvironment:
    env = GuessNumberEnvironment(**options)
    for seed in range(1000):
        env.reset(seed=seed)
        if env.step("no")[3]["number"] == secret:
            env.reset(seed=seed)
            return env
    raise AssertionError(f"{secret} never came")


def test_a_game_of_higher_and_lower() -> None:
    env = game_with(5)
    assert env.get_state_description() == "1-7, 3 left"
    assert env.step("4") == ("higher", 0.0, False, {"success": False, "number": 5})
    assert env.step(" 6\n") == ("lower", 0.0, False, {"success": False, "number": 5})
    assert env.get_state_description() == "5-5, 1 left"
    assert env.expert_action() == "5"
    assert env.step("5") == ("right", 1.0, True, {"success": True, "number": 5})


@pytest.mark.parametrize("reply", ["", "four", "4.0", "+4", "1_0", "4 or 5", "٤", "9" * 10])
def test_what_is_not_a_number_costs_the_guess(reply: str) -> None:
    env = game_with(4)
    for done in (False, False, True):
        assert env.step(reply)[:3] == ("not a number", 0.0, done)


def test_guesses_outside_of_the_range_are_answered_and_do_not_mislead_the_expert() -> None:
    env = game_with(1, guesses=5)
    assert env.step("99")[0] == "lower"
    assert env.step("0")[0] == "higher"
    assert env.get_state_description() == "1-7, 3 left"
    env = game_with(5, guesses=5)
    for guess in ("4", "2", "6", "7"):
        env.step(guess)
    assert env.get_state_description() == "5-5, 1 left"


def test_numbers_are_drawn_evenly() -> None:
    env = GuessNumberEnvironment()
    counts = [0] * 8
    for seed in range(1400):
        env.reset(seed=seed)
        counts[env.step("no")[3]["number"]] += 1
    assert counts[0] == 0
    # 1400 draws, 200 expected each, standard deviation 13
    assert all(150 < count < 250 for count in counts[1:])


def test_the_careless_demonstrator_shows_the_format_alone() -> None:
    env = GuessNumberEnvironment(demonstrator="random")
    # three independent guesses of seven: 1 - (6/7)^3 = 0.370; 800 episodes, standard deviation 0.017
    assert scripted_success(env, episodes=800) == pytest.approx(0.370, abs=0.07)
    env.reset(seed=1)
    assert env.expert_action() == env.expert_action()


def test_the_careless_demonstrator_leaves_the_number_alone() -> None:
    for seed in range(20):
        numbers = set()
        for demonstrator in ("expert", "random"):
            env = GuessNumberEnvironment(demonstrator=demonstrator)
            env.reset(seed=seed)
            env.expert_action()
            numbers.add(env.step("no")[3]["number"])
        assert len(numbers) == 1


def test_constant_guess_is_the_chance_level() -> None:
    # always "4" of seven: 1/7 = 0.143; 700 episodes, standard deviation 0.013
    env = GuessNumberEnvironment()
    assert env.controls() == {"constant_guess": "4"}
    assert scripted_success(env, lambda turn: Action(text="4"), episodes=700) == pytest.approx(1 / 7, abs=0.05)


@pytest.mark.parametrize("rooms", [3, 5, 12])
def test_houses_can_be_won_only_with_the_key(rooms: int) -> None:
    for seed in range(60):
        house = build_house(random.Random(seed), rooms)
        assert len(set(house.names)) == rooms
        assert len(house.exits[house.vault]) == 1
        assert 0 < house.key_room < house.vault
        assert house.way(0, house.vault, unlocked=False) is None
        for room, doors in enumerate(house.exits):
            assert room in (0, house.vault) or house.way(0, room, unlocked=False) is not None
            for direction, behind in doors.items():
                assert house.exits[behind][OPPOSITE[direction]] == room


@pytest.mark.parametrize("rooms", [3, 5, 12])
def test_every_house_is_won_in_the_promised_turns_for_a_reward_of_one(rooms: int) -> None:
    env = SimpleGameEnvironment(rooms=rooms, max_turns=2 * rooms + 3)
    for seed in range(100):
        env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            _, reward, done, info = env.step(env.expert_action())
            total += reward
        assert info == {"success": True, "progress": 1.0}
        assert math.isclose(total, sum(REWARDS.values()))
    assert math.isclose(sum(REWARDS.values()), 1.0)


def at_the_door(seed: int = 3) -> SimpleGameEnvironment:
    env = SimpleGameEnvironment()
    env.reset(seed=seed)
    while env.expert_action() != "open door":
        env.step(env.expert_action())
    return env


def test_the_config_of_the_documents_is_taken() -> None:
    assert SimpleGameEnvironment("section").config == "section"
    assert SimpleGameEnvironment().config is None


def test_a_locked_door_needs_the_key() -> None:
    env = SimpleGameEnvironment(rooms=3)
    for seed in range(100):
        if "locked door" in env.reset(seed=seed):
            break
    direction = next(d for d in OPPOSITE if f"{d} (locked door)" in env.get_state_description())
    assert env.step(f"go {direction}")[0] == "The door is locked."
    assert env.step("open door")[:2] == ("You need a key.", 0.0)
    while env.expert_action() != "take key":
        env.step(env.expert_action())
    assert env.step("pick up the KEY!")[:2] == ("You take the key.", 0.2)
    assert env.step("take key")[:2] == ("No key here.", 0.0)
    assert "key" in env.step("inventory")[0]


def test_milestones_are_paid_once() -> None:
    env = at_the_door()
    assert env.step("unlock the door")[:2] == ("The door opens.", 0.2)
    assert env.step("open door")[:2] == ("It is open.", 0.0)
    while env.expert_action() != "open chest":
        env.step(env.expert_action())
    assert env.step("take treasure")[:2] == ("No treasure here.", 0.0)
    assert env.step("take chest")[:2] == ("You cannot take chest.", 0.0)
    assert env.step("open chest")[:2] == ("The chest opens. You see: treasure.", 0.2)
    assert env.step("open chest")[:2] == ("It is open.", 0.0)
    assert env.step("take treasure")[1:] == (0.4, True, {"success": True, "progress": 1.0})


@pytest.mark.parametrize("words", ["dance", "", "gonorth", "éé", "42"])
def test_unknown_words_are_answered_with_help(words: str) -> None:
    env = SimpleGameEnvironment()
    env.reset(seed=0)
    before = env.get_state_description()
    answer = env.step(words)
    assert f'I do not know "{words}"' in answer[0]
    assert "go north, take key, open door" in answer[0]
    assert answer[1:3] == (0.0, False)
    assert env.get_state_description() == before == env.step("look")[0]


def test_short_and_long_ways_to_say_it() -> None:
    env = SimpleGameEnvironment()
    first = env.reset(seed=0).removeprefix("Find the treasure. ")
    direction = next(d for d in OPPOSITE if f"{d}" in first and f"{d} (locked" not in first)
    there = env.step(direction)[0]
    for command in (f"Go {direction}.", f"walk to the {direction}", f"  {direction.upper()}  "):
        env.reset(seed=0)
        assert env.step(command)[0] == there
    assert env.step("go nowhere")[0].startswith("No exit there.")


def test_turns_run_out() -> None:
    env = SimpleGameEnvironment(max_turns=3)
    env.reset(seed=0)
    assert [env.step("look")[2] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("options", [{"rooms": 2}, {"rooms": 13}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"simple_game\.{next(iter(options))}: got .*, expected whole number >= "):
        SimpleGameEnvironment(**options)
