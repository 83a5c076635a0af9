"""BrowserGym's conventions on our pages, in a real Chromium: observations, action strings, mistakes, failures."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.environments.adapters.browsergym import BrowserGymEnvironment
from uirl.environments.adapters.browsergym_actions import FUNCTIONS, Unreadable, read_actions
from uirl.environments.browser.chromium import Chromium
from uirl.errors import ConfigError, ContractError, EnvironmentFailure
from uirl.types import ToolCall


@pytest.fixture
def colours() -> Iterator[BrowserGymEnvironment]:
    env = BrowserGymEnvironment("miniwob", {"task": "click-color", "max_turns": 8})
    yield env
    env.close()


def wanted_place(env: BrowserGymEnvironment) -> tuple[int, int]:
    action = env._episode.env.expert_action()
    assert action is not None
    return action.tool_calls[0].arguments["x"], action.tool_calls[0].arguments["y"]


def test_an_observation_is_browsergyms(colours: BrowserGymEnvironment) -> None:
    seen, info = colours.reset(seed=4)
    assert re.fullmatch(r"Click on the \w+ colored box\.", seen["goal"])
    assert seen["goal_object"] == ({"type": "text", "text": seen["goal"]},)
    assert seen["chat_messages"][0]["message"] == seen["goal"]
    assert seen["screenshot"].shape == (210, 160, 3)
    assert seen["screenshot"].dtype == np.uint8
    assert len(np.unique(seen["screenshot"].reshape(-1, 3), axis=0)) > 4
    assert seen["axtree_txt"].startswith('page "Click Color Task"')
    assert (seen["last_action"], seen["last_action_error"]) == ("", "")
    assert info["task_info"]["seed"] == 4
    again, _ = colours.reset(seed=4)
    assert np.array_equal(seen["screenshot"], again["screenshot"])


def test_the_right_click_is_paid_and_ends_the_episode(colours: BrowserGymEnvironment) -> None:
    colours.reset(seed=4)
    x, y = wanted_place(colours)
    seen, reward, terminated, truncated, _ = colours.step(f"mouse_click({x}, {y})")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert seen["screenshot"].shape == (210, 160, 3)
    with pytest.raises(ContractError, match="call reset first"):
        colours.step("noop()")


@pytest.mark.parametrize(
    ("action", "error"),
    [
        ("mouse_click(3)", "TypeError: mouse_click: missing a required argument: 'y'"),
        ("mouse_click(900, 3)", "x=900 is outside the picture"),
        ("mouse_klick(3, 3)", "did you mean 'mouse_click'"),
        ("mouse_click(3,", "SyntaxError"),
        ("", "empty action"),
        ("goto('https://example.com/')", "out of reach"),
        ("mouse_click(open('x'), 3)", "not all literals"),
        ("__import__('os').system('true')", "is no call of a function by its name"),
        ("click('3')", "no argument 'mark'"),
    ],
)
def test_a_mistake_is_told_and_the_episode_goes_on(colours: BrowserGymEnvironment, action: str, error: str) -> None:
    colours.reset(seed=4)
    before = colours._picture
    seen, reward, terminated, truncated, _ = colours.step(action)
    assert error in seen["last_action_error"]
    assert seen["last_action"] == action
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert np.array_equal(seen["screenshot"], before)
    seen, *_ = colours.step("mouse_move(1, 1)")
    assert seen["last_action_error"] == ""


def test_bids_are_the_numbers_on_the_picture() -> None:
    env = BrowserGymEnvironment("miniwob", {"task": "enter-text"}, bids=True)
    goal = env.reset(seed=3)[0]["goal"]
    word = re.findall('"(.*)"', goal)[0]
    seen, *_ = env.step(f"fill('1', 'wrong')\nfill('1', {word!r})")
    assert f'textbox = "{word}"' in seen["axtree_txt"]
    seen, reward, terminated, *_ = env.step("```\nclick('2')\n```")
    assert (reward, terminated, seen["last_action_error"]) == (1.0, True, "")
    env.close()


def test_after_a_mistake_the_rest_of_a_string_is_not_done(colours: BrowserGymEnvironment) -> None:
    colours.reset(seed=4)
    x, y = wanted_place(colours)
    seen, reward, terminated, *_ = colours.step(f"mouse_click(900, 1)\nmouse_click({x}, {y})")
    assert (reward, terminated) == (0.0, False)
    assert "outside the picture" in seen["last_action_error"]


def test_a_browser_that_dies_is_a_failure_and_not_a_reward(colours: BrowserGymEnvironment) -> None:
    colours.reset(seed=4)

    async def kill() -> None:
        pid = Chromium.shared().pid
        assert pid is not None
        os.killpg(pid, signal.SIGKILL)

    colours._run(kill())
    with pytest.raises(EnvironmentFailure):
        colours.step("mouse_click(3, 3)")
    with pytest.raises(EnvironmentFailure):
        colours.step("mouse_click(3, 3)")
    seen, _ = colours.reset(seed=4)
    assert seen["screenshot"].shape == (210, 160, 3)


def test_an_environment_without_a_screen_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one with a screen"):
        BrowserGymEnvironment("guess_number", {"n": 3})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("noop()", [ToolCall("wait", {"seconds": 1.0})]),
        ("noop(0)", []),
        ("mouse_click(x=1.5, y=2, button='right')", [ToolCall("right_click", {"x": 1.5, "y": 2})]),
        ("mouse_dblclick(1, 2)", [ToolCall("double_click", {"x": 1, "y": 2})]),
        ("mouse_drag_and_drop(1, 2, 3, 4)", [ToolCall("drag", {"x": 1, "y": 2, "to_x": 3, "to_y": 4})]),
        ("keyboard_press('ControlOrMeta+a')", [ToolCall("keys", {"keys": "Control+a"})]),
        ("keyboard_type('a\\'b\"')", [ToolCall("type", {"text": "a'b\""})]),
        ("scroll(0, 200)", [ToolCall("scroll", {"direction": "down", "amount": 4})]),
        ("scroll(-1, 0)", [ToolCall("scroll", {"direction": "left", "amount": 1})]),
        ("fill('12', '')", [ToolCall("triple_click", {"mark": 12}), ToolCall("keys", {"keys": "backspace"})]),
        ("send_msg_to_user('42')", [ToolCall("answer", {"text": "42"})]),
        ("report_infeasible('no field')", [ToolCall("terminate", {"status": "failure"})]),
    ],
)
def test_action_strings(text: str, calls: list[ToolCall]) -> None:
    assert [call for function in read_actions(text) for call in function] == calls


def read_or_told(text: str) -> bool:
    """Whether the string is calls of ours, or a sentence in BrowserGym's manner; any other exception passes through."""
    try:
        return all(isinstance(call, ToolCall) for function in read_actions(text) for call in function)
    except Unreadable as problem:
        return "Error: " in str(problem)


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda s: st.lists(s, max_size=2)
)


@given(st.sampled_from(sorted(FUNCTIONS)), st.lists(LITERALS, max_size=5))
def test_whatever_the_arguments_are_it_is_an_action_or_a_sentence(name: str, arguments: list[Any]) -> None:
    text = f"{name}({', '.join(map(repr, arguments))})"
    assert read_or_told(text)


@given(st.text(max_size=60))
def test_whatever_is_written_it_is_an_action_or_a_sentence(text: str) -> None:
    assert read_or_told(text)


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 15_000, "noop(" + "[" * 9_000 + "]" * 9_000 + ")", "noop();" * 2_000, "\0noop()"),
        *("a" + ".b" * 900, "noop(a" + ".b" * 9_000 + ")", "noop(" + "-" * 900 + "1)", "a" + "()" * 900),
        "not " * 900 + "a",
    ],
)
def test_a_string_made_to_hurt_is_a_sentence_too(text: str) -> None:
    with pytest.raises(Unreadable):
        read_actions(text)
