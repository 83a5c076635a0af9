"""Environments of ours as `gymnasium.Env`: Gymnasium's own check, spaces, seeds, ends, failures, vectors."""

from __future__ import annotations

import pickle
import random
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from uirl.environments import ENVIRONMENTS, BaseEnvironment, GymEnv, create_environment
from uirl.environments.adapters.gym_env import SERVED
from uirl.environments.adapters.gym_spaces import AnyText
from uirl.errors import ConfigError, ContractError, EnvironmentFailure
from uirl.parsers import create_parser
from uirl.types import Action, Observation, StepResult, Task, ToolCall


class Room(BaseEnvironment):
    """Shows what it was told; fails, ends, or is cut where it is told to."""

    max_turns = 3

    def __init__(self, shows: int = 0) -> None:
        super().__init__()
        self._shows, self._size = shows, (30, 20)
        self.said = ""

    def reset(self, *, task: Task | None = None, seed: int | None = None) -> Observation:
        self._random = random.Random(seed)
        return self._seen(f"{task.goal if task else 'hello'} {self._random.random():.6f}")

    def step(self, action: str) -> StepResult:
        if action == "fail":
            raise RuntimeError("the roof came down")
        if action == "grow":
            self._size = (31, 20)
        info = {"success": action == "win", "list": [1]}
        ends = {"terminated": action in ("win", "lose"), "truncated": action == "cut"}
        seen = self._seen(action)
        return StepResult(Observation(seen.text, () if ends["terminated"] else seen.images, info), 0.5, **ends)

    def get_state_description(self) -> str:
        return f"said {self.said}"

    def _seen(self, text: str) -> Observation:
        self.said = text
        level = len(text) % 256
        picture = np.full((self._size[1], self._size[0], 3), level, np.uint8)
        return Observation(text, (picture,) * self._shows)


class Rooms(Room):
    def tasks(self) -> list[Task]:
        return [Task(f"rooms/{name}", goal=name) for name in ("red", "green", "blue")]


class Cramped(BaseEnvironment):
    """Takes every kind of argument, and gives it back."""

    action_format = "json"
    runs_inline = True
    schema = {  # noqa: RUF012
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "minimum": 3, "maximum": 9},
                "how": {"enum": ["slow", "fast"]},
                "far": {"type": "boolean"},
                "word": {"type": "string", "maxLength": 9},
                "share": {"type": "number", "minimum": 0, "maximum": 1},
            },
            "required": ["x", "how"],
        },
    }

    def tool_schemas(self) -> list[dict[str, Any]]:
        word = {"word": {"type": "string"}}
        return [
            self.schema,
            {"name": "stay", "parameters": {"type": "object", "properties": {}}},
            {"name": "say", "parameters": {"type": "object", "properties": word, "required": ["word"]}},
        ]

    def reset(self) -> str:
        return "go"

    def step(self, action: Action) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 0.0, False, {"call": [(call.name, dict(call.arguments)) for call in action.tool_calls]}

    def get_state_description(self) -> str:
        return ""


@pytest.fixture
def make() -> Any:
    """`gymnasium.make` whose environments are closed; whatever Gymnasium warns of is an error."""
    made = []

    def one(name: str, **options: Any) -> Any:
        made.append(gymnasium.make(name, **options))
        return made[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield one
        for env in made:
            env.close()


LISTS = {"name": "sum", "parameters": {"type": "object", "properties": {"of": {"type": "array"}}, "required": ["of"]}}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": ("uirl/guess_number", {}),
    "texts as bytes, a menu": (
        "uirl/guess_number",
        {"text": "bytes", "max_text": 32, "actions": [str(n) for n in range(1, 8)]},
    ),
    "tools": ("uirl/calculator", {}),
    "pictures, calls": ("uirl/screen", {"options": {"retries": 3}}),
    "pages": ("uirl/miniwob", {"options": {"task": ["click-test", "click-color"]}, "actions": "numbers"}),
    "pictures alone, numbers": (
        "uirl/screen",
        {"options": {"level": 1, "retries": 2}, "view": "image", "actions": "numbers", "words": list("0123456789")},
    ),
}


@pytest.mark.usefixtures("one_browser")
@pytest.mark.parametrize("kind", KINDS)
def test_gymnasiums_own_check_passes(make: Any, kind: str) -> None:
    name, options = KINDS[kind]
    env = make(name, **options)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.reset(seed=0)[0] in env.observation_space
    for mode in env.metadata["render_modes"]:
        rendering = make(name, render_mode=mode, **options)
        rendering.reset(seed=0)
        shown = rendering.render()
        assert isinstance(shown, str if mode == "ansi" else np.ndarray)
        assert len(set(shown) if mode == "ansi" else np.unique(shown)) > 1  # something is to be seen


def test_every_name_of_the_table_is_an_id() -> None:
    for name in ENVIRONMENTS:
        spec = gymnasium.spec(f"uirl/{name}")
        assert (spec.kwargs["environment"], spec.nondeterministic) == (name, name in SERVED)
    assert set(SERVED) < set(ENVIRONMENTS)


def test_a_form_is_played_to_its_end_in_pictures_of_its_size(make: Any) -> None:
    env = make("uirl/screen", options={"size": 112, "level": 2})
    assert env.observation_space["image"].shape == (112, 112, 3)
    ours = create_environment("screen", {"size": 112, "level": 2})
    first, _ = env.reset(seed=4)
    same = ours.reset(seed=4)
    assert first["text"] == same.text
    assert np.array_equal(first["image"], np.asarray(same.images[0]))
    rewards = []
    for _ in range(2):
        call = ours.expert_action().call
        action = (0, {"x": np.int64(call.arguments["x"]), "y": np.int64(call.arguments["y"])})
        seen, reward, terminated, truncated, info = env.step(action)
        theirs = ours.step(Action(tool_calls=(call,)))
        assert np.array_equal(seen["image"], np.asarray(theirs.observation.images[0]))
        rewards.append(reward)
    assert (rewards, terminated, truncated, info["is_success"]) == ([0.5, 0.5], True, False, True)
    with pytest.raises(ContractError, match="call reset first"):
        env.unwrapped.step(action)


def test_a_seed_given_once_repeats_all_that_follows() -> None:
    env = GymEnv(Room())
    runs = []
    for seed in (7, 7, 8):
        first = env.reset(seed=seed)[0]["text"]
        runs.append([first, *(env.reset()[0]["text"] for _ in range(3))])
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 4
    assert runs[0][0] == f"hello {random.Random(7).random():.6f}"  # instance 7, for whoever plays it
    env.close()


def test_an_end_and_a_limit_are_told_apart() -> None:
    env = GymEnv(Room(shows=1), render_mode="ansi")

    def ends(*actions: str) -> list[tuple[bool, bool]]:
        env.reset(seed=0)
        return [env.step(action)[2:4] for action in actions]

    assert ends("a", "win") == [(False, False), (True, False)]
    assert ends("cut") == [(False, True)]
    assert ends("a", "b", "c") == [(False, False), (False, False), (False, True)]  # its own limit of turns
    with pytest.raises(ContractError, match="after its end"):
        env.step("d")
    assert ends("a", "b", "lose") == [(False, False), (False, False), (True, False)]
    assert env.render() == "said lose\nlose"
    seen, reward, *_, info = [env.reset(), env.step("win")][1]
    assert (seen["text"], reward, info["is_success"]) == ("win", 0.5, True)
    assert seen["image"][0, 0, 0] == len(env.reset(seed=0)[0]["text"])  # the last picture stays at an end
    env.close()


def test_what_is_returned_belongs_to_the_caller() -> None:
    env = GymEnv(Room(shows=1), render_mode="rgb_array")
    env.reset(seed=0)
    one, two = env.step("a"), env.step("b")
    one[4]["list"].append(2)
    one[0]["image"][:] = 0
    env.render()[:] = 0
    assert two[4]["list"] == [1]
    assert env.render().min() == 1
    env.close()


def test_a_failure_is_raised_and_the_next_episode_is_a_fresh_one() -> None:
    env = GymEnv(Room())
    env.reset(seed=0)
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match="the roof came down"):
            env.step("fail")
    assert env.reset(seed=0)[0] in env.observation_space
    assert env.step("a")[1] == 0.5
    env.close()


@pytest.mark.parametrize(
    ("environment", "options", "action", "told"),
    [
        (Room(shows=2), {}, None, "showed 2 pictures at once"),
        (Room(shows=1), {}, "grow", "a picture of 31 x 20 pixels; expected .30, 20."),
        (Room(), {"picture_size": (3, 4)}, None, "showed no picture at the start"),
        (Room(), {"max_text": 20}, "x" * 21, r"expected an element of AnyText\(20\)"),
    ],
)
def test_what_does_not_fit_its_space_is_told(
    environment: BaseEnvironment, options: dict[str, Any], action: str | None, told: str
) -> None:
    env = GymEnv(environment, **options)
    with pytest.raises((EnvironmentFailure, ContractError), match=told):
        env.step([env.reset(seed=0), action][1])
    env.close()


def test_of_a_text_that_is_too_long_the_beginning_is_shown() -> None:
    words = GymEnv(Room(), max_text=14)
    codes = GymEnv(Room(), text="bytes", max_text=14)
    for env in (words, codes):
        assert "text_length" not in env.reset(seed=0)[1]  # "hello 0.844422" just fits
        assert "text_length" not in env.step("b" * 14)[4]
    shown = []
    for env in (words, codes):
        env.reset(seed=0)
        room = env.unwrapped._episode.env
        room.step = lambda action: (action * 8, 0.0, False, {})
        seen, *_, info = env.step("aä")
        shown.append((seen["text"], info["text_length"]))
    assert shown[0] == ("aäaäaäaäaäa...", 16)
    assert (bytes(shown[1][0]), shown[1][1]) == ("aäaäaäa...".encode() + b"\0", 24)
    words.close()
    codes.close()


def test_tasks_are_drawn_by_the_seed_or_chosen() -> None:
    env = GymEnv(Rooms())
    drawn = [env.reset(seed=seed)[0]["text"] for seed in range(20)]
    assert drawn == [env.reset(seed=seed)[0]["text"] for seed in range(20)]
    assert {text.split()[0] for text in drawn} == {"red", "green", "blue"}
    assert env.reset(seed=0, options={"task": "rooms/blue"})[0]["text"].startswith("blue ")
    for options, told in (({"task": "rooms/bleu"}, "nearest is 'rooms/blue'|rooms/blue"), ({"level": 1}, "'task'")):
        with pytest.raises(ConfigError, match=told):
            env.reset(options=options)
    env.close()


def test_calls_and_numbers_say_the_same() -> None:
    env = GymEnv(Cramped())
    env.reset(seed=0)
    absent = (0, np.int64(0))
    given = {"x": 4, "how": 1, "far": (1, 1), "word": (1, "hé"), "share": absent}
    assert env.step((0, given))[4]["call"] == [("move", {"x": 4, "how": "fast", "far": True, "word": "hé"})]
    assert env.step((1, 0))[4]["call"] == [("stay", {})]
    assert env.step((2, {"word": ""}))[4]["call"] == [("say", {"word": ""})]
    env.action_space.seed(0)
    names = []
    for _ in range(50):
        ((name, arguments),) = env.step(env.action_space.sample())[4]["call"]
        names.append(name)
        assert name != "move" or (3 <= arguments["x"] <= 9 and arguments["how"] in ("slow", "fast"))
        assert set(arguments) <= {"move": {"x", "how", "far", "word", "share"}, "say": {"word"}, "stay": set()}[name]
    assert set(names) == {"move", "stay", "say"}
    env.close()
    env = GymEnv(Cramped(), actions="numbers", words=["ja", "no"])
    assert env.action_space.nvec.tolist() == [3, 7, 2, 3, 2]  # neither the share nor a word that may be left out
    env.reset(seed=0)
    assert env.step(np.array([0, 6, 1, 0, 0]))[4]["call"] == [("move", {"x": 9, "how": "fast"})]
    assert env.step(np.array([0, 0, 0, 2, 1]))[4]["call"] == [("move", {"x": 3, "how": "slow", "far": True})]
    assert env.step(np.array([1, 3, 0, 0, 0]))[4]["call"] == [("stay", {})]
    assert env.step(np.array([2, 0, 0, 0, 1]))[4]["call"] == [("say", {"word": "no"})]
    env.close()


def test_a_text_is_read_as_the_environment_reads_it() -> None:
    said = '{"action": "say", "word": "hé"}'
    env = GymEnv(Cramped(), actions="text")
    env.reset(seed=0)
    assert env.step(said)[4]["call"] == [("say", {"word": "hé"})]
    env.close()
    env = GymEnv(Cramped(), read=create_parser("function_calling").parse)
    env.reset(seed=0)
    assert env.step('<tool_call>{"name": "stay", "arguments": {}}</tool_call>')[4]["call"] == [("stay", {})]
    env.close()


def test_a_menu_is_chosen_from_by_number() -> None:
    env = GymEnv(Cramped(), actions=[Action(tool_calls=(ToolCall("a"),)), Action.of("b", x=1)])
    env.reset(seed=0)
    assert [env.step(np.int64(n))[4]["call"] for n in (0, 1)] == [[("a", {})], [("b", {"x": 1})]]
    with pytest.raises(ContractError, match=r"got the action 2; expected an element of Discrete\(2\)"):
        env.step(2)
    env.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"view": "pictures"}, "GymEnv.view: got 'pictures', expected 'all' or"),
        ({"text": "byte"}, "GymEnv.text: got 'byte', expected 'text' or 'bytes'"),
        ({"actions": "call"}, "actions is one of"),
        ({"actions": []}, "an empty list"),
        ({"actions": "numbers"}, "say takes a text word"),
        ({"actions": "numbers", "schemas": [LISTS]}, "sum takes of as"),
        ({"actions": "calls", "schemas": [LISTS]}, "sum takes of as"),
        ({"view": "image"}, "shows no pictures"),
        ({"render_mode": "human"}, "GymEnv.render_mode: got 'human', expected 'rgb_array' or 'ansi'"),
    ],
)
def test_options_that_do_not_fit_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        GymEnv(Cramped(), **options)


def test_any_text_is_one(tmp_path: Any) -> None:
    space = AnyText(9)
    assert all(text in space for text in ("", "grün", "火" * 9, "\ud800", "a\x00b"))
    assert not any(value in space for value in ("x" * 10, 3, b"x", None))
    flat = gymnasium.spaces.flatten(space, "grün 火")
    assert flat in gymnasium.spaces.flatten_space(space)
    assert gymnasium.spaces.unflatten(space, flat) == "grün 火"
    space.seed(3)
    drawn = [space.sample() for _ in range(30)]
    assert all(text in space for text in drawn)
    space.seed(3)
    assert drawn == [space.sample() for _ in range(30)]
    assert (space == AnyText(9), space == AnyText(8), space == gymnasium.spaces.Text(9)) == (True, False, False)


FORM: dict[str, Any] = {"options": {"level": 1, "retries": 1}, "actions": "numbers", "words": ["1"], "max_text": 40}


@pytest.mark.parametrize(
    ("mode", "vector_kwargs", "text"),
    [("sync", {}, "text"), ("async", {"shared_memory": False}, "text"), ("async", {}, "bytes")],
)
def test_several_are_played_as_one_vector(mode: str, vector_kwargs: dict[str, Any], text: str) -> None:
    env = gymnasium.make_vec(
        "uirl/screen", num_envs=2, vectorization_mode=mode, vector_kwargs=vector_kwargs, text=text, **FORM
    )
    alone = GymEnv("screen", text=text, **FORM)
    try:
        seen, _ = env.reset(seed=5)
        expected = [alone.reset(seed=seed)[0] for seed in (5, 6)]
        assert [list(one) for one in seen["text"]] == [list(one["text"]) for one in expected]
        assert seen["image"].shape == (2, 56, 56, 3)
        assert np.array_equal(seen["image"], np.stack([one["image"] for one in expected]))
        nowhere = np.array([[0, 0, 0, 0]] * 2)
        ends = [env.step(nowhere)[2:4] for _ in range(3)]
        assert [terminated.tolist() for terminated, _ in ends] == [[False] * 2, [True] * 2, [False] * 2]
    finally:
        alone.close()
        env.close()


def test_texts_are_not_lost_in_shared_memory() -> None:
    with pytest.raises(ValueError, match="disable this feature with `shared_memory=False`"):
        gymnasium.make_vec("uirl/screen", num_envs=2, vectorization_mode="async", **FORM)


@pytest.mark.parametrize("options", [{}, {"actions": "numbers", "words": ["1", "2"]}, {"text": "bytes"}])
def test_a_pickle_plays_the_same_while_an_episode_runs(options: dict[str, Any]) -> None:
    env = GymEnv("guess_number", **options)
    env.reset(seed=3)
    other = pickle.loads(pickle.dumps(env))
    try:
        assert (other.observation_space, other.action_space) == (env.observation_space, env.action_space)
        env.action_space.seed(1)
        actions = [env.action_space.sample() for _ in range(3)]
        played = []
        for one in (env, other):
            first, _ = one.reset(seed=5)
            played.append(repr([first, *(one.step(action)[:2] for action in actions[:2])]))
        assert played[0] == played[1]
    finally:
        env.close()
        other.close()
