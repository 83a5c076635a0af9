"""An environment of which some instances break, for adapters to other frameworks."""

from __future__ import annotations

from typing import Any

from uirl.environments.text.guess_number import GuessNumberEnvironment


class UnsteadyGuessing(GuessNumberEnvironment):
    """Guessing, where every `every`-th instance fails at its first step (or at its reset)."""

    def __init__(self, config: Any = None, *, every: int = 4, at: str = "step") -> None:
        super().__init__(config, n=3, guesses=2)
        self.every, self.at = every, at
        self.instances = 0
        self.number = 1

    def spawn(self) -> UnsteadyGuessing:
        self.instances += 1
        other = UnsteadyGuessing(every=self.every, at=self.at)
        other.number = self.instances
        return other

    def reset(self, *, seed: int | None = None) -> str:
        if self.at == "reset":
            self._break_down()
        return super().reset(seed=seed)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.at == "step":
            self._break_down()
        return super().step(action)

    def _break_down(self) -> None:
        if self.number % self.every == 0:
            raise OSError("the disk is full")
