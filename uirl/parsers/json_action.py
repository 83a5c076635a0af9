"""Replies that hold JSON: `{"action":"click","x":3,"y":4}` or `{"name":"click","arguments":{"x":3,"y":4}}`."""

from __future__ import annotations

from typing import Any

from uirl.parsers.base import ActionParser
from uirl.parsers.json_calls import (
    MAX_OBJECTS,
    Malformed,
    Unreadable,
    check_plain,
    read_call,
    read_name,
    read_value,
    write_value,
)
from uirl.parsers.reply import checked, text_before
from uirl.thoughts import Thoughts
from uirl.types import Action, ToolCall

_NAME_KEYS = ("action", "name", "tool")
_ARGUMENT_KEYS = ("arguments", "args")


class JSONActionParser(ActionParser):
    """Reads every JSON object of a reply that names a call, in order; the text before the first is the thought.

    Two forms: flat (`{"action": NAME, ARGUMENT: VALUE, ...}`) and long (`{"name" or "tool": NAME, "arguments" or
    "args": {...}}`, with an optional `"id"`). Fences and other text around the objects are passed over, and so are
    other objects: a record that has a name and no arguments is no call. Up to the end of a thought outside of them
    everything is thought, drafts of calls included; a thought that is opened and never closed goes to the end.
    An outer object that is cut off or malformed is an error even where a complete object stands inside it.
    """

    def parse(self, text: str) -> Action:
        """Return the action in `text`, in linear time; never raises."""
        try:
            first, calls = _find_calls(text)
        except Unreadable as error:
            return Action(text=text, parse_error=str(error))
        return Action(text=text, tool_calls=tuple(calls), thought=text_before(text, first))

    def render(self, action: Action) -> str:
        """Return the thought, then one compact JSON object per call, each on a line of its own.

        Without a call it is the text of the action. Raises TypeError or ValueError for arguments JSON cannot hold, and
        ValueError where the text would read as other calls, as with a draft of one in the thought.
        """
        if not action.tool_calls:
            return action.text
        lines = [action.thought] if action.thought else []
        return checked("\n".join(lines + [_write(call) for call in action.tool_calls]), action, self.parse)

    def describe(self) -> str:
        return 'Act by writing one JSON object: {"action":NAME,ARGUMENT:VALUE,...}.'


def _find_calls(text: str) -> tuple[int, list[ToolCall]]:
    """Return where the first call begins, and all calls. Raises `Unreadable` where there is none."""
    calls: list[ToolCall] = []
    first, problem = -1, 'no JSON object; expected {"action":NAME,...}'
    thoughts = Thoughts(text)
    end = thoughts.in_words
    for number in range(MAX_OBJECTS + 1):
        position = text.find("{", end) if end >= 0 else -1
        closed, end = thoughts.skip(end, position) if end >= 0 else (-1, end)
        if closed >= 0:
            calls.clear()
        if end < 0 and not calls:
            raise Unreadable("the thinking is not closed, so there is no JSON object to read")
        if position < 0 or end < 0:
            break
        if number == MAX_OBJECTS:
            raise Unreadable(f"more than {MAX_OBJECTS} braces; expected one JSON object")
        if end > position:  # a draft
            continue
        try:
            value, end = read_value(text, position)
        except Malformed as error:
            # What was read up to the error is spent: trying its inner braces would cost quadratic time.
            problem, end = str(error), error.end
        else:
            call = _read_call(value)
            if call is not None:
                first = first if calls else position
                calls.append(call)
            elif not calls:
                problem = 'JSON without "action"; expected {"action":NAME,...}'
    if not calls:
        raise Unreadable(problem)
    return first, calls


def _read_call(value: dict[str, Any]) -> ToolCall | None:
    """Return the call that an object names; None: it names none. Raises `Unreadable` for a call that is malformed."""
    key = next((key for key in _NAME_KEYS if key in value), None)
    if key is None:
        return None
    if key != "action":
        named = any(holder in value for holder in _ARGUMENT_KEYS)
        return read_call(value, key, _ARGUMENT_KEYS) if named else None
    name = read_name(value, key)
    check_plain(value)
    return ToolCall(name, {k: v for k, v in value.items() if k != key})


def _write(call: ToolCall) -> str:
    flat = not call.id and "action" not in call.arguments
    value: dict[str, Any]
    if flat:
        value = {"action": call.name, **call.arguments}
    else:
        value = {"id": call.id} if call.id else {}
        value |= {"name": call.name, "arguments": dict(call.arguments)}
    return write_value(value, compact=True)
