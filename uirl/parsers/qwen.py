"""Calls between tags, as Qwen, Hermes and MAI-UI write them: JSON, or the functions of Qwen3-Coder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from uirl.parsers.base import Tools
from uirl.parsers.function_xml import OPEN_FUNCTION, read_functions, write_function
from uirl.parsers.json_calls import Unreadable, check_count, json_call, read_calls, read_value
from uirl.parsers.reply import NO_TOOLS, Format, finder, write_marked
from uirl.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENT_KEYS = ("arguments", "parameters")
_EXPECTED = f'expected {OPEN}{{"name":NAME,"arguments":{{...}}}}{CLOSE}'
_LEAD = re.compile(r"[\s\"'`]*+(?:json\s*+)?(?=[{\[])")
_NEXT = re.compile(r"[\s,]*+(?=\{)")
_FUNCTION = re.compile(rf"\s*+(?={OPEN_FUNCTION})")
_PLACE = re.compile(f"{OPEN}|{OPEN_FUNCTION}")


def find_block(text: str, start: int, tools: Tools = NO_TOOLS) -> int:
    """Return where the next block opens. A closing tag that nothing opened counts where it is all there is."""
    position = text.find(OPEN, start)
    return text.find(CLOSE) if position < 0 and start == 0 else position


def read_block(text: str, position: int, tools: Tools = NO_TOOLS) -> tuple[list[ToolCall], int]:
    """Return the calls of the block at `position` (one object, several, a list, or functions) and where the last ends.

    The closing tag is not asked for: where the JSON is complete, nothing is in doubt.
    """
    if not text.startswith(OPEN, position):
        raise Unreadable(f"{CLOSE} without {OPEN} before it; {_EXPECTED}")
    function = _FUNCTION.match(text, position + len(OPEN))
    if function is not None:
        return read_functions(text, function.end(), tools)
    values, end = read_values(text, position)
    return read_calls(values, ARGUMENT_KEYS, _EXPECTED), end


def read_values(text: str, position: int) -> tuple[list[Any], int]:
    """Return the JSON in the block at `position`, one value per call, and where the last ends. Raises Unreadable."""
    lead = _LEAD.match(text, position + len(OPEN))
    if lead is None:
        after = text[position + len(OPEN) :][:12]
        raise Unreadable(f"{_EXPECTED}, got {after!r}" if after else f"the reply ends at {OPEN}; {_EXPECTED}")
    values: list[Any] = []
    following: re.Match[str] | None = lead
    end = lead.end()
    while following is not None:
        value, end = read_value(text, following.end())
        values += value if isinstance(value, list) else [value]
        check_count(values)
        following = _NEXT.match(text, end)
    return values, end


def write_blocks(calls: Iterable[str]) -> str:
    """Return one block per call; `calls` are the written calls."""
    return "\n".join(f"{OPEN}\n{call}\n{CLOSE}" for call in calls)


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    return write_blocks(write_marked(json_call(call)) for call in calls)


def _read_function(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    read = read_block if text.startswith(OPEN, position) else read_functions
    return read(text, position, tools)


def _write_functions(calls: Sequence[ToolCall], tools: Tools) -> str:
    return write_blocks(write_function(call, tools) for call in calls)


QWEN = Format(
    find_block, read_block, _write, f'Call a tool by writing {OPEN}{{"name": NAME, "arguments": {{...}}}}{CLOSE}.'
)
QWEN3_CODER = Format(
    finder(_PLACE),
    _read_function,
    _write_functions,
    f"Call a tool by writing {OPEN}<function=NAME><parameter=ARGUMENT>VALUE</parameter></function>{CLOSE}, with one "
    "<parameter=...> per argument.",
)
