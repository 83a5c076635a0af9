"""Calls as Mistral writes them: `[TOOL_CALLS] [{"name": NAME, "arguments": {...}}]` or `[TOOL_CALLS]NAME[ARGS]{...}`.

The markers are special tokens, which decoding leaves out. Then a list of calls is known by its form, anywhere; the
other form only at the start of the reply, where an id (`[CALL_ID]`) cannot be told from the name it follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from uirl.parsers.json_reading import Malformed, Unreadable, check_plain, read_value
from uirl.parsers.llama_style import names_call
from uirl.parsers.qwen_style import long_form, read_named
from uirl.parsers.reply_reading import Format, check_count, write_marked
from uirl.types import ToolCall

_EXPECTED = 'expected [TOOL_CALLS] [{"name":NAME,"arguments":{...}}]'
_ARGUMENT_KEYS = ("arguments", "parameters")
_OPENING = re.compile(r'\[(?:TOOL_CALLS\]|\s*\{\s*")')
_MARKER = re.compile(r"\[TOOL_CALLS\]\s*")
_WORD = r'[^\s\[\]{}"]{1,200}+'
_HEAD = re.compile(rf"(?P<name>{_WORD})\s*+(?:\[CALL_ID\]\s*+(?P<id>{_WORD})\s*+)?(?:\[ARGS\]\s*+)?(?=\{{)")
_BARE_HEAD = re.compile(r'\s*+(?P<name>[A-Za-z_][\w.-]{0,199}+)(?=\{\s*["}])')
_BEGINS_LIKE_A_CALL = re.compile(r'\[\s*\{\s*"(?:name|arguments|parameters|id)"\s*:')


def find_calls(text: str, start: int) -> int:
    """Where the marker, a list of objects, or at the start of the reply a name with arguments stands."""
    if start == 0 and _BARE_HEAD.match(text):
        return 0
    match = _OPENING.search(text, start)
    return match.start() if match else -1


def read_calls(text: str, position: int) -> tuple[list[ToolCall], int]:
    """The calls at `position` and where they end; none where a list without the marker is not one of calls."""
    marker = _MARKER.match(text, position)
    if marker is not None:
        return _read_marked(text, marker.end())
    if not text.startswith("[", position):
        return _read_bare(text, position)
    try:
        values, end = read_value(text, position)
    except Malformed as error:
        if _BEGINS_LIKE_A_CALL.match(text, position):
            raise
        return [], error.end
    if not all(names_call(value, _ARGUMENT_KEYS) for value in values):
        return [], end
    return _read_list(values), end


def _read_marked(text: str, position: int) -> tuple[list[ToolCall], int]:
    if text[position : position + 1] in ("[", "{") and not text.startswith(("[ARGS]", "[CALL_ID]"), position):
        value, end = read_value(text, position)
        return _read_list(value if isinstance(value, list) else [value]), end
    head = _HEAD.match(text, position)
    if head is None:
        raise Unreadable(f"{_EXPECTED}, got {text[position : position + 12]!r} after [TOOL_CALLS]")
    return _read_arguments(text, head, head["id"] or "")


def _read_bare(text: str, position: int) -> tuple[list[ToolCall], int]:
    """Calls without markers, one right behind the other."""
    calls: list[ToolCall] = []
    end = position
    while (head := _BARE_HEAD.match(text, end)) is not None:
        found, end = _read_arguments(text, head, "")
        calls += found
        check_count(calls)
    return calls, end


def _read_arguments(text: str, head: re.Match[str], identity: str) -> tuple[list[ToolCall], int]:
    arguments, end = read_value(text, head.end())
    check_plain([head["name"], identity, arguments])
    return [ToolCall(head["name"], arguments, identity)], end


def _read_list(values: list[Any]) -> list[ToolCall]:
    check_count(values)
    if not values:
        raise Unreadable(f"an empty list of calls; {_EXPECTED}")
    return [read_named(value, _ARGUMENT_KEYS, _EXPECTED) for value in values]


def _write(thought: str, calls: Sequence[ToolCall]) -> str:
    written = f"[TOOL_CALLS] {write_marked([long_form(call) for call in calls])}"
    return f"{thought}\n{written}" if thought else written


MISTRAL = Format(
    find_calls,
    read_calls,
    _write,
    'Call tools by writing [TOOL_CALLS] [{"name": NAME, "arguments": {...}}, ...].',
    control_words=("[TOOL_CALLS]",),
)
