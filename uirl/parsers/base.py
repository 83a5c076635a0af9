"""Text of one generation -> `Action`. No input makes a parser raise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from uirl.thoughts import end_of_thought
from uirl.types import Action

ANSWER = "answer"
"""A final answer, in formats that know one, is the call `ToolCall("answer", {"text": ...})`: an environment finds it
where it finds every other decision, whatever the format."""


Tools: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Name of a tool -> the JSON schema of its arguments. Empty: which tools there are is not known."""


class ActionParser(ABC):
    """Reads what the policy wrote. A reply that cannot be read is an `Action` with a `parse_error`."""

    control_words: tuple[str, ...] = ()
    """Words that `render` writes and that are control tokens of the models taught this format; nothing else in what it
    renders may spell one of them."""

    @abstractmethod
    def parse(self, text: str) -> Action:
        """Return the action in `text`; never raises."""

    @abstractmethod
    def render(self, action: Action) -> str:
        """Return the text that parses to `action`: how experts and demonstrations write."""

    def describe(self) -> str:
        """Return how to write a call, in a sentence for a system prompt; empty: there is nothing to say."""
        return ""

    def for_tools(self, schemas: Sequence[Mapping[str, Any]]) -> ActionParser:
        """Return the parser for a policy with these tools; itself where the format reads the same with and without.

        `schemas`: as chat templates take them, `{"type": "function", "function": {"name", "parameters"}}`. A format
        whose calls can look like ordinary text takes them for calls only where there is a tool of that name, and one
        that writes arguments as text learns their types.
        """
        return self


def tools_of(schemas: Sequence[Mapping[str, Any]]) -> Tools:
    """Return the tools in schemas of functions; what names none is passed over."""
    found: dict[str, Mapping[str, Any]] = {}
    for schema in schemas:
        function = schema.get("function", schema)
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            found[name] = parameters if isinstance(parameters, Mapping) else {}
    return found


class TextParser(ActionParser):
    """The reply itself is the action; a thought that it begins with is told apart."""

    def parse(self, text: str) -> Action:
        return Action(text=text, thought=text[: end_of_thought(text)])

    def render(self, action: Action) -> str:
        return action.text
