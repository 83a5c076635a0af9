"""Replies that are calls of the computer-use tool: `{"action":"left_click","coordinate":[3,4]}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from uirl.parsers.base import ActionParser
from uirl.parsers.json_action import JSONActionParser
from uirl.parsers.json_calls import Unreadable
from uirl.parsers.reply import checked
from uirl.runtime.limits import shown
from uirl.types import Action, ToolCall

TOOLS = ("computer", "computer_use")
"""Names of the tool, where a call is written in the long form; Anthropic's, and Qwen's."""
_PLACE = {"coordinate": ("x", "y")}
_CLICK = {**_PLACE, "text": ("modifiers",)}
ACTIONS: dict[str, tuple[str, Mapping[str, tuple[str, ...]]]] = {
    "left_click": ("click", _CLICK),
    "double_click": ("double_click", _CLICK),
    "triple_click": ("triple_click", _CLICK),
    "right_click": ("right_click", _CLICK),
    "middle_click": ("middle_click", _CLICK),
    "mouse_move": ("move", _PLACE),
    "left_mouse_down": ("mouse_down", _PLACE),
    "left_mouse_up": ("mouse_up", _PLACE),
    "left_click_drag": ("drag", {"start_coordinate": ("x", "y"), "coordinate": ("to_x", "to_y")}),
    "key": ("keys", {"text": ("keys",), "keys": ("keys",)}),
    "type": ("type", {}),
    "scroll": ("scroll", {**_PLACE, "scroll_direction": ("direction",), "scroll_amount": ("amount",)}),
    "wait": ("wait", {"duration": ("seconds",), "time": ("seconds",)}),
    "screenshot": ("screenshot", {}),
}
"""Action of the tool -> name of ours, and its arguments in our words. 'keys' and 'time' are Qwen's."""
_OURS = {ours: theirs for theirs, (ours, _) in ACTIONS.items()}
_JSON = JSONActionParser()


class ComputerParser(ActionParser):
    """Reads calls of Anthropic's tool `computer` as actions on a screen, in the two forms that `json` reads.

    `{"action": "left_click", "coordinate": [3, 4]}` is the call `click` with `x` and `y`, and so is
    `{"name": "computer", "arguments": {"action": "left_click", "coordinate": [3, 4]}}`, in tags of a call too; the
    table is `ACTIONS`. An action that the tool does not have (`answer`, `terminate`, `goto`) has its own name and
    arguments. A coordinate that is no `[x, y]` is a `parse_error`.
    """

    def parse(self, text: str) -> Action:
        """Return the action in `text`, in linear time; never raises."""
        action = _JSON.parse(text)
        try:
            return replace(action, tool_calls=tuple(map(_read, action.tool_calls)))
        except Unreadable as error:
            return Action(text=text, parse_error=str(error))

    def render(self, action: Action) -> str:
        """Return the thought, then one JSON object per call, as `json` does.

        Without a call it is the text of the action. Raises ValueError for a call that would be read as another.
        """
        if not action.tool_calls:
            return action.text
        calls = tuple(map(_write, action.tool_calls))
        return checked(_JSON.render(replace(action, tool_calls=calls)), action, self.parse)

    def describe(self) -> str:
        return 'Act by writing one call of the computer: {"action":NAME,ARGUMENT:VALUE,...}; a coordinate is [x,y].'


def _read(call: ToolCall) -> ToolCall:
    name, arguments = call.name, dict(call.arguments)
    if name in TOOLS:
        name = arguments.pop("action", None)
        if not isinstance(name, str) or not name:
            raise Unreadable(f'"action" must be a name, got {shown(name, 40)}; expected one of {", ".join(ACTIONS)}')
    if name not in ACTIONS:
        return ToolCall(name, arguments, call.id)
    ours, words = ACTIONS[name]
    read: dict[str, Any] = {}
    for key, value in arguments.items():
        names = words.get(key, (key,))
        if len(names) == 2:
            if not isinstance(value, list) or len(value) != 2:
                raise Unreadable(f'"{key}" must be [x,y], got {shown(value, 40)}')
            values = value
        else:
            values = ["+".join(map(str, value)) if ours == "keys" and isinstance(value, list) else value]
        if set(names) & set(read):
            raise Unreadable(f'"{key}" says again what another argument says')
        read.update(zip(names, values, strict=True))
    return ToolCall(ours, read, call.id)


def _write(call: ToolCall) -> ToolCall:
    """Return the call in the words of the tool; one that would read back as another stays as it is."""
    if call.name not in _OURS:
        return call
    name = _OURS[call.name]
    rest, words = dict(call.arguments), ACTIONS[name][1]
    written: dict[str, Any] = {}
    for argument in call.arguments:
        theirs, names = next(((key, names) for key, names in words.items() if argument in names), ("", ()))
        if names and set(names) <= set(rest):
            values = [rest.pop(part) for part in names]
            written[theirs] = values if len(values) == 2 else values[0]
        elif argument in rest:
            written[argument] = rest.pop(argument)
    back = ToolCall(name, written, call.id)
    try:
        again = _read(back)
    except Unreadable:
        return call
    return back if again == call and list(again.arguments) == list(call.arguments) else call
