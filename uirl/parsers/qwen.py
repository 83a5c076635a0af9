"""Calls between tags, as Qwen, Hermes and MAI-UI write them: JSON, or the functions of Qwen3-Coder: `<function=NAME>`,
one `<parameter=ARGUMENT>` per argument, `</function>`. Their values are text; what they mean is the schema's business,
see `typed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uirl.parsers.base import Tools
from uirl.parsers.json_calls import (
    MAX_OBJECTS,
    Unreadable,
    check_count,
    check_plain,
    json_call,
    read_calls,
    read_value,
    write_value,
)
from uirl.parsers.reply import NO_TOOLS, Format, finder, illegible, write_marked
from uirl.runtime.json_schema import ANY, names_properties, property_of, types_of
from uirl.thoughts import END_OF_THOUGHT
from uirl.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENT_KEYS = ("arguments", "parameters")
_EXPECTED = f'expected {OPEN}{{"name":NAME,"arguments":{{...}}}}{CLOSE}'
_LEAD = re.compile(r"[\s\"'`]*+(?:json\s*+)?(?=[{\[])")
_NEXT = re.compile(r"[\s,]*+(?=\{)")
OPEN_FUNCTION = "<function="
_EXPECTED_FUNCTION = "expected <function=NAME><parameter=ARGUMENT>VALUE</parameter></function>"
_HEAD = re.compile(r"<function=([^\s<>]{1,200})>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,200})>")
_CLOSED = re.compile(r"</function>|(?=</tool_call>)")
_NEXT_FUNCTION = re.compile(rf"\s*+(?={OPEN_FUNCTION})")
_BLANK = re.compile(r"\s*+")
_END_OF_VALUE = re.compile(rf"</parameter>|(?=\n<parameter=)|(?=</function>)|{END_OF_THOUGHT.pattern}")
_DRIFTED_END = re.compile(r"</parameter\w{0,100}>?")
_NULLS = ("null", "none")
_KINDS = {
    "str": "string", "int": "integer", "num": "number", "float": "number", "bool": "boolean",
    "dict": "object", "obj": "object", "list": "array", "arr": "array", "null": "null",
}  # fmt: skip
"""How the name of a type begins, the names of Python included -> the type."""
_HOLDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
    ANY: (dict, list),
}
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
    if _NEXT_FUNCTION.match(text, position + len(OPEN)):
        return read_functions(text, position + len(OPEN), tools)
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


# -- functions of Qwen3-Coder ------------------------------------------------------------------------------------------


def read_functions(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    """Return the functions from `position` on, one behind the other, and where the last ends. Raises Unreadable."""
    calls: list[ToolCall] = []
    following: re.Match[str] | None = _NEXT_FUNCTION.match(text, position)
    end = position
    while following is not None:
        call, end = _read_one(text, following.end(), tools)
        calls.append(call)
        check_count(calls)
        following = _NEXT_FUNCTION.match(text, end)
    return calls, end


def write_function(call: ToolCall, tools: Tools) -> str:
    """Return the call as Qwen's chat template writes it; values that would read as others are JSON."""
    arguments = "".join(
        f"<parameter={name}>\n{_write_value(value, _kinds_of(tools, call.name, name))}\n</parameter>\n"
        for name, value in call.arguments.items()
    )
    return f"<function={call.name}>\n{arguments}</function>"


def typed(text: str, kinds: Sequence[str] | None) -> Any:
    """Return the value that `text` is for an argument of one of these JSON types; None: there is no schema.

    Without one it is JSON where it is JSON, else text, as in transformers' response schema of Qwen3. With one it is of
    the first of the types that it can be, text where it can be none: the environment then says what is wrong. Of an
    argument whose schema leaves the type open (`ANY`) an object and an array are JSON.
    """
    if kinds is None:
        return _as_json(text, text)
    kinds = [_kind(word) for word in kinds]
    word = text.strip().lower()
    if "null" in kinds and word in _NULLS:
        return None
    value = None if kinds[:1] == ["string"] else _as_json(text, None)
    for kind in kinds:
        if kind == "string":
            return text
        if kind == "boolean" and word in ("true", "false"):
            return word == "true"
        if type(value) in _HOLDS.get(kind, ()):
            return value
    return text


def _read_one(text: str, position: int, tools: Tools) -> tuple[ToolCall, int]:
    head = _HEAD.match(text, position)
    if head is None:
        raise Unreadable(f"{_EXPECTED_FUNCTION}, got {text[position : position + 24]!r}")
    name, end = head[1], head.end()
    arguments: dict[str, Any] = {}
    for _ in range(MAX_OBJECTS + 1):
        end = _BLANK.match(text, end).end()  # type: ignore[union-attr]  # matches anywhere
        closed = _CLOSED.match(text, end)
        if closed is not None:
            check_plain([name, arguments])
            return ToolCall(name, arguments), closed.end()
        parameter = _PARAMETER.match(text, end)
        if parameter is None:
            got = f"got {text[end : end + 24]!r}" if end < len(text) else "the reply ends"
            raise Unreadable(f"{_EXPECTED_FUNCTION}; in {name[:40]!r} {got}")
        value, end = _read_text(text, parameter.end())
        arguments[parameter[1]] = typed(value, _kinds_of(tools, name, parameter[1]))
    raise Unreadable(f"more than {MAX_OBJECTS} parameters in one call; expected fewer")


def _read_text(text: str, start: int) -> tuple[str, int]:
    """Read a value without the line breaks around it, and where it ends; the closing tag may be missing or misspelt."""
    stop = _END_OF_VALUE.search(text, start)
    if stop is None or END_OF_THOUGHT.fullmatch(stop[0]):
        raise Unreadable(f"a value that is not closed by </parameter>; {_EXPECTED_FUNCTION}")
    value = text[start : stop.start()]
    if not stop[0]:
        tag = value.rfind("</parameter")
        if tag >= 0 and _DRIFTED_END.fullmatch(value[tag:].rstrip()):
            value = value[:tag]
    return value.removeprefix("\n").removesuffix("\n"), stop.end()


def _kinds_of(tools: Tools, tool: str, argument: str) -> Sequence[str] | None:
    """Return the types of an argument; None: the tool or its schema is not known. An argument it lacks is text."""
    parameters = tools.get(tool, {})
    schema = property_of(parameters, argument)
    if schema is None:
        return None if not names_properties(parameters) else ("string",)
    return types_of(schema, parameters)


def _kind(word: str) -> str:
    return next((kind for start, kind in _KINDS.items() if word.lower().startswith(start)), word)


def _as_json(text: str, default: Any) -> Any:
    begin = len(text) - len(text.lstrip())
    try:
        value, end = read_value(text, begin)
    except Unreadable:
        return default
    return default if text[end:].strip() else value


def _write_value(value: Any, kinds: Sequence[str] | None) -> str:
    if isinstance(value, str) and typed(value, kinds) == value and not _END_OF_VALUE.search(f"\n{value}"):
        return value
    written = END_OF_THOUGHT.sub(lambda mark: illegible(mark[0]), write_value(value, compact=False))
    return written.replace("<", illegible("<"))


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
