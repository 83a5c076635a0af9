"""Dialogs of a page (alert, confirm, prompt, leaving): who answers them, and in which words they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from uirl.runtime.limits import shown

if TYPE_CHECKING:
    from playwright.async_api import Dialog as BrowserDialog

_LONGEST = 200


@dataclass(slots=True)
class Dialog:
    """One that is open."""

    opened: BrowserDialog
    typed: str | None = None
    """What the policy has typed into it; None: what is proposed stands there."""

    @property
    def kind(self) -> str:
        """'alert', 'confirm', 'prompt' or 'beforeunload'."""
        return self.opened.type

    async def answer(self, agree: bool, text: str | None = None) -> None:
        """Close it; `text`: what is written into it where it asks for that, None: what it proposes."""
        if agree:
            await self.opened.accept(self.opened.default_value if text is None else text)
        else:
            await self.opened.dismiss()

    def words(self, action: bool) -> str:
        """Return the question in words for the policy; `action`: it has an action for dialogs, beside its keys."""
        ways = 'answer with the action dialog, "ok" or "cancel"' if action else "press enter to agree, escape to refuse"
        if self.kind == "beforeunload":
            return f"the page asks whether to leave it, and what was changed may be lost; {ways}"
        proposed = f", and proposes {shown(self.opened.default_value, 60)}" if self.opened.default_value else ""
        return f"the page asks: {self.opened.message[:_LONGEST]}{proposed}; {ways}"
