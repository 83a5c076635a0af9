"""MAI-UI: one call per reply, places on the grid, tools of their own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.parsers import MAIUIActionParser, grid_to_pixel, pixel_to_grid
from uirl.types import Action, ToolCall

parser = MAIUIActionParser()
CLICK = '<tool_call>\n{"name": "mobile_use", "arguments": {"action": "click", "coordinate": [12, 999]}}\n</tool_call>'
CLICKED = ToolCall("click", {"coordinate": [12, 999]})


def use(arguments: str) -> str:
    return f'<tool_call>{{"name":"mobile_use","arguments":{arguments}}}</tool_call>'


WAIT = use('{"action":"wait"}')


@pytest.mark.parametrize(
    ("reply", "thought", "call"),
    [
        (f"<thinking>\nI press OK.\n</thinking>\n{CLICK}", "I press OK.", CLICKED),
        (CLICK, "", CLICKED),
        (f"I press OK.\n</think>\n{CLICK}", "I press OK.", CLICKED),
        (f"<think>I press OK.</think>{CLICK}", "I press OK.", CLICKED),
        (f"<thinking>not {use('{')}</thinking>{CLICK}", f"not {use('{')}", CLICKED),
        (CLICK.removesuffix("</tool_call>"), "", CLICKED),
        (CLICK.replace("{", '"{', 1), "", CLICKED),
        (use('{"action":"click","coordinate":[10,20,30,41]}'), "", ToolCall("click", {"coordinate": [20, 30.5]})),
        (
            use('{"action":"drag","start_coordinate":[0,0,2,2],"end_coordinate":[5.5,6]}'),
            "",
            ToolCall("drag", {"start_coordinate": [1, 1], "end_coordinate": [5.5, 6]}),
        ),
        (use('{"action":"type","text":"}</tool_call>👋"}'), "", ToolCall("type", {"text": "}</tool_call>👋"})),
        (use('{"action":"answer","text":"42"}'), "", ToolCall("answer", {"text": "42"})),
        (use('{"action":"answer","text":42}'), "", ToolCall("answer", {"text": 42})),
        (use('{"action":"click","coordinate":[1000,-2]}'), "", ToolCall("click", {"coordinate": [1000, -2]})),
        (use('{"action":"click","coordinate":["500","2.5"]}'), "", ToolCall("click", {"coordinate": [500, 2.5]})),
        ('<tool_call>{"arguments":{"action":"wait"}}</tool_call>', "", ToolCall("wait")),
        (f"{CLICK}\n{use('{')}", "", CLICKED),
        (f"<thinking>I press OK.</thinking>{CLICK}{WAIT}", "I press OK.", CLICKED),
        (f"{WAIT} or</think>{CLICK}", f"{WAIT} or", CLICKED),
        ('<tool_call>{"name":"maps.route","arguments":{"action":"x","coordinate":[1]}}</tool_call>', "", None),
        ('<tool_call>{"name":"click","arguments":{"coordinate":[1,2]}}</tool_call>', "", None),
    ],
)
def test_reads_one_call_and_the_plan(reply: str, thought: str, call: ToolCall | None) -> None:
    action = parser.parse(reply)
    assert (action.text, action.parse_error, action.thought) == (reply, None, thought)
    expected = {
        "maps.route": ToolCall("maps.route", {"action": "x", "coordinate": [1]}),
        "click": ToolCall("click", {"coordinate": [1, 2]}),
    }
    assert action.tool_calls == (call or expected[action.tool_calls[0].name],)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "no call; expected one"),
        ("<thinking>\nI press OK.\n</thinking>\nclick", "no call; expected one"),
        (CLICK.replace("</tool_call>", CLICK[12:]), "2 calls; expected one"),
        ("</tool_call>", "without <tool_call> before it"),
        (f"<thinking>not {CLICK}", "the thinking is not closed"),
        (use('{"action":"tap"}'), "unknown action 'tap'; expected one of click"),
        (use('{"coordinate":[1,2]}'), "unknown action None"),
        (use('{"action":["click"]}'), "unknown action ['click']"),
        (use('{"action":"click","coordinate":[1,2,3]}'), "must be [x,y], got [1, 2, 3]"),
        (use('{"action":"click","coordinate":"1,2"}'), "must be [x,y], got '1,2'"),
        (use('{"action":"click","coordinate":[true,2]}'), "must be [x,y], got [True, 2]"),
        (use('{"action":"click","coordinate":["1e999",2]}'), "must be [x,y], got ['1e999', 2]"),
        (use('{"action":"click","coordinate":["",2]}'), "must be [x,y], got ['', 2]"),
        (use('{"action":"drag","start_coordinate":[1],"end_coordinate":[1,2]}'), '"start_coordinate" must be [x,y]'),
        (CLICK[:60], "ends before it is closed"),
        ("<thinking>x</thinking><tool_call>", "ends at <tool_call>"),
    ],
)
def test_says_why_a_reply_cannot_be_read(reply: str, why: str) -> None:
    action = parser.parse(reply)
    assert (action.text, action.tool_calls) == (reply, ())
    assert why in (action.parse_error or "")


def test_writes_as_the_agent_does() -> None:
    assert parser.render(Action(tool_calls=(CLICKED,), thought="I press OK.")) == (
        "<thinking>\nI press OK.\n</thinking>\n<tool_call>\n"
        '{"name":"mobile_use","arguments":{"action":"click","coordinate":[12,999]}}\n</tool_call>'
    )
    assert parser.render(Action.of("maps.route", to="x")) == (
        '<tool_call>\n{"name":"maps.route","arguments":{"to":"x"}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    "action",
    [
        Action.of("click", coordinate=["1", 2]),
        Action.of("click", coordinate=[1, 2, 3, 4]),
        Action.of("click", action="type"),
        Action.of("mobile_use", x=1),
    ],
)
def test_what_would_not_read_back_is_not_written(action: Action) -> None:
    with pytest.raises(ValueError, match="cannot hold the action"):
        parser.render(action)


def test_several_calls_are_not_written() -> None:
    with pytest.raises(ValueError, match="has one call, got 2"):
        parser.render(Action(tool_calls=(CLICKED, CLICKED)))


def test_grid_and_pixels() -> None:
    # 500 / 999 * 1080 = 540.54 and 250 / 999 * 2400 = 600.6, both cut off
    assert grid_to_pixel([500, 250], (1080, 2400)) == (540, 600)
    assert grid_to_pixel((0, 999), (1080, 2400)) == (0, 2400)
    # 499 gives 539 and 500 gives 540; the last pixel of 2400 is 2399, and 998 gives 2397
    assert pixel_to_grid((540, 2399), (1080, 2400)) == (500, 999)
    assert pixel_to_grid((-5, 9999), (1080, 2400)) == (0, 999)


@given(st.integers(1, 999), st.data())
def test_a_pixel_of_a_small_picture_survives_the_grid(width: int, data: st.DataObject) -> None:
    x = data.draw(st.integers(0, width - 1))
    place = pixel_to_grid((x, 0), (width, 1))
    assert grid_to_pixel(place, (width, 1))[0] == x


@given(st.integers(1000, 10_000), st.data())
def test_a_pixel_of_a_large_picture_moves_less_than_a_place_is_wide(width: int, data: st.DataObject) -> None:
    x = data.draw(st.integers(0, width - 1))
    back = grid_to_pixel(pixel_to_grid((x, 0), (width, 1)), (width, 1))[0]
    assert abs(back - x) <= width / 999 / 2 + 1
