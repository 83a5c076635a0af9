"""An environment in which failed episodes begin in right ways of their own."""

from __future__ import annotations

import random
from typing import Any

from uirl.environments import BaseEnvironment
from uirl.types import Task


class Corridor(BaseEnvironment):
    """Three doors: 'a' and 'b' open each, everything else ends the episode."""

    runs_inline = True

    def reset(self, seed: int | None = None, task: Task | None = None) -> str:
        self.door, self.rng = 0, random.Random(seed)
        self.number = (seed or 0) % 1000
        return self._look()

    def step(self, action: str) -> Any:
        opened = action.strip() in ("a", "b")
        self.door += opened
        solved = self.door == 3
        return self._look(), float(solved), solved or not opened, {"success": solved}

    def get_state_description(self) -> str:
        return self._look()

    def expert_action(self) -> str:
        return self.rng.choice("aabbc")

    def _look(self) -> str:
        return f"{self.number}, door {self.door}"
