"""Text of one generation -> `Action`. No input makes a parser raise."""

from __future__ import annotations

from abc import ABC, abstractmethod

from uirl.types import Action


class ActionParser(ABC):
    """Reads what the policy wrote. A reply that cannot be read is an `Action` with a `parse_error`."""

    @abstractmethod
    def parse(self, text: str) -> Action:
        """The action in `text`; never raises."""

    @abstractmethod
    def render(self, action: Action) -> str:
        """The text that parses to `action`: how experts and demonstrations write."""


class TextParser(ActionParser):
    """The reply itself is the action."""

    def parse(self, text: str) -> Action:
        return Action(text=text)

    def render(self, action: Action) -> str:
        return action.text
