"""Bare JSON objects, as Llama 3 writes calls: `{"name": NAME, "parameters": {...}}`, several separated by `;`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from uirl.parsers.base import Tools
from uirl.parsers.json_reading import Malformed, Unreadable, read_value
from uirl.parsers.qwen_style import long_form, read_named
from uirl.parsers.reply_reading import Format, write_marked
from uirl.types import ToolCall

_EXPECTED = 'expected {"name":NAME,"parameters":{...}}'
_ARGUMENT_KEYS = ("parameters", "arguments")
_OPENING = re.compile(r'<\|python_tag\|>|\{\s*"')
_TAG = re.compile(r"<\|python_tag\|>\s*")
_BEGINS_LIKE_A_CALL = re.compile(r'\{\s*"(?:name|parameters|arguments)"\s*:|\{\s*"type"\s*:\s*"function"')


def find_object(text: str, start: int, tools: Tools) -> int:
    """Where the tag or the next object stands."""
    match = _OPENING.search(text, start)
    return match.start() if match else -1


def read_object(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    """The call at `position` and where it ends; no call where an object without the tag is not one.

    After the tag there must be a call. Elsewhere (the tag is a special token, which decoding leaves out) an object is
    a call where it has a name, arguments, and nothing that calls do not have. Other JSON is part of the text: a record
    with a name, and the schema of a tool that the policy repeats.
    """
    tag = _TAG.match(text, position)
    if tag is not None:
        if not text.startswith("{", tag.end()):
            raise Unreadable(f"{_EXPECTED} after <|python_tag|>, got {text[tag.end() : tag.end() + 12]!r}")
        value, end = read_value(text, tag.end())
        return [read_named(value, _ARGUMENT_KEYS, _EXPECTED)], end
    try:
        value, end = read_value(text, position)
    except Malformed as error:
        if _BEGINS_LIKE_A_CALL.match(text, position):
            raise
        return [], error.end
    return [read_named(value, _ARGUMENT_KEYS, _EXPECTED)] if names_call(value, _ARGUMENT_KEYS) else [], end


def names_call(value: Any, argument_keys: Sequence[str]) -> bool:
    """Whether an object in a text is meant as a call: a name with arguments, and nothing but what calls have."""
    if not isinstance(value, dict) or "name" not in value:
        return False
    arguments = set(argument_keys) & set(value)
    return len(arguments) == 1 and set(value) <= {"name", "type", "id", *arguments}


def _write(thought: str, calls: Sequence[ToolCall], tools: Tools) -> str:
    objects = "; ".join(write_marked(long_form(call, "parameters")) for call in calls)
    return f"{thought}\n{objects}" if thought else objects


LLAMA_3 = Format(
    find_object,
    read_object,
    _write,
    'Call a tool by writing {"name": NAME, "parameters": {...}}; several with ; between.',
)
