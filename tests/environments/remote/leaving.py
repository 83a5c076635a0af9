"""An environment for a process of its own, in which to look at how it comes and goes."""

from __future__ import annotations

import sys
from typing import Any

from uirl.environments.base import BaseEnvironment


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
