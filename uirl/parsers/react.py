"""Replies in labelled lines: `Thought:`, `Action:`, `Action Input:`, and `Final Answer:` at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from uirl.parsers.base import ANSWER, ActionParser, Tools
from uirl.parsers.json_calls import Malformed, Unreadable, check_plain, read_value
from uirl.parsers.reply import Format, finder, read_reply, write_marked, write_reply
from uirl.thoughts import END_OF_THOUGHT, next_end_of_thought
from uirl.types import Action, ToolCall

PLAIN_ARGUMENT = "input"
"""The argument that an `Action Input` which is no JSON object becomes."""


def _label(words: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t*]*(?P<label>{words})[ \t*]*:\**[ \t]*", re.MULTILINE)


def _end(words: str) -> re.Pattern[str]:
    """Return the pattern of where a text ends: one for the labels and the end of the thought, so that neither is looked
    for behind the other, again and again."""
    return re.compile(rf"{_label(words).pattern}|{END_OF_THOUGHT.pattern}", re.MULTILINE)


_STEP = _label(r"Action(?: ?\d+)?|Final [Aa]nswer|Observation")
_END_OF_INPUT = _end(r"Thought|Action(?: ?\d+)?|Action(?: ?\d+)? [Ii]nput(?: ?\d+)?|Final [Aa]nswer|Observation")
_END_OF_ANSWER = _end("Observation")
_INPUT = re.compile(r"\s*+\**Action(?: ?\d+)? [Ii]nput(?: ?\d+)?[ \t*]*:\**[ \t]*")
_BLANK = re.compile(r"\s*+")
_LABEL_IN_A_NAME = re.compile(
    r"(?:Action(?: ?\d+)?|Action(?: ?\d+)? [Ii]nput(?: ?\d+)?|Final [Aa]nswer|Thought|Observation)[ \t*]*:"
)
_INPUT_IN_LINE = re.compile(r"Action(?: ?\d+)? [Ii]nput(?: ?\d+)?[ \t*]*:")
_THOUGHT = re.compile(r"\A\**Thought[ \t*]*:\**\s*")
_FENCE = re.compile(r"\s*(?:```\w*\s*)?")
_NAME_ON_A_LINE = re.compile(r"[\w.:/-]+(?: [\w.:/-]+)*")


class ReActActionParser(ActionParser):
    """Reads `Action: NAME` with its `Action Input:`, and `Final Answer:`; what stands before is the thought.

    - The name may stand on the line below `Action:`, and `Action Input:` on the line of the name; both labels may have
      a number (`Action 1:`). A name with another label in it, as `Action: search Final Answer:`, is a `parse_error`.
    - `Action Input` is a JSON object, in a fence or not, or nothing for a call without arguments. Any other text, up to
      the next label and with its fences, is one string argument, `input`. What begins with a brace must be JSON.
    - `Final Answer: TEXT`, to the end of the reply, is the call `answer` with `{"text": TEXT}`.
    - Several pairs of Action and Action Input are several calls.
    - A line `Observation:` ends the reading: what the policy made up behind it is ignored, the calls before it count.
    - A reply with neither an Action nor a Final Answer is a `parse_error`, and so is an Action without an Action Input.

    Calls have no ids in this format.
    """

    def parse(self, text: str) -> Action:
        """Return the action in `text`, in linear time; never raises."""
        action = read_reply(_REACT, text)
        return replace(action, thought=_THOUGHT.sub("", action.thought))

    def render(self, action: Action) -> str:
        """Return the thought, then one Action with its Action Input per call, or a Final Answer.

        A name or an answer that the lines cannot hold is written as JSON. Without a call it is the text of the action.
        Raises TypeError or ValueError for arguments JSON cannot hold, and ValueError for a call with an id and for a
        thought that would be read as a call.
        """
        return write_reply(_REACT, action)

    def describe(self) -> str:
        return _REACT.description


def _read(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    label = _STEP.match(text, position)
    if label is None:
        raise AssertionError(f"no label at {position}, which is no place of _find")
    if label["label"] == "Observation":
        thought_end = next_end_of_thought(text, position, len(text))
        return [], thought_end if thought_end >= 0 else len(text)
    if label["label"].startswith("Action"):
        return _read_action(text, label.end())
    end = _end_of_text(text, label.end(), _END_OF_ANSWER)
    answer = text[label.end() : end].strip()
    if not answer:
        raise Unreadable('nothing after "Final Answer:"')
    check_plain(answer)
    return [ToolCall(ANSWER, {"text": answer})], end


def _read_action(text: str, position: int) -> tuple[list[ToolCall], int]:
    position = _BLANK.match(text, position).end()  # type: ignore[union-attr]  # matches anywhere
    line_end = text.find("\n", position)
    line_end = line_end if line_end >= 0 else len(text)
    quoted = text.startswith('"', position)
    same_line = None if quoted else _INPUT_IN_LINE.search(text, position, line_end)
    name_end = same_line.start() if same_line else line_end
    name = _read_name(text[position:name_end].strip())
    label = _INPUT.match(text, name_end)
    if label is None:
        raise Unreadable(f'no "Action Input:" after "Action: {name[:40]}"; write {{}} where there are no arguments')
    arguments, end = _read_input(text, label.end())
    return [ToolCall(name, arguments)], end


def _read_name(line: str) -> str:
    if line.startswith('"'):
        value, end = read_value(line, 0)
        name = value if end == len(line) else ""
    else:
        name = line.strip("`*")
    if not name or (not line.startswith('"') and _LABEL_IN_A_NAME.search(name)):
        raise Unreadable(f'"Action:" needs a name, got {line[:40]!r}')
    check_plain(name)
    return name


def _read_input(text: str, position: int) -> tuple[dict[str, Any], int]:
    """Return the arguments at `position`, and where they end."""
    fence = _FENCE.match(text, position)
    begin = fence.end() if fence else position
    if text.startswith("{", begin):
        arguments, end = read_value(text, begin)
        check_plain(arguments)
        return arguments, end
    end = _end_of_text(text, position, _END_OF_INPUT)
    plain = _without_quotes(text[position:end].strip())
    check_plain(plain)
    return ({PLAIN_ARGUMENT: plain} if plain else {}), end


def _without_quotes(text: str) -> str:
    """Return the string that `text` is in JSON, else `text`."""
    if not text.startswith('"'):
        return text
    try:
        value, end = read_value(text, 0)
    except Malformed:
        return text
    return value if end == len(text) else text


def _end_of_text(text: str, start: int, ends: re.Pattern[str]) -> int:
    """Return where a text without JSON ends: at the next of `ends`, or with the reply."""
    end = ends.search(text, start)
    return end.start() if end else len(text)


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    return "\n".join(_write_step(call, last=i == len(calls) - 1) for i, call in enumerate(calls))


def _write_step(call: ToolCall, *, last: bool) -> str:
    text = call.arguments.get("text")
    if last and call.name == ANSWER and len(call.arguments) == 1 and isinstance(text, str) and _ends_a_reply(text):
        return f"Final Answer: {text}"
    plain = _NAME_ON_A_LINE.fullmatch(call.name) and not _LABEL_IN_A_NAME.search(call.name)
    name = call.name if plain else write_marked(call.name)
    return f"Action: {name}\nAction Input: {write_marked(dict(call.arguments))}"


def _ends_a_reply(answer: str) -> bool:
    return answer != "" and answer == answer.strip() and _end_of_text(answer, 0, _END_OF_ANSWER) == len(answer)


_REACT = Format(
    finder(_STEP),
    _read,
    _write,
    "Write Thought: and what you think, then Action: NAME and on the next line Action Input: with a JSON object of "
    "arguments; or, when you know it, Final Answer: and the answer.",
    thought="Thought: {}\n",
    needed='no "Action:" line; expected Action: NAME and Action Input: {...}',
)
