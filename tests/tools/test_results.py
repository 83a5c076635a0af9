"""What a tool returns, as the policy sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.tools.registered import raising
from uirl.errors import EnvironmentFailure
from uirl.tools import (
    FunctionTool,
    ToolError,
    ToolRegistry,
)


def returning(value: Any) -> ToolRegistry:
    return ToolRegistry([FunctionTool(lambda: value, name="give", runs_inline=True)])


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        ("é", "é"),
        ((1, [2.5, True]), [1, [2.5, True]]),
        ({"a": {"b": ()}}, {"a": {"b": []}}),
    ],
)
def test_plain_results(value: Any, plain: Any) -> None:
    success, result = returning(value).execute_tool("give")
    assert success
    assert result == plain
    assert json.loads(json.dumps(result)) == plain


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "tool 'give' returned what cannot be kept: the result is <object .*expected what JSON holds"),
        ({"a": [1, {2}]}, r"the result\.a\[1\] is \{2\} \(set\)"),
        (float("nan"), "the result is nan"),
        ({1: 2}, "the result has the key 1"),
        (b"x", "the result is b'x'"),
        pytest.param(10**5000, "an int of 16610 bits", id="huge"),  # pytest cannot print it either
        ("\ud800", "half a character"),
    ],
)
def test_other_results_are_ours_to_mend(value: Any, words: str) -> None:
    with pytest.raises(EnvironmentFailure, match=words):
        returning(value).execute_tool("give")


def test_results_beyond_the_limits_are_the_policys_to_avoid() -> None:
    """A policy that could break a tool by asking for much would turn lost episodes into no evidence."""
    loop: list[Any] = []
    loop.append(loop)
    for value, words in ((loop, "too deep"), ([0] * 300_000, "too many values")):
        success, text = returning(value).execute_tool("give")
        assert not success
        assert words in text
        assert "ask for less" in text


def test_long_results_are_cut_and_say_so() -> None:
    registry = returning("ab" * 20)
    registry["give"].max_result_chars = 30
    assert registry.execute_tool("give") == (True, "ab" * 15 + "... (cut, 10 more characters)")
    listed = returning(list(range(100)))
    listed["give"].max_result_chars = 10
    # json.dumps(range(100)): 10 numbers of one digit, 90 of two, 99 times ', ', two brackets: 390 characters
    assert listed.execute_tool("give") == (True, "[0, 1, 2, ... (cut, 380 more characters)")
    failed = ToolRegistry([raising(ToolError("x" * 9000))])
    assert failed.execute_tool("fail") == (False, "x" * 8000 + "... (cut, 1000 more characters)")
