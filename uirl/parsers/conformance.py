"""`check_parser`: what every parser must keep, as a suite for your own tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from uirl.errors import ContractError
from uirl.parsers.base import ActionParser
from uirl.types import Action

HOSTILE_REPLIES = (
    "",
    " \n\t",
    "\x00",
    "{",
    "}{",
    "[]",
    "null",
    "{" * 2000,
    '{"a":' * 2000,
    '{"action":',
    '{"action":null}',
    '{"action":{"action":1}}',
    '{"name":"a","arguments":[1]}',
    '{"action":"a","x":1e999}',
    '{"action":"a","x":' + "9" * 5000 + "}",
    '"' * 1001,
    "\\" * 1001,
    "```json\n```",
    "Action: ",
    "Action: a\nAction Input: {",
    "Observation: done\nFinal Answer:",
    "<tool_call></tool_call>",
    "</tool_call>",
    '<tool_call>{"name":"a","arguments":{"x":1}',
    "<think><tool_call>{</think>",
    '<|python_tag|>{"name":',
    "[TOOL_CALLS]",
    '[TOOL_CALLS][{"name":"a"},3]',
    '[TOOL_CALLS]a[ARGS]{"x":',
    "\N{WAVING HAND SIGN}\u202e\ufeff",
    "é" * 1000,
)
"""Replies that broke a parser somewhere: cut off, nested, empty, not what any format expects."""


def check_parser(parser: ActionParser, actions: Sequence[Action], replies: Sequence[str] = ()) -> None:
    """Check that `parser` keeps the contract; raise ContractError with every violation otherwise.

    `actions` are sample actions of the format: what is rendered must parse back to the same calls (or, for a format
    without calls, the same text). `replies` are further texts that must not make the parser raise.
    """
    violations = [
        *_check_description(parser),
        *_check_round_trip(parser, actions),
        *(problem for reply in (*HOSTILE_REPLIES, *replies) for problem in _check_reply(parser, reply)),
    ]
    if violations:
        name = type(parser).__name__
        raise ContractError(f"{name} breaks the parser contract:\n" + "\n".join(f"- {v}" for v in violations))


def _check_description(parser: ActionParser) -> Iterator[str]:
    said = parser.describe()
    if not isinstance(said, str):
        yield f"describe() returned {type(said).__name__}, expected a sentence for a system prompt, or an empty str"


def _check_round_trip(parser: ActionParser, actions: Sequence[Action]) -> Iterator[str]:
    for action in actions:
        text = parser.render(action)
        if not isinstance(text, str):
            yield f"render({action}) returned {type(text).__name__}, expected str"
            continue
        try:
            got = parser.parse(text)
        except Exception as error:  # a parser never raises, whatever it is: that is what is checked
            yield f"parse({text!r}), its own rendering, raised {type(error).__name__}: {error}"
            continue
        if got.parse_error is not None:
            yield f"parse(render(action)) gave parse_error {got.parse_error!r}; expected to read its own {text!r}"
        elif got.tool_calls != action.tool_calls:
            yield f"parse(render(action)) changed the calls: got {got.tool_calls}, expected {action.tool_calls}"
        elif not action.tool_calls and got.text != action.text:
            yield f"parse(render(action)) changed the text: got {got.text!r}, expected {action.text!r}"
        elif parser.render(got) != text:
            yield f"render(parse(text)) is not stable: got {parser.render(got)!r}, expected {text!r}"


def _check_reply(parser: ActionParser, reply: str) -> Iterator[str]:
    shown = reply if len(reply) < 40 else f"{reply[:37]}..."
    try:
        action = parser.parse(reply)
    except Exception as error:  # as above
        yield f"parse({shown!r}) raised {type(error).__name__}: {error}; return Action(text=reply, parse_error=why)"
        return
    if not isinstance(action, Action):
        yield f"parse({shown!r}) returned {type(action).__name__}, expected Action"
        return
    if action.text != reply:
        yield f"parse({shown!r}).text is {action.text!r:.60}, expected the reply as it was: the record must show it"
    if action.parse_error is not None and action.tool_calls:
        yield f"parse({shown!r}) gave both a parse_error and calls; a reply that cannot be read has no calls"
    if action.parse_error == "":
        yield f"parse({shown!r}) gave an empty parse_error; say why in words the policy can learn from"
    if parser.parse(reply) != action:
        yield f"parse({shown!r}) gave two different actions for the same text"
