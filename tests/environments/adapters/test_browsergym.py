"""BrowserGym's conventions on our pages, in a real Chromium: observations, action strings, mistakes, failures."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.environments.browser.test_features import FeaturePage
from tests.patience import PATIENCE
from uirl.environments.adapters.browsergym import BrowserGymEnvironment
from uirl.environments.adapters.browsergym_actions import FUNCTIONS, Unreadable, describe_actions, read_actions
from uirl.errors import ConfigError, ContractError
from uirl.types import Observation, ToolCall


@pytest.fixture
def colours(one_browser: None) -> Iterator[BrowserGymEnvironment]:
    env = BrowserGymEnvironment("miniwob", {"task": "click-color", "max_turns": 8})
    yield env
    env.close()


def wanted_place(env: BrowserGymEnvironment) -> tuple[int, int]:
    action = env._episode.env.expert_action()
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


MISTAKES = {
    "mouse_click(3)": "TypeError: mouse_click: missing a required argument: 'y'",
    "mouse_click(900, 3)": "x=900 is outside the picture",
    "mouse_klick(3, 3)": "did you mean 'mouse_click'",
    "mouse_click(3,": "SyntaxError",
    "": "empty action",
    "goto('https://example.com/')": "out of reach",
    "mouse_click(open('x'), 3)": "not all literals",
    "__import__('os').system('true')": "is no call of a function by its name",
    "click('3')": "no argument 'mark'",
}


def test_a_mistake_is_told_and_the_episode_goes_on(one_browser: None) -> None:
    env = BrowserGymEnvironment("miniwob", {"task": "click-color", "max_turns": 2 * len(MISTAKES) + 1})
    before = env.reset(seed=4)[0]["screenshot"]
    for action, error in MISTAKES.items():
        seen, reward, terminated, truncated, _ = env.step(action)
        assert error in seen["last_action_error"]
        assert seen["last_action"] == action
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert np.array_equal(seen["screenshot"], before)
        seen, *_ = env.step("mouse_move(1, 1)")
        assert seen["last_action_error"] == ""
    env.close()


@pytest.mark.usefixtures("one_browser")
def test_bids_are_the_numbers_on_the_picture() -> None:
    env = BrowserGymEnvironment("miniwob", {"task": "enter-text"}, bids=True)
    goal = env.reset(seed=3)[0]["goal"]
    word = re.findall('"(.*)"', goal)[0]
    seen, *_ = env.step(f"fill('1', 'wrong')\nfill('1', {word!r})")
    assert f'textbox = "{word}"' in seen["axtree_txt"]
    seen, reward, terminated, *_ = env.step("```\nclick('2')\n```")
    assert (reward, terminated, seen["last_action_error"]) == (1.0, True, "")
    env.close()


@pytest.fixture
def opened(one_browser: None) -> Iterator[Callable[[str], BrowserGymEnvironment]]:
    """Opens one of the small pages for an agent that reads the tree alone."""
    running: list[BrowserGymEnvironment] = []

    def open_page(page: str) -> BrowserGymEnvironment:
        running.append(BrowserGymEnvironment(FeaturePage(page, marks=True, tree=4000)))
        running[-1].reset(seed=1)
        return running[-1]

    yield open_page
    for env in running:
        env.close()


def bid(seen: dict[str, Any], what: str) -> str:
    """The number of the element of the tree whose line holds `what`."""
    lines = [line for line in seen["axtree_txt"].splitlines() if what in line]
    return re.findall(r"\[(\d+)\]", lines[0])[0]


@pytest.mark.parametrize(
    ("page", "actions"),
    [
        ("frame_nested.html", ["click({inside})"]),
        ("frame_field.html", ["fill({textbox}, 'Ad')", "press({textbox}, 'End')\nkeyboard_press('a')"]),
        ("upload.html", ["upload_file({button}, ['mine.txt', 'yours.txt'])"]),
        ("multiple.html", ['click({option "x})', "click({option \"z}, modifiers=['ControlOrMeta'])"]),
        ("tab_back.html", ["click({advert})", "tab_focus(0)", "click({go on})"]),
        ("confirm.html", ["click({tidy up})", "keyboard_press('Escape')"]),
    ],
)
def test_an_agent_that_reads_the_tree_alone_solves_the_page(
    opened: Callable[[str], BrowserGymEnvironment], page: str, actions: list[str]
) -> None:
    env = opened(page)
    seen, reward = env._observe(Observation(), "", ""), 0.0
    deadline = time.monotonic() + PATIENCE  # what another process does is seen when it finds the time
    for action in actions:
        for name in re.findall(r"\{([^}]*)\}", action):
            action = action.replace(f"{{{name}}}", repr(bid(seen, name)))
        while action.startswith("tab_") and len(seen["open_pages_urls"]) == 1:
            seen, *_ = env.step("noop(100)")
        seen, reward, *_ = env.step(action)
        assert seen["last_action_error"] == ""
    while reward != 1.0 and time.monotonic() < deadline:
        _, reward, *_ = env.step("noop(100)")
    assert reward == 1.0


def test_tabs_and_what_the_page_says_are_told_as_browsergym_tells_them(
    opened: Callable[[str], BrowserGymEnvironment],
) -> None:
    env = opened("tab_back.html")
    seen, *_ = env.step("mouse_click(20, 20)")
    assert seen["open_pages_urls"] == ("http://app.localhost/", "http://app.localhost/tab_second.html")
    assert set(seen["open_pages_titles"][1:]) <= {"second", "app.localhost/tab_second.html", ""}, "once it is known"
    assert seen["active_page_index"].tolist() == [1]
    assert seen["url"] == "http://app.localhost/tab_second.html"
    assert [message["role"] for message in seen["chat_messages"]] == ["user", "info"]
    assert "a new tab was opened: 2" in seen["chat_messages"][1]["message"]
    seen, *_ = env.step("tab_focus(7)")
    assert seen["last_action_error"] == "there is no tab 8; expected 1 to 2"


def test_after_a_mistake_the_rest_of_a_string_is_not_done(colours: BrowserGymEnvironment) -> None:
    colours.reset(seed=4)
    x, y = wanted_place(colours)
    seen, reward, terminated, *_ = colours.step(f"mouse_click(900, 1)\nmouse_click({x}, {y})")
    assert (reward, terminated) == (0.0, False)
    assert "outside the picture" in seen["last_action_error"]


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
        ("keyboard_press('ControlOrMeta+a')", [ToolCall("keys", {"keys": "ControlOrMeta+a"})]),
        ("\0noop(0)", []),
        ("keyboard_type('a\\'b\"')", [ToolCall("type", {"text": "a'b\""})]),
        ("scroll(0, 200)", [ToolCall("scroll", {"direction": "down", "amount": 4})]),
        ("scroll(-1, 0)", [ToolCall("scroll", {"direction": "left", "amount": 1})]),
        ("fill('12', '')", [ToolCall("fill", {"mark": 12, "value": ""})]),
        ("fill('12', 'Mon', True)", [ToolCall("fill", {"mark": 12, "value": "Mo"}), ToolCall("type", {"text": "n"})]),
        ("click('3', modifiers=['Shift'])", [ToolCall("click", {"mark": 3, "modifiers": ["Shift"]})]),
        ("click('3', 'middle')", [ToolCall("middle_click", {"mark": 3})]),
        ("dblclick('3', button='right')", [ToolCall("right_click", {"mark": 3})] * 2),
        ("hover('3')", [ToolCall("move", {"mark": 3})]),
        ("focus('3')", [ToolCall("focus", {"mark": 3})]),
        ("clear('3')", [ToolCall("fill", {"mark": 3, "value": ""})]),
        (
            "press('3', 'ControlOrMeta+a')",
            [ToolCall("focus", {"mark": 3}), ToolCall("keys", {"keys": "ControlOrMeta+a"})],
        ),
        ("keyboard_press('A')", [ToolCall("keys", {"keys": "shift+A"})]),
        ("select_option('3', ['a', 'b'])", [ToolCall("select", {"mark": 3, "options": ["a", "b"]})]),
        ("drag_and_drop('3', '4')", [ToolCall("drag", {"mark": 3, "to_mark": 4})]),
        ("upload_file('3', 'cv.pdf')", [ToolCall("upload", {"mark": 3, "files": "cv.pdf"})]),
        ("mouse_upload_file(1, 2, ['a', 'b'])", [ToolCall("upload", {"x": 1, "y": 2, "files": ["a", "b"]})]),
        ("mouse_down(1, 2, 'right')", [ToolCall("mouse_down", {"x": 1, "y": 2, "button": "right"})]),
        ("mouse_up(1, 2)", [ToolCall("mouse_up", {"x": 1, "y": 2, "button": "left"})]),
        ("keyboard_down('Shift')", [ToolCall("key_down", {"key": "Shift"})]),
        ("keyboard_up('Shift')", [ToolCall("key_up", {"key": "Shift"})]),
        ("keyboard_insert_text('ab')", [ToolCall("insert", {"text": "ab"})]),
        ("scroll_at(5, 6, 0, 106)", [ToolCall("scroll", {"direction": "down", "amount": 2, "x": 5, "y": 6})]),
        ("scroll(0, 5000)", [ToolCall("scroll", {"direction": "down", "amount": amount}) for amount in (50, 44)]),
        ("go_forward()", [ToolCall("forward")]),
        ("new_tab()", [ToolCall("new_tab")]),
        ("tab_focus(1)", [ToolCall("switch_tab", {"tab": 2})]),
        ("tab_close()", [ToolCall("close_tab")]),
        ("I see a box.\n```python\nnoop(0)\nhover('3')\n```\nThat is it.", [ToolCall("move", {"mark": 3})]),
        ("```click('3')```", [ToolCall("click", {"mark": 3})]),
        ("The (red) box is 3: click('3') and then go_back()", [ToolCall("click", {"mark": 3}), ToolCall("back")]),
        ("fill('3', 'a) click(4)') is what I do", [ToolCall("fill", {"mark": 3, "value": "a) click(4)"})]),
        ("send_msg_to_user('42')", [ToolCall("answer", {"text": "42"})]),
        ("report_infeasible('no field')", [ToolCall("terminate", {"status": "failure"})]),
    ],
)
def test_action_strings(text: str, calls: list[ToolCall]) -> None:
    assert [call for function in read_actions(text) for call in function] == calls


# name -> arguments of `HighLevelActionSet` in browsergym-core 0.14.3, browsergym/core/action/functions.py (Apache 2.0)
SIGNATURES = {
    "send_msg_to_user": "(text)",
    "report_infeasible": "(reason)",
    "noop": "(wait_ms=1000)",
    "fill": "(bid, value, enable_autocomplete_menu=False)",
    "select_option": "(bid, options)",
    "click": "(bid, button='left', modifiers=())",
    "dblclick": "(bid, button='left', modifiers=())",
    "hover": "(bid)",
    "press": "(bid, key_comb)",
    "focus": "(bid)",
    "clear": "(bid)",
    "drag_and_drop": "(from_bid, to_bid)",
    "scroll": "(delta_x, delta_y)",
    "scroll_at": "(x, y, dx, dy)",
    "mouse_move": "(x, y)",
    "mouse_up": "(x, y, button='left')",
    "mouse_down": "(x, y, button='left')",
    "mouse_click": "(x, y, button='left')",
    "mouse_dblclick": "(x, y, button='left')",
    "mouse_drag_and_drop": "(from_x, from_y, to_x, to_y)",
    "keyboard_press": "(key)",
    "keyboard_up": "(key)",
    "keyboard_down": "(key)",
    "keyboard_type": "(text)",
    "keyboard_insert_text": "(text)",
    "goto": "(url)",
    "go_back": "()",
    "go_forward": "()",
    "new_tab": "()",
    "tab_close": "()",
    "tab_focus": "(index)",
    "upload_file": "(bid, file)",
    "mouse_upload_file": "(x, y, file)",
}


def test_every_function_of_browsergym_is_read_with_its_arguments() -> None:
    ours = dict(re.match(r"(\w+)(\(.*?\))  ", line).groups() for line in describe_actions().splitlines())  # type: ignore[union-attr, misc]
    assert ours == SIGNATURES
    assert set(FUNCTIONS) == set(SIGNATURES)


@pytest.mark.parametrize(
    "action", ["tab_focus(-1)", "click('3', 'thumb')", "click('3', modifiers='Shift')", "hover('a')"]
)
def test_arguments_that_are_none_are_told(action: str) -> None:
    with pytest.raises(Unreadable, match="ValueError: "):
        read_actions(action)


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
        *("(" * 15_000, "noop(" + "[" * 9_000 + "]" * 9_000 + ")", "noop();" * 2_000),
        *("a" + ".b" * 900, "noop(a" + ".b" * 9_000 + ")", "noop(" + "-" * 900 + "1)", "a" + "()" * 900),
        "not " * 900 + "a",
        # numbers that Python reads and refuses to write; an f-string that it cannot write either
        *("click(0x" + "f" * 5_000 + ")", "x = 0x" + "f" * 5_000, "send_msg_to_user([0x" + "f" * 5_000 + "])"),
        "x = f'{\"\a\"}'",
    ],
)
def test_a_string_made_to_hurt_is_a_sentence_too(text: str) -> None:
    with pytest.raises(Unreadable):
        read_actions(text)
