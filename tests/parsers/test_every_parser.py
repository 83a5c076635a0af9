"""What holds for every format: replies read back, no reply breaks a parser, and the work grows with the length."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.parsers import PARSERS, ActionParser, check_parser, create_parser, json_calls
from uirl.parsers.json_calls import MAX_OBJECTS
from uirl.types import Action, ToolCall

FORMATS = sorted(set(PARSERS) - {"hermes", "function_calling"})
WITH_CALLS = sorted(set(FORMATS) - {"text"})
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("a", "add", "say", "search", "click")]
CORPUS = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).with_name("corpus").glob("*.txt")}

MARKERS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<thinking>",
        "</thinking>",
        "<|python_tag|>",
        "<|im_end|>",
    ),
    *("<function=a>", "</function>", "<parameter=b>", "\n<parameter=b>", "</parameter>"),
    *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "```json\n", "```", "\nThought:", "\nAction: a", "\nAction Input: {}"),
    *("\nObservation: 1", "\nFinal Answer: 2", '{"name":"a"}', '[{"name":"a","arguments":{}}]', "a{}", ";", "{", "}"),
    *("```python\n", "pyautogui.click(1, 2)", "\nDONE", "computer.a(", ")"),
    *("[", "]", '"', "\\", "\\u003c", "\n", "\r", "\u2028", "\x00", " ", "é", "👋", "null", "0"),
)
nasty = st.lists(st.sampled_from(MARKERS) | st.text(max_size=3), max_size=6).map("".join)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | nasty,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(nasty, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(nasty, plain, max_size=4)
answers = st.builds(lambda text: ToolCall("answer", {"text": text}), nasty)
calls = st.builds(ToolCall, nasty.filter(bool) | st.just("click"), arguments) | answers
words = st.text("ab_.:", min_size=1, max_size=4)
calls_in_tags = st.builds(ToolCall, words, st.dictionaries(words, plain, max_size=4)) | answers
identifiers = st.sampled_from(["a", "b_2", "click", "x", "y", "text", "wait", "scroll", "é"])
calls_in_python = st.builds(ToolCall, identifiers, st.dictionaries(identifiers, plain, max_size=4)) | answers
calls_with_ids = st.builds(ToolCall, nasty.filter(bool), arguments, nasty)


def made(name: str) -> ActionParser:
    """The parser of that name for a policy with tools: so it reads the most as calls."""
    return create_parser(name).for_tools(TOOLS)


def actions_of(name: str, thoughts: st.SearchStrategy[str]) -> st.SearchStrategy[Action]:
    """Actions that the format can hold."""
    of_format = {"react": calls, "qwen3-coder": calls_in_tags, "pyautogui": calls_in_python}.get(
        name, calls | calls_with_ids
    )
    several = st.lists(of_format, min_size=1, max_size=1 if name == "mai_ui" else 3)
    return st.builds(lambda some, thought: Action(tool_calls=tuple(some), thought=thought), several, thoughts)


@pytest.mark.parametrize("name", WITH_CALLS)
@given(st.data())
def test_what_is_rendered_parses_back(name: str, data: st.DataObject) -> None:
    parser = made(name)
    action = data.draw(actions_of(name, st.sampled_from(["", "I see.", "Zwei Wörter: 1) {so}\n2) [ok] <b>"])))
    text = parser.render(action)
    assert parser.parse(text) == replace(action, text=text)


@pytest.mark.parametrize("name", WITH_CALLS)
@given(st.data())
def test_no_thought_makes_it_write_other_calls(name: str, data: st.DataObject) -> None:
    parser = made(name)
    action = data.draw(actions_of(name, nasty))
    try:
        text = parser.render(action)
    except ValueError:
        return
    assert parser.parse(text).tool_calls == action.tool_calls


# how the public families write a thought: (family, what opens it, what closes it)
THOUGHTS = [
    ("Qwen, DeepSeek, GLM", "<think>", "</think>"),
    ("MAI-UI", "<thinking>", "</thinking>"),
    ("EXAONE Deep", "<thought>", "</thought>"),
    ("Magistral", "[THINK]", "[/THINK]"),
    ("Seed-OSS", "<seed:think>", "</seed:think>"),
    ("OpenThinker", "<|begin_of_thought|>", "<|end_of_thought|>"),
    ("Kimi", "◁think▷", "◁/think▷"),
    ("Cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    ("Apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
    ("MiniMax", "<mm:think>", "</mm:think>"),
    ("Gemma 4", "<|channel>thought\n", "<channel|>"),
    ("gpt-oss", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("gpt-oss, a call", "<|channel|>analysis<|message|>",
     "<|end|><|start|>assistant<|channel|>commentary to=functions.a <|constrain|>json<|message|>"),
    ("Granite", "Here is my thought process:", "Here is my response:"),
]  # fmt: skip
DRAFT, WRITTEN = Action(tool_calls=(ToolCall("say", {"x": 1}),)), Action(tool_calls=(ToolCall("add", {"x": 2}),))


@pytest.mark.parametrize(("family", "opens", "closes"), THOUGHTS, ids=[family for family, *_ in THOUGHTS])
@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_is_drafted_in_a_thought_is_not_executed(name: str, family: str, opens: str, closes: str) -> None:
    parser = made(name)
    draft, written = parser.render(DRAFT), parser.render(WRITTEN)
    if name == "text":
        draft, written = "say 1", "add 2"
        assert parser.parse(f"{opens}maybe {draft}{closes}\n{written}").answer == written
        assert parser.parse(f"{opens}maybe {draft}").answer == ""
        return
    thought = f"{opens}maybe\n{draft}\n"
    action = parser.parse(f"{thought}{closes}\n{written}")
    assert (action.tool_calls, action.parse_error) == (WRITTEN.tool_calls, None)
    assert "maybe" in action.thought
    assert "add" not in action.thought
    assert parser.parse(thought).tool_calls == ()
    assert parser.parse(f"{thought}{closes}\nI will not.").tool_calls == ()
    if family != "Granite":
        assert parser.parse(f"Well.\n{thought}").tool_calls == ()  # opened behind the first words, and cut off
        assert parser.parse(f"maybe\n{draft}\n{closes}\n{written}").tool_calls == WRITTEN.tool_calls  # by the template


def format_of(stem: str) -> str:
    return stem.rpartition("-")[0]


def mutations(text: str) -> Iterator[str]:
    """`text` cut at every byte, short of every character, with one doubled, nested, and with numbers too large."""
    data = text.encode()
    yield from (data[:n].decode("utf-8", errors="replace") for n in range(len(data)))
    yield from (text[:i] + text[i + 1 :] for i in range(len(text)))
    yield from (text[: i + 1] + text[i:] for i in range(len(text)))
    yield from (text * 2, text * (MAX_OBJECTS + 1), text[::-1], text.swapcase())
    yield from (text.replace("{", opening * 5000, 1) for opening in ('{"a":', "[", "{"))
    yield from (text.replace('": ', f'": {number}, "q": ', 1) for number in ("9" * 5000, "1e999", "-" * 99, "NaN"))


@pytest.mark.parametrize("name", FORMATS)
def test_no_mutation_of_a_valid_reply_breaks_it(name: str) -> None:
    own = [reply for stem, reply in CORPUS.items() if format_of(stem) == name]
    check_parser(made(name), [], [broken for reply in own for broken in mutations(reply)])
    foreign = list(CORPUS.values())
    rng = random.Random(7)
    spliced = []
    for _ in range(400):
        left, right = rng.choices(foreign, k=2)
        spliced.append(left[: rng.randrange(len(left))] + right[rng.randrange(len(right)) :])
    check_parser(made(name), [], foreign + spliced)


@pytest.mark.parametrize("stem", sorted(CORPUS))
def test_every_reply_of_the_corpus_is_read_and_written_again(stem: str) -> None:
    parser = made(format_of(stem))
    action = parser.parse(CORPUS[stem])
    assert action.parse_error is None
    assert action.tool_calls
    if format_of(stem) != "json":
        action = replace(action, thought="")
    assert parser.parse(parser.render(action)).tool_calls == action.tool_calls


MEGABYTE = 1_000_000
QWEN_CALL = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
GARBAGE: dict[str, Callable[[int], str]] = {
    "random bytes": lambda n: random.Random(1).randbytes(n).decode("latin-1"),
    "random UTF-8": lambda n: random.Random(1).randbytes(n).decode("utf-8", errors="replace"),
    "random marks": lambda n: "".join(random.Random(1).choices('{}[]":,\\ \n<>/ab', k=n)),
    "a long list": lambda n: QWEN_CALL.replace("{}", '{"l":[' + "1," * (n // 2) + "1]}"),
    "a long thought": lambda n: "x" * n + QWEN_CALL,
    "a deep list": lambda n: 'Action: a\nAction Input: {"l":' + "[" * n,
    "a wide gap": lambda n: "[TOOL_CALLS]a" + " " * n + "b",
    "quotes after a tag": lambda n: "<tool_call>" + "`" * n,
    "an open fence": lambda n: "Action: a\nAction Input: ```" + " " * n + "x",
    "an empty name": lambda n: "Action: a" + "\n " * (n // 2),
    "digits": lambda n: '{"name":"a","parameters":{"l":' + "9" * n,
    **{
        unit: lambda n, unit=unit: (unit * (n // len(unit) + 1))[:n]  # type: ignore[misc]
        for unit in (
            *("{", '{"', '{"a":1}', "[", '[{"', '"\\', '"', "a{}", "\n", " ", "\n *", "```a", "<", "</think>"),
            *(
                "<tool_call>",
                "<tool_call>{</think>",
                '<tool_call>{"name":"a"}</think>',
                "<|python_tag|>",
                "[TOOL_CALLS]",
            ),
            *(
                "Action: ",
                "Action: a\n",
                "Action: a\nAction Input: {}\n",
                "Action: a\nAction Input: b\n",
                "Thought: a\n",
            ),
            *("Observation:\n", "Observation:</think>\n", "Final Answer: x\n", "👋", '{"action":"a"}', QWEN_CALL),
            *('{"name":"a","parameters":{}}; ', "[TOOL_CALLS]a[ARGS]{}", '[TOOL_CALLS][{"name":"a"}]'),
        )
    },
}


@pytest.mark.parametrize("name", WITH_CALLS)
@pytest.mark.parametrize("kind", sorted(GARBAGE))
def test_a_value_is_tried_at_a_bounded_number_of_places_and_at_none_twice(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    decode = json_calls._DECODER.raw_decode

    def counting(text: str, position: int = 0) -> tuple[object, int]:
        tried.append(position)
        return decode(text, position)

    monkeypatch.setattr(json_calls._DECODER, "raw_decode", counting)
    made(name).parse(GARBAGE[kind](MEGABYTE // 10))
    assert len(tried) <= MAX_OBJECTS + 1
    assert tried == sorted(set(tried))
