"""Text of one generation -> `Action`. No input makes a parser raise."""

from __future__ import annotations

from abc import ABC, abstractmethod

from uirl.types import Action

ANSWER = "answer"
"""A final answer, in formats that know one, is the call `ToolCall("answer", {"text": ...})`: an environment finds it
where it finds every other decision, whatever the format."""


class ActionParser(ABC):
    """Reads what the policy wrote. A reply that cannot be read is an `Action` with a `parse_error`."""

    control_words: tuple[str, ...] = ()
    """Words that `render` writes and that are control tokens of the models taught this format; nothing else in what it
    renders may spell one of them."""

    @abstractmethod
    def parse(self, text: str) -> Action:
        """The action in `text`; never raises."""

    @abstractmethod
    def render(self, action: Action) -> str:
        """The text that parses to `action`: how experts and demonstrations write."""

    def describe(self) -> str:
        """How to write a call, in a sentence for a system prompt; empty: there is nothing to say."""
        return ""


class TextParser(ActionParser):
    """The reply itself is the action."""

    def parse(self, text: str) -> Action:
        return Action(text=text)

    def render(self, action: Action) -> str:
        return action.text
