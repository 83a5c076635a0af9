"""How a reply is walked through: thoughts and drafts, then calls, then whatever is passed over.

A `Format` says where calls begin and how one is read; the walk is the same for all formats.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from uirl.parsers.base import Tools
from uirl.parsers.json_calls import MAX_OBJECTS, Unreadable, check_count, write_value
from uirl.thoughts import END_OF_THOUGHT, Thoughts, end_of_thought, next_end_of_thought
from uirl.types import Action, ToolCall

_OPENING = re.compile(r"(?:```\w*|<tool_call>|\[)\s*$")
_MARKERS = ("<tool_call>", "</tool_call>", "<|", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")


class NoCall(Exception):
    """What stands where a call could begin is none, and why. `end`: from where the next one may begin."""

    def __init__(self, why: str, end: int) -> None:
        super().__init__(why)
        self.end = end


NO_TOOLS: Tools = {}
"""Which tools there are is not known."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one family of models writes calls."""

    find: Callable[[str, int, Tools], int]
    """(reply, from where, tools) -> where the next call may begin; -1: there is none."""
    read: Callable[[str, int, Tools], tuple[list[ToolCall], int]]
    """(reply, a place of `find`, tools) -> the calls there and where they end, after that place. Raises Unreadable, or
    NoCall."""
    write: Callable[[Sequence[ToolCall], Tools], str]
    """(at least one call, tools) -> their part of a reply."""
    description: str
    """One sentence for a system prompt."""
    control_words: tuple[str, ...] = ()
    """What `write` begins a call with, where that is a control token; `write_marked` keeps it out of arguments."""
    thought: str = "{}\n"
    """How a thought stands before the calls."""
    needed: str = ""
    """What a reply without a call lacks, and what is expected, or why the last `NoCall` was none: that is told. Empty:
    such a reply is text."""


def read_reply(form: Format, text: str, tools: Tools = NO_TOOLS) -> Action:
    """Return the action in `text`, in linear time; without calls and error where no call begins in it and none is
    `needed`.

    Everything up to the end of a thought (`uirl.thoughts`) outside of a call is thought, drafts of calls included,
    broken ones too. Of a reply without calls only that is thought; of others, all that stands before the first call.
    What opens a thought and does not close it is thought to the end: it was cut off, or nothing in it was decided.
    """
    try:
        return _walk(form, text, tools)
    except Unreadable as error:
        return Action(text=text, parse_error=str(error))


def _walk(form: Format, text: str, tools: Tools) -> Action:
    calls: list[ToolCall] = []
    thoughts = Thoughts(text)
    first, end = -1, thoughts.in_words
    thought_end, lacks = end, form.needed
    for _ in range(MAX_OBJECTS + 1):
        position = form.find(text, end, tools) if end >= 0 else -1
        closed, end = thoughts.skip(end, position) if end >= 0 else (-1, end)
        if closed >= 0:
            calls.clear()
            thought_end = closed
        if end < 0 and not calls:
            if form.needed:
                raise Unreadable(f"the thinking is not closed, so there is {form.needed}")
            if end_of_thought(text, thoughts) == len(text):
                return Action(text, thought=text)
        if position < 0 or end < 0:
            if lacks and not calls:
                raise Unreadable(lacks)
            return Action(text, tuple(calls), text_before(text, first if calls else thought_end))
        if end > position:  # a draft
            continue
        try:
            found, end = form.read(text, position, tools)
        except NoCall as other:
            lacks, end = str(other), other.end
            continue
        except Unreadable:
            end = next_end_of_thought(text, position, len(text))
            if end < 0:
                raise
            continue
        if found and not calls:
            first = position
        calls += found
        check_count(calls)
    raise Unreadable(f"more than {MAX_OBJECTS} places where a call could begin; expected fewer")


def write_reply(form: Format, action: Action, tools: Tools = NO_TOOLS) -> str:
    """Return the text that `read_reply` reads as `action`; the text of the action where it has no calls.

    Raises TypeError or ValueError for arguments JSON cannot hold, and ValueError where the format cannot hold the
    action: what is written here is learnt from, so it must read back.
    """
    if not action.tool_calls:
        return action.text
    thought = form.thought.format(action.thought) if action.thought else ""
    return checked(thought + form.write(action.tool_calls, tools), action, lambda text: read_reply(form, text, tools))


def checked(text: str, action: Action, read: Callable[[str], Action]) -> str:
    """Return `text`, which was written for `action`. Raises ValueError where `read` makes other calls of it."""
    back = read(text)
    if _as_json(back.tool_calls) != _as_json(action.tool_calls):
        got = back.parse_error or f"{_as_json(back.tool_calls)} instead of {_as_json(action.tool_calls)}"
        raise ValueError(f"this format cannot hold the action: {text!r:.200} reads as {got}; is a call in the thought?")
    return text


def text_before(text: str, first: int) -> str:
    """Return the thought before a call at `first`: without the fence or bracket that opens the call."""
    return _OPENING.sub("", text[:first]).strip()


def first_match(pattern: re.Pattern[str], text: str, start: int, stop: int = sys.maxsize) -> int:
    """Return where `pattern` first matches in `text[start:stop]`; -1: nowhere."""
    match = pattern.search(text, start, stop)
    return match.start() if match else -1


def finder(pattern: re.Pattern[str]) -> Callable[[str, int, Tools], int]:
    """Return the `find` of a format whose calls begin where `pattern` matches."""
    return lambda text, start, tools: first_match(pattern, text, start)


def write_marked(value: object, *, compact: bool = False) -> str:
    r"""Return `value` as JSON in which no marker of any format is legible: its first character is a \u escape."""
    text = END_OF_THOUGHT.sub(lambda mark: illegible(mark[0]), write_value(value, compact=compact))
    for marker in _MARKERS:
        text = text.replace(marker, illegible(marker))
    return text


def illegible(marker: str) -> str:
    r"""Return the letters of a marker as JSON reads them, the first as a \u escape."""
    return f"\\u{ord(marker[0]):04x}{marker[1:]}"


def _as_json(calls: Sequence[ToolCall]) -> str:
    return write_value([[call.name, dict(call.arguments), call.id] for call in calls], compact=True)
