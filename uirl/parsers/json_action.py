"""Replies that hold JSON: `{"action":"click","x":3,"y":4}` or `{"name":"click","arguments":{"x":3,"y":4}}`."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from uirl.parsers.base import ActionParser
from uirl.types import Action, ToolCall

MAX_OBJECTS = 100
"""Braces of one reply that are tried. A bound, so that no reply costs more than linear time."""
MAX_DEPTH = 32
"""Levels of nesting in the arguments of a call. Deeper ones could not be written to every store."""

_END_OF_THOUGHT = "</think>"
_NAME_KEYS = ("action", "name", "tool")
_ARGUMENT_KEYS = ("arguments", "args")
_OPENING = re.compile(r"(?:```\w*|<tool_call>|\[)\s*$")
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


class _Unreadable(ValueError):
    """Why a JSON object that names a call is not a call."""


def _no_constant(name: str) -> Any:
    raise _Unreadable(f"{name} is not JSON; use a finite number")


# Raw line breaks inside strings are read (strict=False): models write them in texts to type, and nothing is ambiguous.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


class JSONActionParser(ActionParser):
    """Reads every JSON object of a reply that names a call, in order; the text before the first is the thought.

    Two forms: flat (`{"action": NAME, ARGUMENT: VALUE, ...}`) and long (`{"name" or "tool": NAME, "arguments" or
    "args": {...}}`, with an optional `"id"`). Fences and other text around the objects are passed over, and so are
    objects without one of the three name keys. Up to a `</think>` outside of them everything is thought, drafts of
    calls included.
    An outer object that is cut off or malformed is an error even where a complete object stands inside it.
    """

    def parse(self, text: str) -> Action:
        """The action in `text`, in linear time; never raises."""
        start = text.find(_END_OF_THOUGHT) if text.lstrip().startswith("<think>") else 0
        try:
            first, calls = _find_calls(text, max(start, 0))
        except _Unreadable as error:
            return Action(text=text, parse_error=str(error))
        return Action(text=text, tool_calls=tuple(calls), thought=_OPENING.sub("", text[:first]).strip())

    def render(self, action: Action) -> str:
        """The thought, then one compact JSON object per call, each on a line of its own.

        Without a call it is the text of the action. Raises TypeError or ValueError for arguments JSON cannot hold.
        """
        if not action.tool_calls:
            return action.text
        lines = [action.thought] if action.thought else []
        return "\n".join(lines + [_write(call) for call in action.tool_calls])


def _find_calls(text: str, start: int) -> tuple[int, list[ToolCall]]:
    """Where the first call begins, and all calls from `start` on. Raises `_Unreadable` where there is none."""
    calls: list[ToolCall] = []
    first, problem = -1, 'no JSON object; expected {"action":NAME,...}'
    position = text.find("{", start)
    for _ in range(MAX_OBJECTS):
        if position < 0:
            break
        try:
            call, end = _read_object(text, position)
        except json.JSONDecodeError as error:
            problem = _explain(error, text)
            # What was read up to the error is spent: trying its inner braces would cost quadratic time.
            end = max(error.pos, position + 1)
        else:
            if call is not None:
                first = first if calls else position
                calls.append(call)
            elif not calls:
                problem = 'JSON without "action"; expected {"action":NAME,...}'
        position = text.find("{", end)
        if calls and position >= 0 and _END_OF_THOUGHT in text[end:position]:
            calls.clear()  # drafts: the template had opened the thought, the reply closes it here
    if position >= 0:
        raise _Unreadable(f"more than {MAX_OBJECTS} braces; expected one JSON object")
    if not calls:
        raise _Unreadable(problem)
    return first, calls


def _read_object(text: str, position: int) -> tuple[ToolCall | None, int]:
    """The call in the object at `position` (None: it names none) and where the object ends."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except (json.JSONDecodeError, _Unreadable):
        raise
    except ValueError:
        raise _Unreadable("a number of thousands of digits") from None
    except RecursionError:
        raise _Unreadable(f"JSON nested more than {MAX_DEPTH} deep") from None
    return _read_call(value), end


def _explain(error: json.JSONDecodeError, text: str) -> str:
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "JSON ends before it is closed"
    return f"JSON error: {error.msg.lower()} at {text[error.pos : error.pos + 12]!r}"


def _read_call(value: dict[str, Any]) -> ToolCall | None:
    """The call that an object names; None: it names none. Raises `_Unreadable` for a call that is malformed."""
    key = next((key for key in _NAME_KEYS if key in value), None)
    if key is None:
        return None
    name = value[key]
    if not isinstance(name, str) or not name:
        raise _Unreadable(f'"{key}" must be a name, got {json.dumps(name)[:40]}')
    _check_plain(value, MAX_DEPTH)
    if key == "action":
        return ToolCall(name, {k: v for k, v in value.items() if k != "action"})
    return _read_long_form(value, key, name)


def _read_long_form(value: dict[str, Any], key: str, name: str) -> ToolCall:
    holder = next((k for k in _ARGUMENT_KEYS if k in value), None)
    extra = sorted(set(value) - {key, holder, "id"})
    if extra:
        raise _Unreadable(f'unexpected "{extra[0]}" beside "{key}"; arguments stand in "arguments":{{...}}')
    arguments = value[holder] if holder else {}
    if not isinstance(arguments, dict):
        raise _Unreadable(f'"{holder}" must be an object, got {json.dumps(arguments)[:40]}')
    identity = value.get("id", "")
    if not isinstance(identity, str):
        raise _Unreadable(f'"id" must be a string, got {json.dumps(identity)[:40]}')
    return ToolCall(name, arguments, identity)


def _check_plain(value: Any, depth: int) -> None:
    """Raises `_Unreadable` for what JSON lets through and stores, wires and environments cannot hold."""
    if depth < 0:
        raise _Unreadable(f"JSON nested more than {MAX_DEPTH} deep")
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        raise _Unreadable("half a character (a lone \\ud800-\\udfff escape); expected whole characters")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Unreadable("a number beyond 1e308; use a finite number")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(key, depth)
            _check_plain(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, depth - 1)


def _write(call: ToolCall) -> str:
    flat = not call.id and "action" not in call.arguments
    value: dict[str, Any]
    if flat:
        value = {"action": call.name, **call.arguments}
    else:
        value = {"id": call.id} if call.id else {}
        value |= {"name": call.name, "arguments": dict(call.arguments)}
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
