"""Environments that are light enough for a process of their own: nothing but clicks, and one that is looked at as it
comes and goes."""

from __future__ import annotations

import sys
from typing import Any

from uirl.environments.base import BaseEnvironment


class Clicking(BaseEnvironment):
    """Pays 1 per action, without an end, in words alone: a text model can play it."""

    action_format = "json"
    runs_inline = True

    def reset(self, seed: int | None = None) -> Any:
        return f"seed {seed}"

    def step(self, action: Any) -> Any:
        return "clicked", 1.0, False, {"success": False}

    def get_state_description(self) -> str:
        return ""


NAME = f"{__name__}:Clicking"
"""As the table of environments and the command take it."""


class Leaving(BaseEnvironment):
    """Says when it is closed, and whether its process loaded torch."""

    action_format = "json"

    def __init__(self, config: Any = None, *, words: str = "none", number: int = 0) -> None:
        super().__init__(config)
        self.words, self.number = words, number

    def reset(self) -> str:
        return f"{self.words} {self.number} torch={'torch' in sys.modules}"

    def step(self, action: Any) -> Any:
        return "", 0.0, False, {}

    def get_state_description(self) -> str:
        return ""

    def close(self) -> None:
        print("closed", flush=True)
