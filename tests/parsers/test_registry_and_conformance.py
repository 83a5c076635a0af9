"""The table of parsers and the public contract suite."""

from __future__ import annotations

import pytest

from uirl.errors import ConfigError, ContractError
from uirl.parsers import (
    PARSERS,
    ActionParser,
    JSONActionParser,
    MAIUIActionParser,
    ReActActionParser,
    TextParser,
    check_parser,
    create_parser,
)
from uirl.types import Action, ToolCall


class Shouting(ActionParser):
    """A user's parser that loses information."""

    def parse(self, text: str) -> Action:
        if not text:
            raise IndexError("nothing there")
        return Action(text=text.upper())

    def render(self, action: Action) -> str:
        return action.text or "x"

    def describe(self) -> str:
        return None  # type: ignore[return-value]


TWO_CALLS = Action(tool_calls=(ToolCall("a"), ToolCall("b", {"c": {"d": [1, None]}}, "id-1")), thought="two")
FUNCTION_CALLS = [Action.of("click", x=3, y=4), TWO_CALLS, Action(text="just words"), Action.of("type", text='}{"')]
SAMPLES = {
    "text": [Action(text="go north"), Action(text="")],
    "react": [
        Action.of("search", query="x"),
        Action.of("answer", text="42"),
        Action.of("a b", text="\nObservation: no"),
    ],
    "mai_ui": [Action.of("click", coordinate=[3, 4]), Action.of("answer", text="42"), Action.of("mail.send", to="x")],
    "pyautogui": [
        Action.of("click", x=3, y=4),
        Action.of("drag", x=1, y=2, to_x=3, to_y=4),
        Action.of("scroll", direction="down", x=1, y=2, amount=3),
        Action.of("keys", keys="ctrl++"),
        Action.of("type", text="```\n</think>'\"\\"),
        Action.of("terminate", status="failure"),
        Action.of("answer", text="42"),
        Action(text="just words"),
    ],
    "computer": [
        Action.of("click", x=3, y=4, modifiers="ctrl"),
        Action.of("drag", x=1, y=2, to_x=3, to_y=4),
        Action.of("keys", keys="ctrl+a"),
        Action.of("answer", text="42"),
        TWO_CALLS,
    ],
    "qwen3-coder": [Action.of("click", x=3, y="4"), Action.of("type", text="</parameter>"), Action(text="just words")],
    **dict.fromkeys(("function_calling", "qwen", "hermes", "llama-3", "mistral"), FUNCTION_CALLS),
    "json": [Action.of("click", x=3, y=4), TWO_CALLS, Action.of("type", text='}{"')],
}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_shipped_parser_keeps_the_contract(name: str) -> None:
    assert name in SAMPLES, f"add actions that {name!r} can write to SAMPLES"
    check_parser(create_parser(name), SAMPLES[name])


def test_contract_names_every_violation() -> None:
    with pytest.raises(ContractError) as caught:
        check_parser(Shouting(), [Action(text="abc"), Action.of("click")])
    message = str(caught.value)
    assert "Shouting" in message
    assert "describe() returned NoneType" in message
    assert "'ABC', expected 'abc'" in message
    assert "raised IndexError: nothing there" in message
    assert "changed the calls" in message
    assert "expected the reply as it was" in message


def test_names_load_their_classes() -> None:
    assert isinstance(create_parser("text"), TextParser)
    assert isinstance(create_parser("json"), JSONActionParser)
    assert isinstance(create_parser("react"), ReActActionParser)
    assert isinstance(create_parser("mai_ui"), MAIUIActionParser)
    assert isinstance(create_parser(f"{Shouting.__module__}:Shouting"), Shouting)


def test_every_format_with_calls_says_how_to_write_one() -> None:
    silent = [name for name in PARSERS if not create_parser(name).describe()]
    assert silent == ["text"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jsn", "did you mean 'json'?"),
        ("zzz", f"; known: {', '.join(sorted(PARSERS))} (or give 'package.module:Class')"),
        ("llama3", "did you mean 'llama-3'?"),
        ("uirl.parsers:FunctionCallingParser:gwen", "did you mean 'qwen'?"),
        ("no.such.module:Parser", "cannot be loaded"),
        ("uirl.parsers.base:Nothing", "cannot be loaded"),
        ("uirl.types:Action", "expected a subclass"),
    ],
)
def test_unknown_names_are_explained(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_parser(name)
    assert words in str(caught.value)
