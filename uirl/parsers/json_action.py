"""Replies that hold JSON: `{"action":"click","x":3,"y":4}` or `{"name":"click","arguments":{"x":3,"y":4}}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uirl.parsers.base import ActionParser, Tools
from uirl.parsers.json_calls import Malformed, check_plain, read_call, read_name, read_value, write_value
from uirl.parsers.reply import Format, NoCall, read_reply, write_reply
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
        return read_reply(_JSON, text)

    def render(self, action: Action) -> str:
        """Return the thought, then one compact JSON object per call, each on a line of its own.

        Without a call it is the text of the action. Raises TypeError or ValueError for arguments JSON cannot hold, and
        ValueError where the text would read as other calls, as with a draft of one in the thought.
        """
        return write_reply(_JSON, action)

    def describe(self) -> str:
        return _JSON.description


def _read(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    try:
        value, end = read_value(text, position)
    except Malformed as error:
        # What was read up to the error is spent: trying its inner braces would cost quadratic time.
        raise NoCall(str(error), error.end) from None
    call = _read_call(value)
    if call is None:
        raise NoCall('JSON without "action"; expected {"action":NAME,...}', end)
    return [call], end


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


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "\n".join(map(_write_call, calls))


def _write_call(call: ToolCall) -> str:
    flat = not call.id and "action" not in call.arguments
    value: dict[str, Any]
    if flat:
        value = {"action": call.name, **call.arguments}
    else:
        value = {"id": call.id} if call.id else {}
        value |= {"name": call.name, "arguments": dict(call.arguments)}
    return write_value(value, compact=True)


_JSON = Format(
    lambda text, start, tools: text.find("{", start),
    _read,
    _write,
    'Act by writing one JSON object: {"action":NAME,ARGUMENT:VALUE,...}.',
    needed='no JSON object; expected {"action":NAME,...}',
)
