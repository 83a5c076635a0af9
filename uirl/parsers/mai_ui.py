"""Replies of MAI-UI, an agent that uses phones: a plan, then one call, with places on a grid from 0 to 999."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from uirl.parsers.base import ANSWER, ActionParser, Tools
from uirl.parsers.json_calls import Unreadable, json_call, read_calls
from uirl.parsers.qwen import ARGUMENT_KEYS, CLOSE, OPEN, find_block, read_block, read_values, write_blocks
from uirl.parsers.reply import Format, read_reply, write_marked, write_reply
from uirl.runtime.limits import shown
from uirl.thoughts import bare_thought, next_end_of_thought
from uirl.types import Action, ToolCall

GRID = 999
"""The last value of a coordinate; values go from 0 to it, whatever the size of the picture."""
MOBILE_USE = "mobile_use"
ACTIONS = (
    *("click", "long_press", "double_click", "type", "swipe", "drag", "open", "system_button", "wait"),
    *("terminate", ANSWER, "ask_user"),
)
"""What `mobile_use` can do. Calls of any other name are tools of their own."""

_COORDINATES = ("coordinate", "start_coordinate", "end_coordinate")


class MAIUIActionParser(ActionParser):
    """Reads a plan in `<thinking>` tags and `<tool_call>{"name":"mobile_use","arguments":{"action":NAME}}</tool_call>`.

    The call is named as the action (`click`, `type`, ...) and has its other arguments; any other tool keeps its own
    name and arguments, and a call without a name is one of `mobile_use`. The thinking may be missing, and may be closed
    by `</think>`. Of several calls the first counts, as for the agent this comes from: there is one action per picture.

    `coordinate`, `start_coordinate` and `end_coordinate` are `[x, y]` on the grid, never pixels (`grid_to_pixel`),
    numbers or text of them; a box `[x1, y1, x2, y2]` becomes its centre. A place may lie off the grid: what that means,
    the environment says. An unknown action, no call and several in one block are a `parse_error`.
    """

    def parse(self, text: str) -> Action:
        """Return the action in `text`, in linear time; never raises."""
        action = read_reply(_MAI_UI, text)
        if len(action.tool_calls) > 1:
            return Action(text, parse_error=f"{len(action.tool_calls)} calls; expected one: {_EXAMPLE}")
        return replace(action, thought=bare_thought(action.thought))

    def render(self, action: Action) -> str:
        """Return the plan, where there is one, and the call, as the agent writes them in its own history.

        Without a call it is the text of the action. Raises TypeError or ValueError for arguments JSON cannot hold, and
        ValueError for several calls and for a call that would be read as another (an argument `action`, a box, a
        coordinate in text).
        """
        return write_reply(_MAI_UI, action)

    def describe(self) -> str:
        return _MAI_UI.description


def grid_to_pixel(coordinate: Sequence[float], size: tuple[int, int]) -> tuple[int, int]:
    """Return the pixel (x, y) of a grid place: `int(x / 999 * width)`, `int(y / 999 * height)`; `size` in pixels.

    999 gives the width itself, one past the last pixel, as in the agents this grid comes from.
    """
    x, y = coordinate
    return _to_pixel(x, size[0]), _to_pixel(y, size[1])


def pixel_to_grid(point: Sequence[float], size: tuple[int, int]) -> tuple[int, int]:
    """Return the place on the grid whose pixel is nearest to `point`; `size` in pixels.

    Up to 999 pixels wide, `grid_to_pixel` gives the same pixel back; on wider pictures not every pixel has a place.
    """
    x, y = point
    return _to_grid(x, size[0]), _to_grid(y, size[1])


def _to_pixel(value: float, length: int) -> int:
    return int(value / GRID * length)


def _to_grid(pixel: float, length: int) -> int:
    below = int(pixel * GRID / length)
    near = [min(max(value, 0), GRID) for value in (below - 1, below, below + 1)]
    return min(near, key=lambda value: abs(_to_pixel(value, length) - pixel))


def _read(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    if not text.startswith(OPEN, position):
        return read_block(text, position, tools)  # which says that the block does not open
    values, end = read_values(text, position)
    calls = [_read_action(call) for call in read_calls(list(map(_named, values)), ARGUMENT_KEYS, _EXPECTED)]
    closed = next_end_of_thought(text, 0, position) >= 0
    draft_end = -1 if closed else next_end_of_thought(text, end, len(text))
    return calls, draft_end if draft_end >= 0 else len(text)


def _named(value: Any) -> Any:
    return {"name": MOBILE_USE, **value} if isinstance(value, dict) else value


def _read_action(call: ToolCall) -> ToolCall:
    name, arguments = call.name, dict(call.arguments)
    if name == MOBILE_USE:
        name = arguments.pop("action", None)
        if name not in ACTIONS:
            raise Unreadable(f"unknown action {shown(name, 40)}; expected one of {', '.join(ACTIONS)}")
    if name in ACTIONS:
        arguments |= {key: _read_coordinate(arguments[key], key) for key in _COORDINATES if arguments.get(key)}
    return ToolCall(name, arguments, call.id)


def _read_coordinate(value: Any, key: str) -> list[float]:
    numbers = [_read_number(n) for n in value] if isinstance(value, list) and len(value) in (2, 4) else []
    if not numbers or None in numbers:
        raise Unreadable(f'"{key}" must be [x,y], got {shown(value, 40)}')
    return numbers if len(numbers) == 2 else [_middle(numbers[0], numbers[2]), _middle(numbers[1], numbers[3])]


def _read_number(value: Any) -> Any:
    """Return the number that JSON or text in it holds; None: none."""
    if isinstance(value, str) and len(value) < 40:
        with suppress(ValueError):
            value = float(value)
            value = int(value) if value.is_integer() else value
    return value if type(value) in (int, float) and math.isfinite(value) else None


def _middle(a: float, b: float) -> float:
    middle = (a + b) / 2
    return int(middle) if middle.is_integer() else middle


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    if len(calls) != 1:
        raise ValueError(f"a reply of MAI-UI has one call, got {len(calls)}; write one action per turn")
    call = calls[0]
    if call.name in ACTIONS:
        call = ToolCall(MOBILE_USE, {"action": call.name, **call.arguments}, call.id)
    return write_blocks([write_marked(json_call(call), compact=True)])


_EXPECTED = f'expected {{"name":"{MOBILE_USE}","arguments":{{"action":NAME,...}}}}'
_EXAMPLE = f'{OPEN}{{"name":"{MOBILE_USE}","arguments":{{"action":NAME,...}}}}{CLOSE}'
_MAI_UI = Format(
    find_block,
    _read,
    _write,
    f"Write your plan in <thinking></thinking>, then act by writing {_EXAMPLE}; coordinates [x,y] go from 0 to {GRID}.",
    thought="<thinking>\n{}\n</thinking>\n",
    needed=f"no call; expected one: {_EXAMPLE}",
)
