"""Labelled lines: what is read, where the reading ends, what is refused and in which words."""

from __future__ import annotations

import pytest

from uirl.parsers import ANSWER, ReActActionParser
from uirl.parsers.json_calls import MAX_OBJECTS
from uirl.types import Action, ToolCall

parser = ReActActionParser()


def answer(text: str) -> ToolCall:
    return ToolCall(ANSWER, {"text": text})


@pytest.mark.parametrize(
    ("reply", "thought", "calls"),
    [
        (
            'Thought: I look it up.\nAction: search\nAction Input: {"query": "a {b} \\"c\\" 👋"}',
            "I look it up.",
            [ToolCall("search", {"query": 'a {b} "c" 👋'})],
        ),
        ("Action: search\nAction Input: cats and dogs\n", "", [ToolCall("search", {"input": "cats and dogs"})]),
        ('Action: search\nAction Input: "cats\\n"', "", [ToolCall("search", {"input": "cats\n"})]),
        ('Action: search\nAction Input: "a" or "b', "", [ToolCall("search", {"input": '"a" or "b'})]),
        ("Action: add\nAction Input: [1, 2]", "", [ToolCall("add", {"input": "[1, 2]"})]),
        ("Action: now\nAction Input:", "", [ToolCall("now")]),
        ("Action: now\nAction Input: {}\nObservation: noon", "", [ToolCall("now")]),
        (
            "Action: run\nAction Input: ```python\nprint(1)\n```\n",
            "",
            [ToolCall("run", {"input": "```python\nprint(1)\n```"})],
        ),
        ("Action:\nsearch\n\nAction Input:\ncats", "", [ToolCall("search", {"input": "cats"})]),
        ("Action: search Action Input: cats", "", [ToolCall("search", {"input": "cats"})]),
        ('Action 1: a\nAction 1 Input: {"b": 1}', "", [ToolCall("a", {"b": 1})]),
        (
            "Action 1: a\nAction Input 1: b\nAction 2: c\nAction Input 2: d",
            "",
            [ToolCall("a", {"input": "b"}), ToolCall("c", {"input": "d"})],
        ),
        ('Action: a\nAction Input:\n```json\n{"b": 1}\n```\nThought: then', "", [ToolCall("a", {"b": 1})]),
        ('**Thought:** so\n**Action:** `a`\n**Action Input:** {"b": 1}', "so", [ToolCall("a", {"b": 1})]),
        ('Action: a\n\n  Action input : {"b": 1} and so on', "", [ToolCall("a", {"b": 1})]),
        ('Action: a\nAction Input: {"b": "x\nObservation: y"}', "", [ToolCall("a", {"b": "x\nObservation: y"})]),
        (
            "Thought: both\nAction: a\nAction Input: 1\nThought: more\nAction: b\nAction Input: 2",
            "both",
            [ToolCall("a", {"input": "1"}), ToolCall("b", {"input": "2"})],
        ),
        ("Thought: done\nFinal Answer: 42", "done", [answer("42")]),
        ("Final answer: two\nlines\nAction: none", "", [answer("two\nlines\nAction: none")]),
        ("Action: a\nAction Input: {}\nFinal Answer: 42", "", [ToolCall("a"), answer("42")]),
        ("just so\nAction: a\nAction Input: {}", "just so", [ToolCall("a")]),
        ('Action: "two\\nlines"\nAction Input: {}', "", [ToolCall("two\nlines")]),
        ("<think>\nFinal Answer: 1</think>\nFinal Answer: 2", "<think>\nFinal Answer: 1</think>", [answer("2")]),
        ("Action: a\nAction Input: {x</think>\nAction: b\nAction Input: c", None, [ToolCall("b", {"input": "c"})]),
        ("Observation: I guess\n</think>\nFinal Answer: 2", None, [answer("2")]),
    ],
)
def test_reads_actions_answers_and_the_thought(reply: str, thought: str | None, calls: list[ToolCall]) -> None:
    action = parser.parse(reply)
    assert (action.text, action.parse_error) == (reply, None)
    assert list(action.tool_calls) == calls
    if thought is not None:
        assert action.thought == thought


@pytest.mark.parametrize("invented", ["42\nFinal Answer: 42", '42\nThought: b\nAction: b\nAction Input: {"x', ""])
@pytest.mark.parametrize("call", ['Action: a\nAction Input: {"b": 1}', "Action: a\nAction Input: b", "Final Answer: 1"])
def test_an_invented_observation_ends_the_reading(call: str, invented: str) -> None:
    alone = parser.parse(call)
    followed = parser.parse(f"{call}\nObservation: {invented}")
    assert len(alone.tool_calls) == 1
    assert followed.tool_calls == alone.tool_calls


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", 'no "Action:" line'),
        ("Thought: I would press the button.", 'no "Action:" line'),
        ("The Action: a\nThe Action Input: {}", 'no "Action:" line'),
        ("Observation: 3\nFinal Answer: 3", 'no "Action:" line'),
        ("Action: search", 'no "Action Input:" after "Action: search"'),
        ("Action: search\nThought: hm\nAction Input: {}", 'no "Action Input:" after'),
        ("Action:\nAction Input: {}", "needs a name, got ''"),
        ("Action: search Final Answer:\nAction Input: cats", "needs a name, got 'search Final Answer:'"),
        ("Action:\nThought: hm\nAction Input: {}", "needs a name, got 'Thought: hm'"),
        ("Action: Action 1:\nAction Input: {}", "needs a name, got 'Action 1:'"),
        ("Action: a Observation: b\nAction Input: {}", "needs a name, got 'a Observation: b'"),
        ('Action: "a" b\nAction Input: {}', "needs a name, got '\"a\" b'"),
        ('Action: a\nAction Input: {"b": 1', "ends before it is closed"),
        ('Action: a\nAction Input: {"b": 1\nObservation: 3', "JSON error"),
        ("Action: a\nAction Input: {b}", "JSON error"),
        ("Action: a\nAction Input: 1\nAction: b\nAction Input: {", "ends before it is closed"),
        ('Action: a\nAction Input: {"b": -Infinity}', "finite"),
        ('Action: a\nAction Input: "\\udc00"', "half a character"),
        ('Action: a\nAction Input: {"b": 1e999}', "finite"),
        ('Action: "\\ud83d"\nAction Input: {}', "half a character"),
        ("Final Answer: \n ", 'nothing after "Final Answer:"'),
        ("Action: a\nAction Input: b\n" * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} "),
    ],
)
def test_says_why_a_reply_cannot_be_read(reply: str, why: str) -> None:
    action = parser.parse(reply)
    assert (action.text, action.tool_calls) == (reply, ())
    assert why in (action.parse_error or "")


def test_writes_labelled_lines() -> None:
    action = Action(tool_calls=(ToolCall("a", {"b": "ü"}), ToolCall("c d")), thought="Two.")
    assert parser.render(action) == (
        'Thought: Two.\nAction: a\nAction Input: {"b": "ü"}\nAction: c d\nAction Input: {}'
    )
    assert parser.render(Action.of(ANSWER, text="4\n2")) == "Final Answer: 4\n2"
    assert parser.render(Action(text="as it is")) == "as it is"


@pytest.mark.parametrize("text", ["", " 42", "42\n", "4\nObservation: 2", "</think>"])
def test_an_answer_that_the_line_cannot_hold_is_written_as_an_action(text: str) -> None:
    assert_written_as_an_action(Action.of(ANSWER, text=text))


def test_an_answer_with_more_than_its_text_or_before_another_call_is_written_as_an_action() -> None:
    assert_written_as_an_action(Action.of(ANSWER, text="4", unit="m"))
    assert_written_as_an_action(Action.of(ANSWER, value=4))
    assert_written_as_an_action(Action(tool_calls=(answer("4"), ToolCall("a"))))


def assert_written_as_an_action(action: Action) -> None:
    written = parser.render(action)
    assert written.startswith("Action: answer\n")
    assert parser.parse(written).tool_calls == action.tool_calls


@pytest.mark.parametrize(
    "action",
    [
        Action(tool_calls=(ToolCall("a", {}, "id-1"),)),
        Action(tool_calls=(ToolCall("a"),), thought="x\nFinal Answer: 3"),
        Action(tool_calls=(ToolCall("a"),), thought="x\nObservation: 3"),
        Action(tool_calls=(ToolCall(ANSWER, {"text": "\ud800"}),)),
    ],
)
def test_what_would_not_read_back_is_not_written(action: Action) -> None:
    with pytest.raises(ValueError, match="cannot hold the action"):
        parser.render(action)
