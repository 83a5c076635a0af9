"""The table of parsers and the public contract suite."""

from __future__ import annotations

import pytest

from uirl.errors import ConfigError, ContractError
from uirl.parsers import PARSERS, ActionParser, JSONActionParser, TextParser, check_parser, create_parser
from uirl.types import Action, ToolCall


class Shouting(ActionParser):
    """A user's parser that loses information."""

    def parse(self, text: str) -> Action:
        if not text:
            raise IndexError("nothing there")
        return Action(text=text.upper())

    def render(self, action: Action) -> str:
        return action.text or "x"


SAMPLES = {
    "text": [Action(text="go north"), Action(text="")],
    "json": [
        Action.of("click", x=3, y=4),
        Action(tool_calls=(ToolCall("a"), ToolCall("b", {"c": {"d": [1, None]}}, "id-1")), thought="two"),
        Action.of("type", text='}{"'),
    ],
}


@pytest.mark.parametrize("name", sorted(PARSERS))
def test_every_shipped_parser_keeps_the_contract(name: str) -> None:
    check_parser(create_parser(name), SAMPLES[name])


def test_contract_names_every_violation() -> None:
    with pytest.raises(ContractError) as caught:
        check_parser(Shouting(), [Action(text="abc"), Action.of("click")])
    message = str(caught.value)
    assert "Shouting" in message
    assert "'ABC', expected 'abc'" in message
    assert "raised IndexError: nothing there" in message
    assert "changed the calls" in message
    assert "expected the reply as it was" in message


def test_names_load_their_classes() -> None:
    assert isinstance(create_parser("text"), TextParser)
    assert isinstance(create_parser("json"), JSONActionParser)
    assert isinstance(create_parser(f"{Shouting.__module__}:Shouting"), Shouting)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jsn", "did you mean 'json'?"),
        ("zzz", "known: json, text"),
        ("no.such.module:Parser", "cannot be loaded"),
        ("uirl.parsers.base:Nothing", "cannot be loaded"),
        ("uirl.types:Action", "expected a subclass"),
    ],
)
def test_unknown_names_are_explained(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match="action format") as caught:
        create_parser(name)
    assert words in str(caught.value)
