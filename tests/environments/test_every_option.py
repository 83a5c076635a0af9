"""No option of an environment is accepted and then does nothing.

Every parameter of a constructor is given values other than its default, alone and beside what reads it. It is refused
with a ConfigError, or something that can be seen of the environment or of scripted episodes is different.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium
import pytest

from uirl.environments.browser import environment as browser
from uirl.environments.registry import ENVIRONMENTS, create_environment, environment_class, option_names
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.images import screenshot
from uirl.types import Action, Observation


@dataclass(frozen=True)
class Case:
    """Values of an option, where they show, and what must stand beside them."""

    values: tuple[Any, ...]
    shows: str
    """What of it `Looker.seen` is asked for."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Without these the option is refused."""


def case(*values: Any, shows: str, **beside: Any) -> Case:
    return Case(values, shows, beside)


APPS = Path(__file__).parent / "apps"
DEMONSTRATOR = case("careless", shows="demonstration")
CARELESSNESS = case(0.0, 1.0, shows="demonstration", demonstrator="careless")
ARITHMETIC = {
    "terms": case(3, shows="first"),
    "digits": case(1, 4, shows="first"),
    "operators": case("*", shows="first"),
    "demonstrator": DEMONSTRATOR,
    "carelessness": CARELESSNESS,
    "spare_turns": case(0, 4, shows="turns"),
    "unplugged": case(True, shows="demonstration"),
    "describe": case("prompt", "none", shows="told"),
    "action_format": case("json", shows="format"),
}
PAGE = {
    "width": case(200, shows="pictures"),
    "height": case(230, shows="pictures"),
    "zoom": case(0.5, shows="pictures"),
    "image_size": case(64, (80, 70), shows="pictures"),
    "image_format": case("jpeg", shows="pictures"),
    "quality": case(5, 95, shows="pictures", image_format="jpeg"),
    "actions": case(("click", "wait"), shows="told"),
    "coordinates": case("grid_999", shows="told"),
    "action_format": case("pyautogui", "computer", shows="told"),
    "say_target": case(True, shows="told"),
    "marks": case(True, shows="pictures"),
    "tree": case(300, shows="first"),
    "max_turns": case(2, shows="turns"),
    "crop": case((0, 10, 100, 90), shows="pictures"),
    "ocr": case(100, shows="first"),
    "picture": case(False, shows="pictures", tree=300),
    "settle": case(0.25, shows="waits"),
}
CASES: dict[str, dict[str, Case]] = {
    "screen": {
        "size": case(112, shows="pictures"),
        "level": case(1, 3, shows="turns"),
        "palette": case(("red", "green", "orange"), shows="pictures"),
        "buttons": case(2, 4, shows="pictures"),
        "slots": case(3, shows="pictures"),
        "jitter": case(0, shows="pictures"),
        "retries": case(2, shows="turns"),
        "demonstrator": DEMONSTRATOR,
        "carelessness": CARELESSNESS,
        "action_format": case("pyautogui", "computer", shows="format"),
        "blank_image": case(True, shows="pictures"),
        "hide_instruction": case(True, shows="first"),
        "describe": case(True, shows="told"),
    },
    "screen_suite": {
        "size": case(112, shows="pictures"),
        "slots": case(3, shows="pictures"),
        "jitter": case(0, shows="pictures"),
        "retries": case(2, shows="turns"),
        "demonstrator": DEMONSTRATOR,
        "carelessness": CARELESSNESS,
        "action_format": case("pyautogui", "computer", shows="format"),
        "blank_image": case(True, shows="pictures"),
        "hide_instruction": case(True, shows="first"),
        "describe": case(True, shows="told"),
    },
    "guess_number": {
        "n": case(9, shows="first"),
        "guesses": case(5, shows="turns"),
        "demonstrator": case("careless", "random", shows="demonstration"),
        "carelessness": CARELESSNESS,
        "describe": case(True, shows="told"),
    },
    "simple_game": {"rooms": case(8, shows="first"), "max_turns": case(7, shows="turns")},
    "calculator": ARITHMETIC,
    "errands": {
        **{name: ARITHMETIC[name] for name in ("demonstrator", "carelessness", "spare_turns", "action_format")},
        "describe": case("template", "prompt", shows="told"),
        "kinds": case(("sum",), ("date", "price"), shows="first"),
        "largest": case(9, shows="first"),
        "instructions": case("Be quick.", "", shows="told"),
    },
    "lookup": {**ARITHMETIC, "names": case(2, shows="demonstration", demonstrator="careless")},
    "mixture": {"members": case(({"name": "guess_number", "options": {"n": 9}},), shows="first")},
    "gymnasium": {
        "env": case("Taxi-v4", shows="told"),
        "view": case("ansi", "rgb", shows="first"),
        "action_names": case(("left", "down", "right", "up"), shows="told"),
        "max_turns": case(3, shows="turns"),
        "success_return": case(0.0, shows="success"),
        "invalid_reward": case(-1.5, shows="mistake"),
        "make_options": case({"is_slippery": False}, shows="stumbling"),
        "describe": case(False, shows="told"),
    },
    "miniwob": {
        **PAGE,
        "task": case(("click-color", "click-test"), "all", shows="tasks"),
        "tags": case(("drag",), shows="tasks", task="all"),
        "crop": case("area", (0, 50, 160, 100), shows="pictures"),
        "reward": case("success", shows="stumbling"),
        "demonstrator": DEMONSTRATOR,
        "carelessness": CARELESSNESS,
    },
    "data_entry": {
        **PAGE,
        "level": case(2, 3, shows="first"),
        "rows": case(2, shows="first"),
        "listed": case(2, shows="stumbling"),
        "fields": case(("first",), shows="pictures"),
        "tell": case(True, shows="first"),
        "penalty": case(0.5, shows="stumbling"),
        "max_wrong_submissions": case(1, shows="stumbling"),
    },
    "apps": {
        **PAGE,
        "app": case(str(APPS / "labels"), shows="first"),
        "split": case("test", "all", shows="tasks"),
        "tags": case(("plain", "edit"), shows="tasks"),
    },
}

BASES: dict[str, dict[str, Any]] = {
    "screen": {"size": 84},
    "screen_suite": {"size": 84},
    "mixture": {"members": ({"name": "guess_number"},)},
    "gymnasium": {"env": "FrozenLake-v1"},
    "miniwob": {"task": "click-color", "max_turns": 3},
    "data_entry": {"level": 1, "max_turns": 4},
    "apps": {"app": str(APPS / "notes"), "max_turns": 3},
}
"""Environment -> what every try has."""
TRIED_ELSEWHERE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("gymnasium", "view"): ("text", "image"),  # of numbers 'auto' shows the text; 'image' is refused, see below
    ("data_entry", "level"): (1, 5),  # the base of every try, and one that is played in test_data_entry
}
WITH_SERVERS = {"remote", "ui_verifiers", "openenv", "mobile_world"}
"""Environments whose options are tried in `remote/client/test_every_option.py`."""
WITH_PROGRAMS = {"desktop"}
"""Environments that need programs; their options are tried in `tests/real`."""
ASKED_BY_TASKS = {"questions"}
"""Environments that play nothing without a dataset; their options are tried in `test_questions.py`."""
SEEDS = range(4)
_CLICKS = ((25, 70), (80, 100), (40, 150), (130, 120))


def stumble(env: Any, turn: int) -> Action:
    """An action of a policy that does not look."""
    name = type(env).__name__
    if name in ("ScreenEnvironment", "ScreenSuite", "AppsEnvironment"):
        return Action.of("click", x=0, y=0)
    if name == "MiniWobEnvironment":
        x, y = _CLICKS[turn % 4]
        return Action.of("click", x=x, y=y)
    if name == "DataEntryEnvironment":
        return env.act_at(*env.page_state["button"]) or Action(text="")
    return Action(text={"GymnasiumEnvironment": "2", "SimpleGameEnvironment": "go north"}.get(name, "1"))


STATIC: dict[str, Callable[[Any], Any]] = {
    "told": lambda env: (env.get_prompt_prefix(), str(env.tool_schemas())),
    "turns": lambda env: env.max_turns,
    "mistake": lambda env: env.mistake_reward,
    "tasks": lambda env: env.tasks(),
    "format": lambda env: env.action_format,
}
"""What can be seen without an episode."""


def look(observation: Observation) -> tuple[str, list[str]]:
    return observation.text, [screenshot(image).hash for image in observation.images]


class Looker:
    """Remembers what can be seen of an environment, by its options."""

    def __init__(self, name: str, waits: list[float]) -> None:
        self.name, self._waits = name, waits
        self._seen: dict[str, Any] = {}

    async def seen(self, options: Mapping[str, Any], what: str) -> Any:
        """A ConfigError where the options are refused."""
        key = repr((what, sorted(options.items())))
        if key not in self._seen:
            try:
                env = create_environment(self.name, {**BASES.get(self.name, {}), **options})
                self._seen[key] = await self._look(env, what)
            except ConfigError as refused:
                self._seen[key] = refused
        return self._seen[key]

    async def _look(self, env: Any, what: str) -> Any:
        session = EnvironmentSession(env)
        # one page shows how it is drawn and what is waited for; what is drawn by chance shows in several
        drawn = isinstance(env, browser.PageEnvironment) and what in ("first", "pictures", "waits")
        seeds = SEEDS[:1] if drawn else SEEDS
        self._waits.clear()
        try:
            if what in STATIC:
                return STATIC[what](env)
            if what in ("first", "pictures"):
                seen = [look(await session.reset(None, seed)) for seed in seeds]
                return [text if what == "first" else pictures for text, pictures in seen]
            if what == "demonstration":
                plays = [await play_episode(session, seed=seed, turn_limit=20) for seed in seeds]
                return [(play.actions, [r.observation.tool_results for r in play.results]) for play in plays]
            plays = [await play_episode(session, lambda turn: stumble(env, turn), seed=seed) for seed in seeds]
            if what == "waits":
                return list(self._waits)
            if what == "success":
                return [play.success for play in plays]
            assert what == "stumbling", what
            return [([look(o) for o in play.observations], [r.reward for r in play.results]) for play in plays]
        finally:
            await session.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What environments in the browser slept; nothing sleeps."""
    slept: list[float] = []

    class NoSleep:
        timeout = staticmethod(asyncio.timeout)
        to_thread = staticmethod(asyncio.to_thread)

        @staticmethod
        async def sleep(seconds: float) -> None:
            slept.append(seconds)

    monkeypatch.setattr(browser, "asyncio", NoSleep)
    # rapidocr is no part of what these tests install; tests/real reads real pictures with it
    monkeypatch.setattr(browser, "reader", lambda: None)
    monkeypatch.setattr(browser, "words_read", lambda picture, limit: f'{picture.width},1 "word"'[:limit])
    return slept


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CASES)
async def test_every_option_changes_what_can_be_seen_or_is_refused(name: str, waits: list[float]) -> None:
    assert CASES[name].keys() == option_names(environment_class(name))
    looker, idle = Looker(name, waits), []
    for option, one in CASES[name].items():
        before = await looker.seen(one.beside, one.shows)
        assert not isinstance(before, ConfigError), (option, before)
        for value in one.values:
            after = await looker.seen({**one.beside, option: value}, one.shows)
            assert not isinstance(after, ConfigError), (option, value, after)
            if after == before:
                idle.append((option, value, one.beside))
            alone = await looker.seen({option: value}, one.shows)
            if isinstance(alone, ConfigError):
                assert option in str(alone), alone
            elif alone == await looker.seen({}, one.shows):
                idle.append((option, value, {}))
    assert not idle


def test_every_environment_is_tried() -> None:
    missing = ENVIRONMENTS.keys() - CASES.keys() - WITH_SERVERS - WITH_PROGRAMS - ASKED_BY_TASKS
    assert not missing, "add a case for each option to CASES"


@pytest.mark.parametrize("name", CASES)
def test_every_choice_of_an_option_is_tried(name: str) -> None:
    for option, one in CASES[name].items():
        fields = environment_class(name).options_class.model_fields
        default, hint = fields[option].default, fields[option].annotation
        choices = get_args(hint) if get_origin(hint) is Literal else (True, False) if hint is bool else ()
        assert default not in one.values, option
        elsewhere = TRIED_ELSEWHERE.get((name, option), ())
        assert all(choice in (default, *one.values, *elsewhere) for choice in choices), option


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        *((name, {"carelessness": 0.3}, "'expert' does not read carelessness") for name in ("screen", "calculator")),
        *((name, {"carelessness": 0.3}, "'expert' does not read carelessness") for name in ("lookup", "miniwob")),
        ("guess_number", {"carelessness": 0.3, "demonstrator": "random"}, "'random' does not read carelessness"),
        (
            "miniwob",
            {"carelessness": 2, "demonstrator": "careless"},
            "carelessness: got 2, expected number >= 0 and <= 1",
        ),
        ("miniwob", {"quality": 30}, "PNG has no quality, got 30; set image_format to 'jpeg'"),
        ("data_entry", {"quality": 30, "image_format": "png"}, "PNG has no quality"),
        ("data_entry", {"actions": []}, "actions is an empty list"),
        ("data_entry", {"actions": ["type"], "say_target": True}, "say_target is about clicks, .* type have none"),
        ("data_entry", {"actions": ["keys"], "coordinates": "grid_999"}, "coordinates='grid_999' is about positions"),
        ("gymnasium", {"env": gymnasium.Env, "make_options": {"size": 3}}, "leave make_options out"),
        (
            "gymnasium",
            {"env": "FrozenLake-v1", "max_turns": 0},
            "gymnasium.max_turns: got 0, expected whole number >= 1",
        ),
    ],
)
def test_an_option_that_nothing_reads_is_refused(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        create_environment(name, options)


def test_a_view_that_the_observations_do_not_have_is_refused() -> None:
    env = create_environment("gymnasium", {"env": "FrozenLake-v1", "view": "image"})
    with pytest.raises(ConfigError, match=r"needs observations that are uint8 pictures, got Discrete\(16\); 'rgb'"):
        env.reset()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_slip_tells_the_field_that_it_holds() -> None:
    env = create_environment("data_entry", {"level": 1, "fields": ["first"], "tell": True})
    session = EnvironmentSession(env)
    play = await play_episode(session, seed=0)
    await session.close()
    assert play.success is True
    typed = [call.arguments["text"] for action in play.actions for call in action.tool_calls if call.name == "type"]
    assert play.first.text.startswith(f"type {typed[0]} and submit")
