"""The vocabulary of user interface actions: what is read, and what a policy is told where it errs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.actions import ACTIONS, ActionSpace
from uirl.environments.ui.keys import read_chord
from uirl.errors import ConfigError
from uirl.parsers.json_action import JSONActionParser
from uirl.types import Action, ToolCall

SPACE = ActionSpace(160, 210)
GRID = ActionSpace(160, 210, coordinates="grid_999")
MARKED = ActionSpace(160, 210, marks=True)
HELD = ActionSpace(160, 210, modifiers=True)

READ: list[tuple[dict[str, Any], ui.UIAction]] = [
    ({"action": "click", "x": 0, "y": 209}, ui.Click(0, 209)),
    ({"action": "click", "target": "ok", "x": 3, "y": 4}, ui.Click(3, 4)),
    ({"action": "double_click", "x": 3, "y": 4}, ui.Click(3, 4, "left", 2)),
    ({"action": "triple_click", "x": 3, "y": 4}, ui.Click(3, 4, "left", 3)),
    ({"action": "right_click", "x": 3, "y": 4}, ui.Click(3, 4, "right", 1)),
    ({"action": "middle_click", "x": 3, "y": 4}, ui.Click(3, 4, "middle", 1)),
    ({"action": "mouse_down", "x": 3, "y": 4}, ui.MouseButton(3, 4, "left", True)),
    ({"action": "mouse_up", "x": 3, "y": 4, "button": "right"}, ui.MouseButton(3, 4, "right", False)),
    ({"action": "key_down", "key": "Shift"}, ui.HoldKey("shift", True)),
    ({"action": "key_up", "key": "a"}, ui.HoldKey("a", False)),
    ({"action": "insert", "text": "ab"}, ui.Insert("ab")),
    ({"action": "fill", "x": 3, "y": 4, "value": ""}, ui.Fill(3, 4, None, "")),
    ({"action": "focus", "x": 3, "y": 4}, ui.Focus(3, 4)),
    ({"action": "select", "x": 3, "y": 4, "options": "red"}, ui.Select(3, 4, None, ("red",))),
    ({"action": "select", "x": 3, "y": 4, "options": ["red", "blue"]}, ui.Select(3, 4, None, ("red", "blue"))),
    ({"action": "upload", "files": []}, ui.Upload(None, None, None, ())),
    ({"action": "upload", "x": 3, "y": 4, "files": "a.pdf"}, ui.Upload(3, 4, None, ("a.pdf",))),
    ({"action": "forward"}, ui.Forward()),
    ({"action": "new_tab"}, ui.NewTab()),
    ({"action": "switch_tab", "tab": 2}, ui.SwitchTab(2)),
    ({"action": "close_tab"}, ui.CloseTab()),
    ({"action": "dialog", "choice": "ok"}, ui.AnswerDialog("ok")),
    ({"action": "dialog", "choice": "cancel", "text": "7"}, ui.AnswerDialog("cancel", "7")),
    ({"action": "move", "x": 3.0, "y": 4}, ui.Move(3, 4)),
    ({"action": "drag", "x": 3, "y": 4, "to_x": 159, "to_y": 0}, ui.Drag(3, 4, 159, 0)),
    ({"action": "type", "text": " ä\n"}, ui.Type(" ä\n")),
    ({"action": "keys", "keys": "ctrl+a"}, ui.Keys(("ctrl", "a"))),
    ({"action": "scroll", "direction": "down"}, ui.Scroll("down", 3, None, None)),
    ({"action": "scroll", "direction": "left", "amount": 1, "x": 5, "y": 6}, ui.Scroll("left", 1, 5, 6)),
    ({"action": "wait"}, ui.Wait(1.0)),
    ({"action": "wait", "seconds": 0}, ui.Wait(0.0)),
    ({"action": "back"}, ui.Back()),
    ({"action": "goto", "url": "https://example.com/a?b#c"}, ui.Goto("https://example.com/a?b#c")),
    ({"action": "answer", "text": "42"}, ui.Answer("42")),
    ({"action": "terminate", "status": "success"}, ui.Terminate("success")),
    ({"action": "terminate", "status": "fail"}, ui.Terminate("failure")),
    ({"action": "screenshot"}, ui.LookAgain()),
]


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


@pytest.mark.parametrize(("written", "meant"), READ)
def test_a_reply_becomes_a_typed_action_that_nobody_can_change(written: dict[str, Any], meant: ui.UIAction) -> None:
    got = SPACE.read(JSONActionParser().parse(json.dumps(written)))
    assert got == meant
    assert type(got) is type(meant)
    assert got.name == written["action"]
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        got.x = 5  # type: ignore[union-attr, misc]
    assert SPACE.read_call(SPACE.write(meant)) == meant, "what an expert writes is read as it was meant"


def test_every_action_of_the_vocabulary_is_read_here() -> None:
    assert {written["action"] for written, _ in READ} == set(ACTIONS)


MISTAKES: list[tuple[ActionSpace, ToolCall, str]] = [
    (SPACE, call("tap", x=1, y=1), "unknown action 'tap'; expected click, double_click, "),
    (ActionSpace(9, 9, ("click",)), call("type", text="a"), "unknown action 'type'; expected 'click'"),
    (SPACE, call("click", x=1), "click needs numbers x and y; got y=None"),
    (SPACE, call("click", x=True, y=1), "click needs numbers x and y; got x=True"),
    (SPACE, call("click", x=160, y=1), "x=160 is outside the picture; expected 0 to 159"),
    (SPACE, call("click", x=1, y=-0.5), "y=-0.5 is outside the picture; expected 0 to 209"),
    (SPACE, call("click", x=1, y=10**5000), "y=a number of more than 40 digits is outside the picture"),
    (GRID, call("click", x=1, y=999.5), "y=999.5 is outside the picture; expected 0 to 999"),
    (SPACE, call("click", x=1, y=1, colour="red"), "click has no argument 'colour'; expected x, y"),
    (SPACE, call("back", x=1), "back has no argument 'x'; expected none"),
    (SPACE, call("click", mark=3), "click has no argument 'mark'; expected x, y"),
    (MARKED, call("click", mark=0), "click needs a whole number mark from 1 to 9999; got 0"),
    (MARKED, call("click", mark=1, x=1, y=1), "click takes a mark, or x and y; got both"),
    (SPACE, call("drag", x=1, y=1, to_x=160, to_y=1), "to_x=160 is outside the picture; expected 0 to 159"),
    (SPACE, call("type"), "type needs a text text; got None"),
    (SPACE, call("type", text="a" * 10_001), "type takes at most 10000 characters; got 10001"),
    (SPACE, call("type", text="\ud800"), "type needs text of whole characters"),
    (SPACE, call("keys", keys="ctrl+zzz"), "unknown key 'zzz'; "),
    (SPACE, call("scroll", direction="sideways"), "scroll needs direction, one of up, down, left, right; got 'side"),
    (SPACE, call("scroll", direction="up", amount=1.5), "scroll needs a whole number amount from 1 to 50; got 1.5"),
    (SPACE, call("wait", seconds=11), "wait needs seconds from 0 to 10; got 11"),
    (SPACE, call("goto", url="a b"), "goto needs an address without spaces; got 'a b'"),
    (SPACE, call("click", x=1, y=1, modifiers="ctrl"), "click has no argument 'modifiers'; expected x, y"),
    (HELD, call("click", x=1, y=1, modifiers="a"), "modifiers are of ctrl, alt, shift, meta; got 'a'"),
    (HELD, call("click", x=1, y=1, modifiers=3), "click needs a text modifiers; got 3"),
    (SPACE, call("mouse_down", x=1, y=1, button="thumb"), "mouse_down needs button, one of left, right, middle; got"),
    (SPACE, call("key_down", key="ctrl+a"), "key_down takes one key; got ctrl+a"),
    (SPACE, call("select", x=1, y=1, options=3), "select needs options, a text or a list of texts; got 3"),
    (SPACE, call("upload", files=["a"] * 51), "upload takes at most 50 files of 10000 characters"),
    (MARKED, call("drag", mark=1, to_x=3, to_y=4), "drag takes a mark, or x and y; got both"),
    (SPACE, call("dialog", choice="yes"), "dialog needs choice, one of ok, cancel; got 'yes'"),
    (SPACE, call("terminate", status="done"), "terminate needs status, one of success, failure, fail; got 'done'"),
]


@pytest.mark.parametrize(("space", "written", "told"), MISTAKES)
def test_a_mistake_is_a_sentence_of_one_line(space: ActionSpace, written: ToolCall, told: str) -> None:
    got = space.read_call(written)
    assert isinstance(got, str)
    assert got.startswith(told)
    assert "\n" not in got
    assert len(got) < 320


def test_a_reply_without_exactly_one_action() -> None:
    assert SPACE.read(Action(text="?", parse_error="no JSON object")) == "no JSON object"
    assert SPACE.read(Action(text="I am done")) == 'no action; expected {"action":"click","x":32,"y":63}'
    twice = Action(tool_calls=(call("click", x=1, y=1), call("back")))
    assert SPACE.read(twice) == "2 actions in one reply; expected one"


def test_grid_coordinates_are_truncated_shares_of_999() -> None:
    # 500 / 999 * 160 = 80.08, 500 / 999 * 210 = 105.1
    assert GRID.read_call(call("click", x=500, y=500)) == ui.Click(80, 105)
    # 499 / 999 * 160 = 79.9: truncated, not rounded
    assert GRID.read_call(call("click", x=499, y=0)) == ui.Click(79, 0)
    assert GRID.read_call(call("click", x=999, y=999)) == ui.Click(159, 209), "the last pixel, not the one after it"
    assert GRID.read_call(call("click", x=499.9, y=0)) == ui.Click(80, 0)


def test_a_fraction_of_a_pixel_is_in_that_pixel() -> None:
    assert SPACE.read_call(call("click", x=159.9, y=0.9)) == ui.Click(159, 0)


@given(st.integers(1, 999), st.data())
def test_what_an_expert_writes_on_the_grid_is_the_pixel_it_meant(size: int, data: st.DataObject) -> None:
    space = ActionSpace(size, size, coordinates="grid_999")
    x, y = (data.draw(st.integers(0, size - 1)) for _ in "xy")
    assert space.read_call(space.write(ui.Click(x, y))) == ui.Click(x, y)


@given(st.sampled_from(sorted(ACTIONS)), st.dictionaries(
    st.sampled_from(["x", "y", "to_x", "to_y", "text", "keys", "direction", "amount", "seconds", "url", "status",
                     "mark", "target", "other", "to_mark", "modifiers", "button", "key", "value", "options", "files",
                     "tab", "choice"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
    | st.sampled_from(["up", "success", "ctrl+a", "++", "+", " ", "ctrl+"]),
))  # fmt: skip
def test_nothing_a_policy_writes_raises(name: str, arguments: dict[str, Any]) -> None:
    for space in (SPACE, GRID, MARKED, HELD):
        got = space.read_call(ToolCall(name, arguments))
        if isinstance(got, ui.Click | ui.Move):
            assert 0 <= got.x < 160
            assert 0 <= got.y < 210


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("Return", ("enter",)),
        ("CTRL + Shift+T", ("ctrl", "shift", "t")),
        ("control+control+c", ("ctrl", "c")),
        ("ctrl++", ("ctrl", "+")),
        ("+", ("+",)),
        (" ", ("space",)),
        ("ArrowLeft", ("left",)),
        ("/", ("/",)),
        ("Control_L+a", ("ctrl", "a")),
        ("Alt_R+Tab", ("alt", "tab")),
        ("Ctrl-Shift-T", ("ctrl", "shift", "t")),
        ("page down", ("pagedown",)),
        ("-", ("-",)),
        ("ctrl+parenleft", ("ctrl", "(")),
    ],
)
def test_chords_in_many_spellings(written: str, keys: tuple[str, ...]) -> None:
    assert read_chord(written) == keys


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("a+b", "one key beside ctrl, alt, shift, meta; got a and b"),
        ("ctrl+", "empty name between two"),
        ("ctrl++a", "empty name between two"),
        ("", "empty name"),
        ("entr", "did you mean 'enter'"),
        ("ä", "unknown key 'ä'"),
    ],
)
def test_chords_that_are_none(written: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_chord(written)


@pytest.mark.parametrize("space", [SPACE, GRID, MARKED, HELD, ActionSpace(1, 1, targets=True)])
def test_the_schemas_and_the_examples_agree_with_the_reading(space: ActionSpace) -> None:
    schemas = {schema["function"]["name"]: schema["function"]["parameters"] for schema in space.schemas()}
    assert list(schemas) == list(ACTIONS)
    lines = space.describe().splitlines()
    assert len(lines) == len(ACTIONS) + 1
    for name, line in zip(ACTIONS, lines, strict=False):
        example = json.JSONDecoder().raw_decode(line)[0]
        assert example.pop("action") == name
        assert not isinstance(space.read_call(ToolCall(name, example)), str), line
        Draft202012Validator.check_schema(schemas[name])
        Draft202012Validator(schemas[name]).validate(example)
        assert ("modifiers" in schemas[name].get("properties", {})) == (space.modifiers and name in ui.CLICKS)
        assert set(ACTIONS[name].arguments) <= set(schemas[name].get("properties", {}))


def test_the_target_comes_before_the_coordinates() -> None:
    space = ActionSpace(160, 210, ("click",), targets=True)
    assert space.describe().splitlines()[0].startswith('{"action":"click","target":"ok","x":32,"y":63}')
    assert list(space.schemas()[0]["function"]["parameters"]["properties"]) == ["target", "x", "y"]
    written = space.write(ui.Click(5, 6), target="red")
    assert list(written.arguments.items()) == [("target", "red"), ("x", 5), ("y", 6)]


def test_a_space_of_marks_takes_both() -> None:
    assert MARKED.read_call(call("click", mark=7)) == ui.ClickMark(7)
    assert MARKED.read_call(call("right_click", mark=7)) == ui.ClickMark(7, "right")
    assert MARKED.read_call(MARKED.write(ui.ClickMark(7, "left", 2))) == ui.ClickMark(7, "left", 2)
    assert MARKED.read_call(call("click", x=1, y=2)) == ui.Click(1, 2)
    assert MARKED.read_call(call("move", mark=7)) == ui.MoveToMark(7)
    assert MARKED.read_call(call("drag", mark=7, to_mark=8)) == ui.DragMark(7, 8)
    assert MARKED.read_call(call("fill", mark=7, value="a")) == ui.Fill(mark=7, value="a")
    for action in (
        ui.MoveToMark(7),
        ui.DragMark(7, 8),
        ui.Select(mark=3, options=("a", "b")),
        ui.Upload(mark=1, files=()),
    ):
        assert MARKED.read_call(MARKED.write(action)) == action
    assert isinstance(MARKED.read_call(call("mouse_down", mark=7)), str)


def test_keys_may_be_held_with_a_click() -> None:
    for written in ("ctrl+Shift", ["Control", "shift"]):
        assert HELD.read_call(call("click", x=1, y=2, modifiers=written)) == ui.Click(1, 2, modifiers=("ctrl", "shift"))
    assert HELD.read_call(call("click", x=1, y=2, modifiers=[])) == ui.Click(1, 2)
    action = ui.Click(1, 2, "right", 1, ("ctrl", "shift"))
    assert HELD.write(action).arguments == {"x": 1, "y": 2, "modifiers": "ctrl+shift"}
    assert HELD.read_call(HELD.write(action)) == action


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"names": ("clik",)}, "did you mean 'click'"),
        ({"coordinates": "grid"}, "coordinates must be 'pixels' or 'grid_999'"),
        ({"width": 0}, "at least one pixel"),
    ],
)
def test_spaces_that_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ActionSpace(**{"width": 10, "height": 10, **options})


def test_the_vocabulary_loads_no_torch() -> None:
    program = "import sys, uirl.environments.ui.actions; print('torch' in sys.modules, 'PIL' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False False"
