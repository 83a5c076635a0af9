"""JSON inside a reply: where a value ends, which call an object is, whether it can be kept, how it is written back."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from uirl.runtime import limits
from uirl.runtime.limits import MAX_CALLS
from uirl.types import ToolCall

MAX_OBJECTS = MAX_CALLS
"""Places of one reply where a value or a call is tried. A bound, so that no reply costs more than linear time."""
MAX_DEPTH = 32
"""Levels of nesting in the arguments of a call. Deeper ones could not be written to every store."""

_KEPT = limits.Limits(depth=MAX_DEPTH)
_BLANK_TO_THE_END = re.compile(r"\s*\Z")


class Unreadable(ValueError):
    """Why a reply is not a call, in words the policy can learn from."""


class Malformed(Unreadable):
    """JSON that is cut off or broken. `end`: up to where it was read."""

    def __init__(self, why: str, end: int) -> None:
        super().__init__(why)
        self.end = end


def _no_constant(name: str) -> NoReturn:
    raise Unreadable(f"{name} is not JSON; use a finite number")


# Raw line breaks inside strings are read (strict=False): models write them in texts to type, and nothing is ambiguous.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def read_value(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `position`, and where it ends.

    Raises Malformed where it is broken or cut off, Unreadable where it is JSON that Python does not hold.
    """
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise Malformed(_explain(error, text), max(error.pos, position + 1)) from None
    except Unreadable:
        raise
    except ValueError:
        raise Unreadable("a number of thousands of digits") from None
    except RecursionError:
        raise Unreadable(f"the JSON is nested too deep; expected at most {MAX_DEPTH} levels") from None
    return value, end


def _explain(error: json.JSONDecodeError, text: str) -> str:
    if error.msg.startswith("Unterminated string") or _BLANK_TO_THE_END.match(text, error.pos):
        return "JSON ends before it is closed"
    return f"JSON error: {error.msg.lower()} at {text[error.pos : error.pos + 12]!r}"


def read_name(value: dict[str, Any], key: str) -> str:
    """Return the name under `key`; raises Unreadable where it is none."""
    name = value[key]
    if not isinstance(name, str) or not name:
        raise Unreadable(f'"{key}" must be a name, got {_shown(name)}')
    return name


def read_call(value: dict[str, Any], name_key: str, argument_keys: tuple[str, ...]) -> ToolCall:
    """Return the call in `{name_key: NAME, one of argument_keys: {...}, "id": "..."}`, the last two optional.

    The arguments may be a string that holds the object as JSON, as OpenAI's interface writes them.
    Raises Unreadable for anything else in it, and for arguments that cannot be kept (`check_plain`).
    """
    name = read_name(value, name_key)
    check_plain(value)
    holder = next((key for key in argument_keys if key in value), None)
    extra = sorted(set(value) - {name_key, holder, "id"})
    if extra:
        wanted = holder or argument_keys[0]
        raise Unreadable(f'unexpected "{extra[0]}" beside "{name_key}"; arguments stand in "{wanted}":{{...}}')
    arguments = value[holder] if holder else {}
    if isinstance(arguments, str):
        arguments = _unpacked(arguments)
    if not isinstance(arguments, dict):
        raise Unreadable(f'"{holder}" must be an object, got {_shown(arguments)}')
    identity = value.get("id", "")
    if not isinstance(identity, str):
        raise Unreadable(f'"id" must be a string, got {_shown(identity)}')
    return ToolCall(name, arguments, identity)


def _read_named_call(value: Any, argument_keys: tuple[str, ...], expected: str) -> ToolCall:
    """Return the call in an object with a "name"; raises Unreadable for anything else."""
    if not isinstance(value, dict):
        raise Unreadable(f"a call must be an object, got {type(value).__name__}; {expected}")
    if "name" not in value:
        raise Unreadable(f'a call without "name"; {expected}')
    if value.get("type") == "function":
        value = {key: item for key, item in value.items() if key != "type"}
    return read_call(value, "name", argument_keys)


def _is_call(value: Any, argument_keys: Sequence[str]) -> bool:
    """Return whether an object in a text is meant as a call: a name with arguments, and nothing but what calls have."""
    if not isinstance(value, dict) or "name" not in value:
        return False
    arguments = set(argument_keys) & set(value)
    return len(arguments) == 1 and set(value) <= {"name", "type", "id", *arguments}


def _unpacked(text: str) -> Any:
    """Return the object that a string holds as JSON; else the string."""
    try:
        value, end = read_value(text, len(text) - len(text.lstrip()))
    except Malformed:
        return text
    if not isinstance(value, dict) or text[end:].strip():
        return text
    check_plain(value)
    return value


def read_calls(values: Sequence[Any], argument_keys: tuple[str, ...], expected: str) -> list[ToolCall]:
    """Return the calls in objects with a "name", at least one. Raises Unreadable, which says what was `expected`."""
    check_count(values)
    if not values:
        raise Unreadable(f"an empty list of calls; {expected}")
    return [_read_named_call(value, argument_keys, expected) for value in values]


def read_unmarked_calls(
    text: str, position: int, begins_like_a_call: re.Pattern[str], argument_keys: tuple[str, ...], expected: str
) -> tuple[list[ToolCall], int]:
    """Return the calls in the JSON at `position`, an object or a list of them, and where it ends.

    No marker says that there are calls: JSON of which a part is none is text, and so is broken JSON, except where it
    `begins_like_a_call`. Raises Unreadable.
    """
    try:
        value, end = read_value(text, position)
    except Malformed as error:
        if begins_like_a_call.match(text, position):
            raise
        return [], error.end
    values = value if isinstance(value, list) else [value]
    named = all(_is_call(value, argument_keys) for value in values)
    return (read_calls(values, argument_keys, expected) if named else []), end


def check_count(calls: Sequence[object]) -> None:
    """Raise Unreadable for more calls than a reply may hold."""
    if len(calls) > MAX_OBJECTS:
        raise Unreadable(f"more than {MAX_OBJECTS} calls; expected fewer")


def check_plain(value: Any, where: str = "the JSON") -> None:
    """Raise Unreadable for what JSON lets through and stores, wires and environments cannot hold."""
    try:
        limits.check_plain(value, _KEPT, where, whole=True)
    except limits.InputError as error:
        raise Unreadable(str(error)) from None


def json_call(call: ToolCall, arguments_key: str = "arguments") -> dict[str, Any]:
    """Return the call as an object, its id only where it has one."""
    identity = {"id": call.id} if call.id else {}
    return {"name": call.name, arguments_key: dict(call.arguments), **identity}


def write_value(value: Any, *, compact: bool) -> str:
    """Return `value` as JSON on one line: without blanks (`compact`), or spaced as chat templates write it.

    Raises TypeError or ValueError for what JSON cannot hold.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":") if compact else None)


def _shown(value: Any) -> str:
    return json.dumps(limits.sample(value, 41))[:40]
