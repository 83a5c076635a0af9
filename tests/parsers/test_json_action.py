"""JSON replies: what is read, what is refused and in which words."""

from __future__ import annotations

import pytest

from uirl.parsers.json_action import JSONActionParser
from uirl.parsers.json_calls import MAX_OBJECTS
from uirl.types import Action, ToolCall

CLICK = ToolCall("click", {"x": 3, "y": 4})
parser = JSONActionParser()


@pytest.mark.parametrize(
    ("reply", "thought"),
    [
        ('{"action":"click","x":3,"y":4}', ""),
        ('{ "action" : "click", "x": 3,\n "y": 4 } and so on', ""),
        ('I see it.\n```json\n{"action":"click","x":3,"y":4}\n```', "I see it."),
        ('Call: [{"name":"click","arguments":{"x":3,"y":4}}]', "Call:"),
        ('<tool_call>\n{"tool":"click","args":{"x":3,"y":4}}\n</tool_call>', ""),
        ('a {brace} then {"state":1} {"action":"click","x":3,"y":4}', 'a {brace} then {"state":1}'),
        ('<think>{"action":"no"}</think>{"action":"click","x":3,"y":4}', '<think>{"action":"no"}</think>'),
        ('so {"action":"no"}</think>{"action":"click","x":3,"y":4}', 'so {"action":"no"}</think>'),
    ],
)
def test_reads_the_call_and_the_thought_before_it(reply: str, thought: str) -> None:
    action = parser.parse(reply)
    assert action == Action(text=reply, tool_calls=(CLICK,), thought=thought)


def test_a_record_with_a_name_is_passed_over() -> None:
    reply = 'She is {"name": "Alice", "id": "7"}: {"action":"click","x":3,"y":4}'
    assert parser.parse(reply).tool_calls == (CLICK,)


def test_arguments_may_be_a_string_of_json() -> None:
    assert parser.parse('{"name":"click","arguments":"{\\"x\\":3,\\"y\\":4}"}').tool_calls == (CLICK,)


def test_several_calls_stay_in_order() -> None:
    calls = parser.parse('[{"action":"a"},{"name":"b","id":"7","arguments":{}}]').tool_calls
    assert calls == (ToolCall("a"), ToolCall("b", {}, "7"))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("press the button", "no JSON object"),
        ('{"x":3,"y":4}', 'without "action"'),
        ('{"action":"click","x":3', "ends before it is closed"),
        ('{"action":"type","text":"ab', "ends before it is closed"),
        ('{"tool":"run","args":{"action":"click"}', "ends before it is closed"),
        ('{"action":"click" "x":3}', "JSON error"),
        ('{"action":3}', '"action" must be a name, got 3'),
        ('{"action":""}', '"action" must be a name'),
        ('{"name":"click","arguments":[3,4]}', '"arguments" must be an object, got [3, 4]'),
        ('{"name":"click","arguments":{},"x":3}', 'unexpected "x"'),
        ('{"name":"click","args":{},"id":3}', '"id" must be a string'),
        ('{"name":"click","x":3}', 'JSON without "action"'),
        ('The record you asked for is {"name": "Alice"}.', 'JSON without "action"'),
        ('{"tool":"hammer"}', 'JSON without "action"'),
        ('{"action":"click","x":NaN}', "NaN"),
        ('{"action":"click","x":-1e999}', "finite"),
        ('{"action":"click","x":' + "1" * 5000 + "}", "digits"),
        ('{"action":"type","text":"\\ud83d"}', "half a character"),
        ('{"action":"a","b":' + "[" * 40 + "]" * 40 + "}", "deep"),
        ('{"a":' * 5000, "deep"),
        ("{x}" * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} places"),
    ],
)
def test_says_why_a_reply_cannot_be_read(reply: str, why: str) -> None:
    action = parser.parse(reply)
    assert action.tool_calls == ()
    assert why in (action.parse_error or "")
    assert action.text == reply


def test_a_whole_call_after_loose_braces_is_found_but_none_inside_a_broken_one() -> None:
    assert parser.parse('{ hm {"action":"click","x":3,"y":4}').call == CLICK
    assert parser.parse('{"plan":{"action":"click","x":3,"y":4}').call is None


def test_renders_compact_json() -> None:
    assert parser.render(Action.of("click", x=3, y=4)) == '{"action":"click","x":3,"y":4}'
    assert parser.render(Action(tool_calls=(CLICK,), thought="there")) == 'there\n{"action":"click","x":3,"y":4}'
    assert parser.render(Action(text="just words")) == "just words"


def test_an_argument_called_action_takes_the_long_form() -> None:
    action = Action.of("run", action="click")
    assert parser.render(action) == '{"name":"run","arguments":{"action":"click"}}'
    assert parser.parse(parser.render(action)).tool_calls == action.tool_calls
