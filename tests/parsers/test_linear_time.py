"""A reply of a megabyte costs time in proportion to its length, whatever it holds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from uirl.parsers import PARSERS, create_parser

pytestmark = pytest.mark.slow

UNITS = (
    *("Final Answer: a</think>", "Final Answer: a</think>\n", "\nFinal Answer: a", "Action: a\nAction Input: b\n"),
    *("Action: a\nAction Input: {}\n", "Action: a\nAction Input: {</think>\n", "Action: a</think>\n", "Action: a\n"),
    *("Action:\n", "Action: \n \n", "Action 1: a Action Input 1: ", "Action: Action", "Action Input: "),
    *("\nObservation: </think>", "Thought: ", "\n* \t", "Action *\t:", "</think>", "<think>"),
    *("<thinking></thinking>", "<tool_call>", "<tool_call>{</think>", "</tool_call>", "<tool_call>[]"),
    *('<tool_call>{"name":"a"}</tool_call>', '<tool_call>{"name":"a"}', "<function=", "<function=a>"),
    *("<function=a></function>", "<function=a></think>", "<function=a><parameter=b>"),
    *("<function=a><parameter=b></think>", "<function=a>\n<parameter=b>\n</parameter1>"),
    *("<function=a><parameter=b>\n</parameter></function>", '<function=a><parameter=b>"</parameter></function>'),
    *("<tool_call><function=a>" + " " * 50 + "<parameter=b>1</parameter>", "<parameter=b>"),
    *("<parameter=b>1</parameter>", "</parameter>", "</function>", '{"name":"a"}</think>'),
    *('{"name":"a","arguments":{"x":1}};', '{"action":"a"}', '{"action":"a"}</think>', "{", "[", "}", '{"', '{"a":'),
    *('{"a":{"b":[', "{ \n", "[ \n", "[{ ", '"', '\\"', "\\", "\\u", "\\ud800", '{"a":"\\ud800"}', "```"),
    *("```json\n", "```a ", "[TOOL_CALLS]", "[TOOL_CALLS]a[ARGS]{}", '[TOOL_CALLS][{"name":"a"}]</think>'),
    *("[CALL_ID][ARGS]", '[{"name":"a"}]', 'a{"b":1}', "a{", "<|python_tag|>", "<|python_tag|>{</think>", "<|", " "),
    *("pyautogui.click(1, 2)\n", "```python\n", "```python\n```", "pyautogui.write('", "pyautogui.a(-", "DONE\n"),
    *("pyautogui.click(1)</think>\n", "\nWAIT", "computer.a(x=["),
    *("\n", "*", "a", "9", "-", "é"),
)
ENDS = (
    "",
    "x",
    "<function=a><parameter=b>",
    "<function=a>\n<parameter=b>\n",
    "\nAction: a\nAction Input: {",
    "Final Answer: ",
    '{"name":"a","arguments":',
    "</think>",
)


def hostile(unit: str, length: int) -> Iterator[str]:
    body = unit * (length // len(unit))
    for end in ENDS:
        yield body + end
    yield "<think>" + body
    yield f'{{"action":"{body}"}}'
    yield f'<tool_call>{{"name":"a","arguments":{{"x":"{body}'
    yield f"<tool_call><function=a><parameter=b>{body}</parameter></function>"
    yield f"Action: {body}\nAction Input: {body}"


def seconds(work: Callable[[str], object], text: str) -> float:
    """Of the processor, the least of three."""
    return min(seconds_once(work, text) for _ in range(3))


def seconds_once(work: Callable[[str], object], text: str) -> float:
    started = time.process_time()
    work(text)
    return time.process_time() - started


LABELS = re.compile(r"^[ \t*]*(?P<label>Action|Final Answer|Observation)[ \t*]*:", re.MULTILINE)
LENGTH = 100_000


@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"hermes", "function_calling"}))
def test_a_hostile_reply_costs_a_few_readings_of_it(name: str) -> None:
    """Measured against one search through a text of that length, on the same machine in the same moment: a parser that
    searches the rest of the reply anew at each of its places (a hundred) costs fifty of them, quadratic work more."""
    parser = create_parser(name)
    for unit in UNITS:
        for text in hostile(unit, LENGTH):
            taken = seconds_once(parser.parse, text)
            if taken < 0.01:
                continue
            one = seconds(LABELS.findall, "Final Answer: a\n" * (LENGTH // 16))
            taken = seconds(parser.parse, text)
            assert taken < 35 * one, f"{unit!r} takes {taken / one:.0f} readings"
