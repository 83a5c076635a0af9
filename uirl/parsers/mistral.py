"""Calls as Mistral writes them: `[TOOL_CALLS] [{"name": NAME, "arguments": {...}}]` or `[TOOL_CALLS]NAME[ARGS]{...}`.

The markers are special tokens, which decoding leaves out. Then a list of calls is known by its form, anywhere; the
other form only at the start of the reply and by the name of a tool (with an id behind it, which has nine letters and
digits): `set{"a": 1}` is ordinary text elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from uirl.parsers.base import Tools
from uirl.parsers.json_calls import (
    Unreadable,
    check_count,
    check_plain,
    json_call,
    read_calls,
    read_unmarked_calls,
    read_value,
)
from uirl.parsers.reply import Format, first_match, write_marked
from uirl.types import ToolCall

_EXPECTED = 'expected [TOOL_CALLS] [{"name":NAME,"arguments":{...}}]'
_ARGUMENT_KEYS = ("arguments", "parameters")
_OPENING = re.compile(r'\[(?:TOOL_CALLS\]|\s*\{\s*")')
_MARKER = re.compile(r"\[TOOL_CALLS\]\s*")
_WORD = r'[^\s\[\]{}"]{1,200}+'
_HEAD = re.compile(rf"(?P<name>{_WORD})\s*+(?:\[CALL_ID\]\s*+(?P<id>{_WORD})\s*+)?(?:\[ARGS\]\s*+)?(?=\{{)")
_BARE_HEAD = re.compile(r'\s*+(?P<name>[A-Za-z_][\w.-]{0,199}+)(?=\{\s*["}])')
_ID_LENGTH = 9
_BEGINS_LIKE_A_CALL = re.compile(r'\[\s*\{\s*"(?:name|arguments|parameters|id)"\s*:')


def _find(text: str, start: int, tools: Tools) -> int:
    """Return where the marker, a list of objects, or at the start of the reply a tool with arguments stands."""
    if start == 0 and _bare_head(text, 0, tools):
        return 0
    return first_match(_OPENING, text, start)


def _read(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    """Return the calls at `position` and where they end; none where a list without the marker is not one of calls."""
    marker = _MARKER.match(text, position)
    if marker is not None:
        return _read_marked(text, marker.end())
    if not text.startswith("[", position):
        return _read_bare(text, position, tools)
    return read_unmarked_calls(text, position, _BEGINS_LIKE_A_CALL, _ARGUMENT_KEYS, _EXPECTED)


def _read_marked(text: str, position: int) -> tuple[list[ToolCall], int]:
    if text[position : position + 1] in ("[", "{") and not text.startswith(("[ARGS]", "[CALL_ID]"), position):
        value, end = read_value(text, position)
        return read_calls(value if isinstance(value, list) else [value], _ARGUMENT_KEYS, _EXPECTED), end
    head = _HEAD.match(text, position)
    if head is None:
        raise Unreadable(f"{_EXPECTED}, got {text[position : position + 12]!r} after [TOOL_CALLS]")
    return _read_arguments(text, head.end(), head["name"], head["id"] or "")


def _read_bare(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    """Return calls without markers, one right behind the other."""
    calls: list[ToolCall] = []
    end = position
    while (head := _bare_head(text, end, tools)) is not None:
        name, identity, begin = head
        found, end = _read_arguments(text, begin, name, identity)
        calls += found
        check_count(calls)
    return calls, end


def _bare_head(text: str, position: int, tools: Tools) -> tuple[str, str, int] | None:
    """Return (name of a tool, id, where the arguments begin) at `position`."""
    head = _BARE_HEAD.match(text, position)
    if head is None:
        return None
    word = head["name"]
    if word in tools:
        return word, "", head.end()
    name, identity = word[:-_ID_LENGTH], word[-_ID_LENGTH:]
    return (name, identity, head.end()) if name in tools and identity.isalnum() else None


def _read_arguments(text: str, position: int, name: str, identity: str) -> tuple[list[ToolCall], int]:
    arguments, end = read_value(text, position)
    check_plain([name, identity, arguments])
    return [ToolCall(name, arguments, identity)], end


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    return f"[TOOL_CALLS] {write_marked([json_call(call) for call in calls])}"


MISTRAL = Format(
    _find,
    _read,
    _write,
    'Call tools by writing [TOOL_CALLS] [{"name": NAME, "arguments": {...}}, ...].',
    control_words=("[TOOL_CALLS]",),
)
