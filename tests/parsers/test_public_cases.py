"""What vLLM, SGLang, transformers and LangChain test of their parsers, read by ours."""

from __future__ import annotations

import re

import pytest

from tests.parsers.public_cases import PAGE, WHY, Case, cases, page

CASES = list(cases())
NAMES = [case.name for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_published_reply_is_read_as_there_or_the_difference_is_named(case: Case) -> None:
    if case.differs:
        assert case.differs in WHY
        assert case.ours != case.theirs, "it is read the same now; take `differs` out of the data"
    elif case.theirs == "any":
        assert case.ours in ("text", "error")
    else:
        assert case.ours == case.theirs
    if case.thought is not None:
        assert case.thought in case.read(case.reply).thought


CUTTABLE = [case for case in CASES if case.source["format"] != "react" and case.read(case.reply).tool_calls]


@pytest.mark.parametrize("case", CUTTABLE, ids=lambda case: case.name)
def test_no_piece_of_a_stream_gives_a_call_that_the_whole_reply_does_not(case: Case) -> None:
    """ReAct is left out: a plain Action Input that was cut off is a shorter one."""
    whole = case.read(case.reply).tool_calls
    for length in range(len(case.reply)):
        calls = case.read(case.reply[:length]).tool_calls
        assert calls == whole[: len(calls)]


def test_every_source_is_named_so_that_it_can_be_found() -> None:
    for case in CASES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", case.source["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", case.source["commit"])
        assert case.source["licence"] in ("Apache-2.0", "MIT")
        assert case.source["path"].endswith(".py")
    assert len(set(NAMES)) == len(NAMES)


def test_every_reason_is_needed() -> None:
    assert {case.differs for case in CASES} - {""} == set(WHY)


def test_the_page_says_what_the_parsers_do() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/parsers.md is stale: python -m tests.parsers.public_cases"
