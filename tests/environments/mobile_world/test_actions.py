"""Calls in the words of MAI-UI become what the server takes, and nothing it does not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.environments.mobile_world.double import Step
from uirl.environments.mobile_world.actions import ACTIONS, PhoneSpace, Terminate, UseTool, command
from uirl.parsers.mai_ui import ACTIONS as WRITTEN
from uirl.types import Action, ToolCall

SPACE = PhoneSpace(1080, 2400, tools=frozenset({"add"}))


def sent(name: str, **arguments: Any) -> Any:
    """What the server is sent; a str: what the policy is told."""
    meant = SPACE.read(Action.of(name, **arguments))
    return meant if isinstance(meant, str) else command(meant)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        # 500 / 999 * 1080 = 540.54, 250 / 999 * 2400 = 600.6: truncated
        (("click", {"coordinate": [500, 250]}), {"action_type": "click", "x": 540, "y": 600}),
        # one past the last pixel, as MobileWorld's own agent sends it; and farther out
        (("click", {"coordinate": [999, 999]}), {"action_type": "click", "x": 1080, "y": 2400}),
        (("click", {"coordinate": [1000, -5]}), {"action_type": "click", "x": 1081, "y": -12}),
        (("click", {"coordinate": [0, 0.5]}), {"action_type": "click", "x": 0, "y": 1}),
        # the middle of a box, swapped or not
        (("click", {"coordinate": [400, 200, 600, 300]}), {"action_type": "click", "x": 540, "y": 600}),
        (
            ("drag", {"start_coordinate": [0, 0, 0, 0], "end_coordinate": [500, 998, 501, 1000]}),
            {"action_type": "drag", "start_x": 0, "start_y": 0, "end_x": 541, "end_y": 2400},
        ),
        (("double_click", {"coordinate": [1, 1]}), {"action_type": "double_tap", "x": 1, "y": 2}),
        (("long_press", {"coordinate": [1, 1]}), {"action_type": "long_press", "x": 1, "y": 2}),
        (
            ("drag", {"start_coordinate": [0, 0], "end_coordinate": [500.5, 999]}),
            {"action_type": "drag", "start_x": 0, "start_y": 0, "end_x": 541, "end_y": 2400},
        ),
        (
            ("drag", {"start_coordinate": [999, 0]}),
            {"action_type": "drag", "start_x": 1080, "start_y": 0, "end_x": 0, "end_y": 0},
        ),
        (("type", {"text": "é 東"}), {"action_type": "input_text", "text": "é 東"}),
        (("type", {"text": 7}), {"action_type": "input_text", "text": "7"}),
        (("swipe", {}), {"action_type": "scroll", "direction": "down"}),
        (("swipe", {"direction": "up", "coordinate": []}), {"action_type": "scroll", "direction": "down"}),
        (("swipe", {"direction": "down", "coordinate": [1, 1]}), {"action_type": "scroll", "direction": "up"}),
        (("swipe", {"direction": "left"}), {"action_type": "swipe", "direction": "left"}),
        (
            ("swipe", {"direction": "right", "coordinate": [100, 100]}),
            {"action_type": "swipe", "direction": "right", "x": 108, "y": 240},
        ),
        (("open", {"text": "FILES"}), {"action_type": "open_app", "app_name": "Files"}),
        (("system_button", {"button": "back"}), {"action_type": "navigate_back"}),
        (("system_button", {"button": "enter"}), {"action_type": "keyboard_enter"}),
        (("wait", {}), {"action_type": "wait"}),
        (("answer", {"text": "7"}), {"action_type": "answer", "text": "7"}),
        (("answer", {"text": 42}), {"action_type": "answer", "text": "42"}),
        (("answer", {}), {"action_type": "answer", "text": ""}),
        (("ask_user", {"text": "Who?"}), {"action_type": "ask_user", "text": "Who?"}),
        (("terminate", {"status": "fail"}), None),
        (("add", {"a": 1}), None),
    ],
)
def test_what_is_sent(call: tuple[str, dict[str, Any]], wanted: Any) -> None:
    assert sent(call[0], **call[1]) == wanted


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("click", {}), '"coordinate": [x,y] between 0 and 999; got None'),
        (("click", {"coordinate": [9991, 5]}), "got [9991, 5]"),
        (("click", {"coordinate": [True, 5]}), "got [True, 5]"),
        (("click", {"coordinate": [float("nan"), 5]}), "got [nan, 5]"),
        (("click", {"coordinate": [1, 2, 3]}), "got [1, 2, 3]"),
        (("click", {"coordinate": [1e308, 1e308, 1e308, 1e308]}), "click needs"),
        (("click", {"coordinate": [1, True, 3, 4]}), "click needs"),
        (("type", {"text": ""}), "type needs a text; got ''"),
        (("type", {"text": "\ud800"}), "half of a surrogate pair"),
        (("type", {"text": "x" * 10_001}), "at most 10000 characters"),
        (("ask_user", {}), "ask_user needs a text"),
        (("swipe", {"direction": "north"}), "one of up, down, left, right; got 'north'"),
        (("swipe", {"direction": "left", "coordinate": [10, 500]}), "leaves the screen"),
        (("swipe", {"direction": "right", "coordinate": [990, 500]}), "leaves the screen"),
        (("open", {"text": "Setings"}), "did you mean 'Settings'?"),
        (("system_button", {"button": "menu"}), "one of back, home, enter; got 'menu'"),
        (("jump", {}), "unknown action 'jump'; expected one of click, "),
    ],
)
def test_what_the_policy_is_told(call: tuple[str, dict[str, Any]], words: str) -> None:
    told = sent(call[0], **call[1])
    assert isinstance(told, str)
    assert words in told


def test_replies_that_are_no_single_action() -> None:
    assert SPACE.read(Action(parse_error="no call")) == "no call"
    assert SPACE.read(Action("hm")) == "no actions in the reply; expected one"
    two = Action(tool_calls=(ToolCall("wait"), ToolCall("wait")))
    assert SPACE.read(two) == "2 actions in the reply; expected one"


def test_questions_may_be_left_out_and_tools_come_and_go() -> None:
    silent = PhoneSpace(1080, 2400, ask_user=False)
    assert "unknown action 'ask_user'" in str(silent.read(Action.of("ask_user", text="?")))
    assert "unknown action 'add'" in str(silent.read(Action.of("add", a=1)))
    assert SPACE.read(Action.of("add", a=1)) == UseTool(ToolCall("add", {"a": 1}))


def test_the_parser_and_the_phone_know_the_same_actions() -> None:
    assert set(WRITTEN) == ACTIONS


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 1100),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.floats(-5, 1100), st.integers(-5, 1100)), max_size=4),
    st.sampled_from(["up", "left", "back", "success", "Settings"]),
)
keys = st.sampled_from(["coordinate", "start_coordinate", "end_coordinate", "text", "direction", "button", "status"])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(ACTIONS)), st.dictionaries(keys, values, max_size=7))
def test_no_call_makes_the_server_err(name: str, arguments: dict[str, Any]) -> None:
    order = sent(name, **arguments)
    if not isinstance(order, dict):
        return
    # what JSON cannot carry, and what the server's model refuses, would raise here
    request = httpx.Request("POST", "http://x", json=order)
    step = Step.model_validate_json(request.content)
    assert step.model_dump(exclude_none=True) == order
    assert all(abs(order[key]) <= 10 * 1080 for key in order if key.endswith("x"))
    assert all(abs(order[key]) <= 10 * 2400 for key in order if key.endswith("y"))
    assert order.get("text") != "" or name == "answer"


@pytest.mark.parametrize(("status", "claimed"), [("success", "success"), ("Fail", "failure"), ("done", "failure")])
def test_an_end_claims_success_where_it_says_so(status: str, claimed: str) -> None:
    assert SPACE.read(Action.of("terminate", status=status)) == Terminate(claimed)  # type: ignore[arg-type]
