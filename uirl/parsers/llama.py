"""Bare JSON objects, as Llama 3 writes calls: `{"name": NAME, "parameters": {...}}`, several separated by `;`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from uirl.parsers.base import Tools
from uirl.parsers.json_calls import Unreadable, json_call, read_calls, read_unmarked_calls, read_value
from uirl.parsers.reply import Format, finder, write_marked
from uirl.types import ToolCall

_EXPECTED = 'expected {"name":NAME,"parameters":{...}}'
_ARGUMENT_KEYS = ("parameters", "arguments")
_OPENING = re.compile(r'<\|python_tag\|>|\{\s*"')
_TAG = re.compile(r"<\|python_tag\|>\s*")
_BEGINS_LIKE_A_CALL = re.compile(r'\{\s*"(?:name|parameters|arguments)"\s*:|\{\s*"type"\s*:\s*"function"')


def read_object(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    """Return the call at `position` and where it ends; no call where an object without the tag is not one.

    After the tag there must be a call. Elsewhere (the tag is a special token, which decoding leaves out) an object is
    a call where it has a name, arguments, and nothing that calls do not have. Other JSON is part of the text: a record
    with a name, and the schema of a tool that the policy repeats.
    """
    tag = _TAG.match(text, position)
    if tag is not None:
        if not text.startswith("{", tag.end()):
            raise Unreadable(f"{_EXPECTED} after <|python_tag|>, got {text[tag.end() : tag.end() + 12]!r}")
        value, end = read_value(text, tag.end())
        return read_calls([value], _ARGUMENT_KEYS, _EXPECTED), end
    return read_unmarked_calls(text, position, _BEGINS_LIKE_A_CALL, _ARGUMENT_KEYS, _EXPECTED)


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "; ".join(write_marked(json_call(call, "parameters")) for call in calls)


LLAMA_3 = Format(
    finder(_OPENING),
    read_object,
    _write,
    'Call a tool by writing {"name": NAME, "parameters": {...}}; several with ; between.',
)
