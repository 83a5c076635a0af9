"""The Gymnasium adapter on real environments: text, pictures, numbers, limits, wrong replies."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from uirl.environments import EnvironmentSession, check_environment, create_environment
from uirl.environments.adapters.gymnasium import GymnasiumEnvironment, describe_actions, read_action
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.images import screenshot
from uirl.types import Action

LAKE = "FrozenLake-v1"
MOVES = ["left", "down", "right", "up"]
STILL = {"is_slippery": False}


class Camera(gymnasium.Env):
    """A user's environment with uint8 pictures and no spec: it must be copied."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8)
    action_space = gymnasium.spaces.Text(5, charset="abc")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.picture = self.np_random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        return self.picture, {"first": True}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.picture, 1.0, action == "c", False, {"is_success": np.bool_(action == "c")}


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(lambda: GymnasiumEnvironment(LAKE), id="lake-number"),
        pytest.param(lambda: GymnasiumEnvironment(LAKE, view="ansi", action_names=MOVES), id="lake-text"),
        pytest.param(lambda: GymnasiumEnvironment(LAKE, view="rgb", max_turns=5), id="lake-picture"),
        pytest.param(lambda: GymnasiumEnvironment("CartPole-v1", success_return=5), id="cartpole"),
        pytest.param(lambda: GymnasiumEnvironment("Pendulum-v1", max_turns=5), id="pendulum"),
        pytest.param(lambda: GymnasiumEnvironment(gymnasium.make("Taxi-v4"), max_turns=9), id="object-with-spec"),
        pytest.param(lambda: GymnasiumEnvironment(Camera(), max_turns=5), id="object-to-copy"),
        pytest.param(lambda: GymnasiumEnvironment(Camera, max_turns=5), id="function"),
    ],
)
def test_real_environments_keep_the_contract(env: Callable[[], GymnasiumEnvironment]) -> None:
    made = env()
    report = check_environment(made, actions=["0", "1", "right", "-0.5", "a", "nonsense"])
    assert report.seeded
    assert report.turns > 0
    made.close()


def test_a_walk_over_the_lake_in_words() -> None:
    env = create_environment(
        "gymnasium", {"env": LAKE, "view": "ansi", "action_names": MOVES, "make_options": STILL, "success_return": 1.0}
    )
    first, _ = env.reset(seed=0)
    assert first.text == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert env.get_prompt_prefix() == "You control an environment. Answer with one of: left, down, right, up."
    assert env.max_turns == 100
    for move in ("down", "Down ", "right", "2", "down"):
        observation, reward, terminated, truncated, info = env.step(move)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info["success"] is False
    assert observation.text == "  (Down)\nSFFF\nFHFH\nFFFH\nHF[F]G"
    assert env.get_state_description() == observation.text
    *_, reward, terminated, truncated, info = env.step("right")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_the_lake_in_pictures() -> None:
    env = GymnasiumEnvironment(LAKE, view="rgb", action_names=MOVES, make_options=STILL)
    first, _ = env.reset(seed=0)
    assert first.text == ""
    assert screenshot(first.images[0]).open().size == (256, 256)
    moved = env.step("right")[0]
    assert screenshot(moved.images[0]) != screenshot(first.images[0])
    assert env.get_state_description() == "turn 1"
    mistake = env.step("jump")[0]
    assert screenshot(mistake.images[0]) == screenshot(moved.images[0])
    env.close()


def test_numbers_are_short_and_seeds_reproduce() -> None:
    one, other = GymnasiumEnvironment("CartPole-v1"), GymnasiumEnvironment("CartPole-v1")
    first = one.reset(seed=3)[0].text
    assert first == other.reset(seed=3)[0].text
    assert len(first.split()) == 4
    assert all(len(number) <= 10 for number in first.split())
    raw, _ = gymnasium.make("CartPole-v1").reset(seed=3)
    assert np.allclose([float(number) for number in first.split()], raw, rtol=1e-3)
    assert one.step("1")[0].text == other.step("1")[0].text != first
    assert first != one.reset(seed=4)[0].text


@pytest.mark.parametrize("reply", ["", "jump", "4", "-1", "1.0", "1 2", "٢", "9" * 30])
def test_a_reply_that_is_no_action_steps_nothing_and_says_what_is(reply: str) -> None:
    env = GymnasiumEnvironment(LAKE, view="ansi", make_options=STILL, max_turns=3)
    first = env.reset(seed=0)[0].text
    for truncated in (False, False, True):
        observation, reward, ended, cut, _ = env.step(reply)
        assert observation.text == f"No action {reply[:40]!r}; answer with a number from 0 to 3.\n{first}"
        assert (reward, ended, cut) == (0.0, False, truncated)


def test_the_limit_of_turns_truncates() -> None:
    env = GymnasiumEnvironment(LAKE, max_turns=2, make_options=STILL, success_return=1.0)
    env.reset(seed=0)
    assert env.step("0")[2:4] == (False, False)
    *_, terminated, truncated, info = env.step("0")
    assert (terminated, truncated, info["success"]) == (False, True, False)


class Says(gymnasium.Env):
    """Each step pays 1, and says these words on success."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info

    def reset(self, **keys: Any) -> Any:
        super().reset(**keys)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 1.0, False, False, self.info


@pytest.mark.parametrize("key", ["success", "is_success"])
@pytest.mark.parametrize(
    ("word", "solved"),
    [
        (False, False), (0.0, False), (0.3, False), (np.float32(0.99), False), (-1, False), (np.array([0.5]), False),
        (True, True), (1, True), (np.float32(1), True), (np.bool_(True), True), (np.array([1.0]), True),
    ],
)  # fmt: skip
async def test_a_graded_word_on_success_is_no_verdict_and_nonsense_changes_none(
    key: str, word: Any, solved: bool
) -> None:
    session = EnvironmentSession(GymnasiumEnvironment(Says({key: word}), success_return=2.0))
    await session.reset()
    for reply in ("0", "0", "1"):
        assert (await session.step(Action(text=reply))).observation.info["success"] is solved
    assert "success" not in (await session.step(Action(text="left"))).observation.info


async def test_no_word_on_success_is_none_and_what_is_no_word_is_refused() -> None:
    for word, expected in ((None, {}), ("no", None), (float("nan"), None), (np.array([0, 1]), None)):
        session = EnvironmentSession(GymnasiumEnvironment(Says({"success": word})))
        await session.reset()
        if expected is None:
            with pytest.raises(EnvironmentFailure, match=r"info\['success'\]; expected True or False"):
                await session.step(Action(text="0"))
        else:
            assert dict((await session.step(Action(text="0"))).observation.info) == expected


SPACES = gymnasium.spaces


@pytest.mark.parametrize(
    ("space", "reply", "expected"),
    [
        (SPACES.Discrete(3, start=5), "6", 6),
        (SPACES.Discrete(3, start=5), "B", 6),
        (SPACES.Discrete(3, start=-1), "-1", -1),
        (SPACES.Box(-1, 1, (2,)), "0.5, -.25", [0.5, -0.25]),
        (SPACES.Box(-1, 1, (2, 1)), "[[1e-1] [1]]", [[0.1], [1]]),
        (SPACES.MultiDiscrete([3, 2]), "2 1", [2, 1]),
        (SPACES.MultiBinary(2), "1 0", [1, 0]),
        (SPACES.Text(5, charset="abc"), " abc ", "abc"),
    ],
)
def test_replies_become_actions_of_the_space(space: Any, reply: str, expected: Any) -> None:
    action = read_action(space, reply, ["a", "b", "c"] if isinstance(space, SPACES.Discrete) else ())
    assert np.allclose(action, expected) if not isinstance(expected, str) else action == expected
    assert space.contains(action)


@pytest.mark.parametrize(
    ("space", "reply", "words"),
    [
        (SPACES.Discrete(3, start=5), "1", "a number from 5 to 7"),
        (SPACES.Box(-1, 1, (2,)), "0.5", "2 numbers"),
        (SPACES.Box(-1, 1, (1,)), "2", "one number"),
        (SPACES.MultiDiscrete([3, 2]), "2 2", "2 numbers"),
        (SPACES.MultiDiscrete([3, 2]), "1.5 1", "2 numbers"),
        (SPACES.Text(5, charset="abc"), "abcd efg", "a text of 1 to 5 characters"),
        (SPACES.Box(-np.inf, np.inf, (1,)), "1e400", "one number"),
        (SPACES.Box(-np.inf, np.inf, (1,)), "1e39", "one number"),
    ],
)
def test_replies_outside_of_the_space_are_refused(space: Any, reply: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_action(space, reply)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (SPACES.Box(-2, 2, (1,)), "one number from -2 to 2"),
        (SPACES.Box(-0.1, 0.3, (3,)), "3 numbers, with spaces between them, each from -0.1 to 0.3"),
        (SPACES.Box(np.array([0, -np.inf]), np.array([1, 9])), r".*them: number 1 from 0 to 1; number 2 of at most 9"),
        (SPACES.Box(-np.inf, np.inf, (2,)), "2 numbers, with spaces between them"),
        (SPACES.Box(0, 255, (2,), np.uint8), ".*each from 0 to 255"),
        (SPACES.MultiDiscrete([3, 3]), ".*each from 0 to 2"),
        (SPACES.MultiDiscrete([3, 2], start=[1, 0]), ".*: number 1 from 1 to 3; number 2 from 0 to 1"),
        (SPACES.MultiBinary(2), ".*each from 0 to 1"),
        (SPACES.Discrete(3, start=5), "a number from 5 to 7"),
    ],
)
def test_the_prompt_says_between_what_every_number_lies(space: Any, words: str) -> None:
    assert re.fullmatch(words, describe_actions(space))


def test_a_space_without_a_text_form_is_named() -> None:
    with pytest.raises(ConfigError, match="no text form for the action space Dict"):
        describe_actions(SPACES.Dict({"a": SPACES.Discrete(2)}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": "FrozenLak-v1"}, "FrozenLake"),
        ({"env": 3}, "expected an id, a function or a gymnasium.Env, got 3"),
        ({"env": LAKE, "view": "rgbb"}, "gymnasium.view: got 'rgbb', expected 'auto' or"),
        ({"env": gymnasium.make(LAKE), "view": "rgb"}, "render_mode='rgb_array'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_environment("gymnasium", options)
    assert words in str(caught.value)


def test_a_wrong_number_of_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 2 action_names, expected one per action of Discrete"):
        GymnasiumEnvironment(LAKE, action_names=["left", "right"]).reset(seed=0)


def test_what_cannot_be_copied_says_so() -> None:
    env = Camera()
    env.lens = (i for i in range(3))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot be copied for a parallel episode"):
        GymnasiumEnvironment(env).spawn()


def test_what_has_a_spec_is_made_anew() -> None:
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.lens = (i for i in range(3))  # type: ignore[attr-defined]
    spawned = GymnasiumEnvironment(env).spawn()
    assert len(spawned.reset(seed=0)[0].text.split()) == 4
    assert spawned._env is not env
