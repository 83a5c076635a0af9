"""Dialogs of a page (alert, confirm, prompt, leaving): who answers them, and in which words they are told."""

from __future__ import annotations

from dataclasses import dataclass

from uirl.errors import EnvironmentFailure
from uirl.runtime.limits import shown

_LONGEST = 200


class Blocked(EnvironmentFailure):
    """A dialog is open, and the page does nothing until it is answered: after an action of the policy, its choice."""


@dataclass(slots=True)
class Dialog:
    """One that is open."""

    kind: str
    """'alert', 'confirm', 'prompt' or 'beforeunload'."""
    message: str
    proposed: str = ""
    typed: str | None = None
    """What the policy has typed into it; None: what is proposed stands there."""

    def words(self, action: bool) -> str:
        """Return the question in words for the policy; `action`: it has an action for dialogs, beside its keys."""
        ways = 'answer with the action dialog, "ok" or "cancel"' if action else "press enter to agree, escape to refuse"
        if self.kind == "beforeunload":
            return f"the page asks whether to leave it, and what was changed may be lost; {ways}"
        proposed = f", and proposes {shown(self.proposed, 60)}" if self.proposed else ""
        return f"the page asks: {self.message[:_LONGEST]}{proposed}; {ways}"
