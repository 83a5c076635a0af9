"""What all spaces of actions check alike in the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uirl.runtime.limits import is_whole, shown


class Mistake(ValueError):
    """What is wrong with a call, in words for the policy."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of one call, checked as they are asked for."""

    action: str
    values: Mapping[str, Any]

    def has(self, *names: str) -> bool:
        """Return whether one of these arguments is there."""
        return any(name in self.values for name in names)

    def bounded(self, name: str, text: str, max_chars: int) -> str:
        """Return the text of the argument `name`. Raises Mistake for a long one, and for half of a surrogate pair."""
        if len(text) > max_chars:
            raise Mistake(f"{self.action} takes at most {max_chars} characters; got {len(text)}")
        if not is_whole(text):
            raise Mistake(f"{self.action} needs text of whole characters; {name} holds half of a surrogate pair")
        return text


def shown_value(value: Any) -> str:
    """Return a value for the policy: Python refuses to write very long numbers."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return shown(value, 40)
