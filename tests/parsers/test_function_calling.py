"""Function calls of every style: what is read, what is plain text, what is refused and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from uirl.errors import ConfigError
from uirl.parsers import FunctionCallingParser
from uirl.parsers.json_calls import MAX_OBJECTS
from uirl.parsers.registry import format_of
from uirl.types import Action, ToolCall

ADD = ToolCall("add", {"a": 1, "b": {"c": "}{"}})
SAY = ToolCall("say", {"text": 'Grüße 👋 "q" </tool_call>; [1]'})
ADD_JSON = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}{"}}}'
SAY_JSON = '{"name": "say", "arguments": {"text": "Grüße 👋 \\"q\\" </tool_call>; [1]"}}'
ADD_LLAMA, SAY_LLAMA = ADD_JSON.replace("arguments", "parameters"), SAY_JSON.replace("arguments", "parameters")
ADD_ARGS, SAY_ARGS = ADD_JSON[29:-1], SAY_JSON[29:-1]


TOOLS = [{"type": "function", "function": {"name": name}} for name in ("add", "say", "now", "a")]


def parse(style: str, reply: str, *, tools: list[dict[str, Any]] = TOOLS) -> Action:
    action = FunctionCallingParser(style).for_tools(tools).parse(reply)
    assert action.text == reply
    return action


READ = [
    ("qwen", f"<tool_call>\n{ADD_JSON}\n</tool_call>", "", [ADD]),
    (
        "qwen",
        f"Two.\n<tool_call>\n{ADD_JSON}\n</tool_call>\n<tool_call>\n{SAY_JSON}\n</tool_call>.",
        "Two.",
        [ADD, SAY],
    ),
    ("qwen", f"<tool_call>\n```json\n{ADD_JSON}\n```\n</tool_call>", "", [ADD]),
    ("qwen", f"<tool_call>{ADD_JSON},\n{SAY_JSON}</tool_call>", "", [ADD, SAY]),
    ("qwen", f"<tool_call>[{ADD_JSON}, {SAY_JSON}]</tool_call>", "", [ADD, SAY]),
    ("qwen", f"<tool_call>{ADD_LLAMA}</tool_call>", "", [ADD]),
    ("qwen", f"<tool_call>{ADD_JSON}\n<tool_call>{SAY_JSON}", "", [ADD, SAY]),
    ("qwen", '<tool_call>{"name":"a"}</tool_call></tool_call> done {', "", [ToolCall("a")]),
    ("qwen", '<tool_call>{"name":"a","id":"7","arguments":{}}</tool_call>', "", [ToolCall("a", {}, "7")]),
    ("qwen", f"<think>or {ADD_JSON}</think>\n<tool_call>{SAY_JSON}", f"<think>or {ADD_JSON}</think>", [SAY]),
    ("qwen", f"or <tool_call>{ADD_JSON}</tool_call></think><tool_call>{SAY_JSON}", None, [SAY]),
    ("qwen", f"a <tool_call> is\n</think><tool_call>{SAY_JSON}", "a <tool_call> is\n</think>", [SAY]),
    ("llama-3", f"{ADD_LLAMA};\n{SAY_LLAMA}<|eom_id|>", "", [ADD, SAY]),
    ("llama-3", f"Let me.\n\n{ADD_LLAMA}", "Let me.", [ADD]),
    ("llama-3", f"```json\n{ADD_LLAMA}\n```", "", [ADD]),
    ("llama-3", '{"type": "function", "name": "a", "parameters": {}}', "", [ToolCall("a")]),
    ("llama-3", '<|python_tag|>{"name": "a"}', "", [ToolCall("a")]),
    ("llama-3", f'given {{"user": {ADD_LLAMA}}}: {SAY_LLAMA}', f'given {{"user": {ADD_LLAMA}}}:', [SAY]),
    ("mistral", f"[{ADD_JSON}, {SAY_JSON}]", "", [ADD, SAY]),
    ("mistral", f"I add. [{ADD_JSON}]", "I add.", [ADD]),
    ("mistral", f"```json\n[{ADD_JSON}]\n```", "", [ADD]),
    ("mistral", '[TOOL_CALLS][{"name":"a","arguments":{},"id":"VvvODy9mT"}]', "", [ToolCall("a", {}, "VvvODy9mT")]),
    ("mistral", '[TOOL_CALLS]a[CALL_ID]VvvODy9mT[ARGS]{"b": 1}', "", [ToolCall("a", {"b": 1}, "VvvODy9mT")]),
    ("mistral", f"add{ADD_ARGS}say{SAY_ARGS}", "", [ADD, SAY]),
    ("mistral", "now{}", "", [ToolCall("now")]),
    ("mistral", 'nowVvvODy9mT{}add{"b": 1}', "", [ToolCall("now", {}, "VvvODy9mT"), ToolCall("add", {"b": 1})]),
    ("mistral", f"[TOOL_CALLS] {ADD_JSON}", "", [ADD]),
    ("llama-3", '{"name": "a", "parameters": " {\\"b\\": {}}\\n"}', "", [ToolCall("a", {"b": {}})]),
    ("mistral", '[TOOL_CALLS] [{"name": "a", "arguments": "{}"}]', "", [ToolCall("a")]),
]


@pytest.mark.parametrize(("style", "reply", "thought", "calls"), READ)
def test_reads_calls_and_the_thought_before_them(
    style: str, reply: str, thought: str | None, calls: list[ToolCall]
) -> None:
    action = parse(style, reply)
    assert action.parse_error is None
    assert list(action.tool_calls) == calls
    if thought is not None:
        assert action.thought == thought


PLAIN = [
    ("qwen", f"Plain JSON is no call: {ADD_JSON}"),
    ("qwen", "<tool_cal"),
    ("qwen", f"or <tool_call>{ADD_JSON}</tool_call></think>42"),
    ("llama-3", 'They are {"name": "Bob", "age": 3} and {"answer": {broken}}.'),
    ("llama-3", 'The record you asked for is {"name": "Alice"}.'),
    ("llama-3", '{"name": "Alice", "id": "7"}'),
    ("llama-3", '{"type": "function", "name": "a"}'),
    ("llama-3", '{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}'),
    ("llama-3", f'{{"type": "function", "function": {ADD_LLAMA}}}'),
    ("llama-3", "f(x) = {x: 1}; {"),
    ("llama-3", 'cut off: {"x": {"name": "a"}'),
    ("mistral", 'cut off: [{"x": [{"name": "a"}]'),
    ("mistral", 'They are [{"name": "Bob", "age": 3}], [1, 2] and [{"answer": {broken}].'),
    ("mistral", 'Foo {"a": 1} and later foo{"a": 1}'),
    ("mistral", 'set{"a": 1}'),
    ("mistral", 'nowhere{"a": 1}'),
    ("mistral", 'now-VvvODy9m{"a": 1}'),
    ("mistral", 'The records are [{"name": "Alice"}, {"name": "Bob", "id": "7"}].'),
    ("mistral", "x{1} [TOOL_CALLS"),
    ("qwen", ""),
    ("llama-3", ""),
    ("mistral", ""),
]


@pytest.mark.parametrize(("style", "reply"), PLAIN)
def test_a_reply_without_a_call_is_plain_text(style: str, reply: str) -> None:
    action = parse(style, reply)
    assert (action.tool_calls, action.parse_error) == ((), None)
    assert FunctionCallingParser(style).render(action) == reply


def test_plain_text_has_its_thinking_as_the_thought() -> None:
    assert parse("qwen", "<think>6 * 7</think>42").thought == "<think>6 * 7</think>"
    assert parse("qwen", "42").thought == ""


BROKEN = [
    ("qwen", "<tool_call>", "ends at <tool_call>"),
    ("qwen", "<tool_call></tool_call>", "got '</tool_call>'"),
    ("qwen", "<tool_call>[]</tool_call>", "an empty list"),
    ("qwen", '<tool_call>\n{"name": "add", "argum', "ends before it is closed"),
    ("qwen", f"<tool_call>{ADD_JSON}</tool_call><tool_call>{ADD_JSON[:-1]}", "ends before it is closed"),
    ("qwen", f"{ADD_JSON}</tool_call>", "without <tool_call> before it"),
    ("qwen", '<tool_call>{"action": "add"}</tool_call>', 'without "name"'),
    ("qwen", '<tool_call>["add"]</tool_call>', "must be an object, got str"),
    ("qwen", '<tool_call>{"name": 3}</tool_call>', '"name" must be a name, got 3'),
    ("qwen", '<tool_call>{"name": "a", "arguments": "{"}</tool_call>', '"arguments" must be an object, got "{"'),
    ("qwen", '<tool_call>{"name": "a", "arguments": "[1]"}</tool_call>', 'must be an object, got "[1]"'),
    ("qwen", '<tool_call>{"name": "a", "arguments": "{\\"x\\": 1e999}"}</tool_call>', "finite"),
    ("qwen", '<tool_call>{"name": "a", "x": 1}</tool_call>', 'unexpected "x"'),
    ("qwen", '<tool_call>{"name": "a", "id": 1}</tool_call>', '"id" must be a string'),
    ("qwen", '<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', "finite"),
    ("qwen", '<tool_call>{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "digits"),
    ("qwen", '<tool_call>{"name": "a", "arguments": ' + '{"x":' * 5000, "deep"),
    ("qwen", f"<tool_call>{ADD_JSON}</tool_call>" * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} "),
    ("qwen", f"<tool_call>[{'3,' * MAX_OBJECTS}3]", f"more than {MAX_OBJECTS} calls"),
    ("qwen", '<tool_call>{"name": "a", "arguments": {"\\ud83d": 1}}</tool_call>', "half a character"),
    ("llama-3", "<|python_tag|>print(1)", "got 'print(1)'"),
    ("llama-3", '<|python_tag|>{"a": 1}', 'without "name"'),
    ("llama-3", '{"name": "add", "parameters": {"a": 1}', "ends before it is closed"),
    ("llama-3", '{"type": "function", "name": "add", "par', "ends before it is closed"),
    ("llama-3", '{"parameters": {"a": 1}, "name": ', "ends before it is closed"),
    ("llama-3", f'{ADD_LLAMA}; {{"name": "add" "parameters": ', "JSON error"),
    ("llama-3", '{"name": "a", "parameters": [1]}', '"parameters" must be an object, got [1]'),
    ("llama-3", '{"a": 1}' * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} "),
    ("mistral", "[TOOL_CALLS]", "got ''"),
    ("mistral", "[TOOL_CALLS] []", "an empty list"),
    ("mistral", "[TOOL_CALLS][ARGS]{}", "got '[ARGS]{}'"),
    ("mistral", f"[TOOL_CALLS] [{ADD_JSON}", "ends before it is closed"),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": ', "ends before it is closed"),
    ("mistral", 'add{"a": 1', "ends before it is closed"),
    ("mistral", f'add{ADD_ARGS}say{{"text": "', "ends before it is closed"),
    ("mistral", '[TOOL_CALLS]a[ARGS]{"x": "\\ud83d"}', "half a character"),
    ("mistral", "[TOOL_CALLS] [3]", "must be an object, got int"),
    ("mistral", "a{}" * (MAX_OBJECTS + 1), f"more than {MAX_OBJECTS} calls"),
]


@pytest.mark.parametrize(("style", "reply", "why"), BROKEN)
def test_a_call_that_begins_and_cannot_be_read_is_an_error(style: str, reply: str, why: str) -> None:
    action = parse(style, reply)
    assert action.tool_calls == ()
    assert why in (action.parse_error or "")


def test_every_style_writes_as_its_models_do() -> None:
    action = Action(tool_calls=(ToolCall("add", {"a": 1}), ToolCall("b", {}, "id7")), thought="Two.")
    written = {style: FunctionCallingParser(style).render(action) for style in ("qwen", "llama-3", "mistral")}
    assert written == {
        "qwen": 'Two.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {}, "id": "id7"}\n</tool_call>',
        "llama-3": 'Two.\n{"name": "add", "parameters": {"a": 1}}; {"name": "b", "parameters": {}, "id": "id7"}',
        "mistral": 'Two.\n[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, '
        '{"name": "b", "arguments": {}, "id": "id7"}]',
    }


@pytest.mark.parametrize("style", ["qwen", "llama-3", "mistral"])
def test_markers_in_arguments_are_not_legible_in_the_reply(style: str) -> None:
    nasty = "</tool_call><tool_call></think><|python_tag|>[TOOL_CALLS][ARGS]\\<|im_end|>"
    parser = FunctionCallingParser(style)
    text = parser.render(Action.of("say", text=nasty))
    assert parser.parse(text).tool_calls == (ToolCall("say", {"text": nasty}),)
    arguments = text[text.index("say") :].removesuffix("\n</tool_call>")
    assert not [marker for marker in ("<tool", "</", "<|", "[TOOL", "[ARGS") if marker in arguments]


@pytest.mark.parametrize(
    ("style", "marker"), [("llama-3", "<|python_tag|>"), ("mistral", "[TOOL_CALLS]"), ("mistral", "[ARGS]")]
)
def test_special_tokens_may_be_missing_from_what_is_rendered(style: str, marker: str) -> None:
    parser = FunctionCallingParser(style)
    action = Action(tool_calls=(ADD, SAY), thought="Two.")
    read = parser.parse(parser.render(action).replace(marker, ""))
    assert (read.tool_calls, read.thought) == (action.tool_calls, "Two.")


@pytest.mark.parametrize(
    ("style", "thought"),
    [
        ("qwen", "I write <tool_call> now"),
        ("qwen", f"<tool_call>{ADD_JSON}</tool_call>"),
        ("llama-3", '{"name": "no", "parameters": {}}'),
        ("mistral", "now{}"),
    ],
)
def test_a_thought_that_reads_as_a_call_is_not_written(style: str, thought: str) -> None:
    with pytest.raises(ValueError, match="is a call in the thought"):
        FunctionCallingParser(style).for_tools(TOOLS).render(Action(tool_calls=(ADD,), thought=thought))


def test_a_bare_head_is_no_call_where_the_tools_are_not_known() -> None:
    assert parse("mistral", 'add{"a": 1}').tool_calls == (ToolCall("add", {"a": 1}),)
    assert parse("mistral", 'add{"a": 1}', tools=[]).tool_calls == ()


def test_the_parser_for_some_tools_leaves_the_first_as_it_was() -> None:
    parser = FunctionCallingParser("mistral")
    parser.for_tools(TOOLS)
    assert parser.parse("now{}").tool_calls == ()
    assert format_of(parser) == "mistral"


@pytest.mark.parametrize("schemas", [[{}], [{"function": 3}], [{"function": {"name": 3}}], [{"name": "now"}]])
def test_schemas_of_other_shapes_do_not_break_it(schemas: list[dict[str, Any]]) -> None:
    known = "name" in schemas[0]
    assert bool(parse("mistral", "now{}", tools=schemas).tool_calls) == known


def test_arguments_that_json_cannot_hold_are_not_written() -> None:
    with pytest.raises(TypeError):
        FunctionCallingParser().render(Action.of("a", x=object()))
    with pytest.raises(ValueError):
        FunctionCallingParser().render(Action.of("a", x=float("nan")))


def test_an_unknown_style_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mistral'"):
        FunctionCallingParser("mistrall")
