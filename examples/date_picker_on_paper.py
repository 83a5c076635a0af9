"""The date picker without a browser: the same words and many more episodes a second.

A policy that learned here is played on the real page by `uirl eval`. docs/not_learning.md has the commands.
"""

from __future__ import annotations

import calendar
import random
import re

from date_picker import DatePicker

from uirl import BaseEnvironment
from uirl.environments.ui.vocabulary import ClickMark
from uirl.types import Action, Observation, StepResult, Task


class OnPaper(DatePicker):
    """Says what the accessibility tree of the page says, down to the buttons beside the month (`tree: 84`)."""

    runs_inline = True
    max_parallel = None

    async def reset(self, *, seed: int | None = None, task: Task | None = None) -> Observation:
        """Begin an episode; no page is opened."""
        self.plan(task, random.getrandbits(31) if seed is None else seed)
        year, month = re.findall(r"new Date\((\d+), (\d+)", self.html)[0]
        self._months, self._turns, self._focused = 12 * int(year) + int(month), 0, 0
        self._state = {"shown": self._shown(), "chosen": "none"}
        return Observation(f"{self.goal}\n{self._words()}", (), {"seed": seed, "success": False})

    async def step(self, action: Action) -> StepResult:
        """Do to the calendar what the page does."""
        self._turns += 1
        call = self.space.read(action)
        mark = (call.mark or 0) if isinstance(call, ClickMark) else 0
        chosen, said = "none", ""
        if mark in (1, 2):
            self._months += (-1, 1)[mark - 1]
            self._focused = mark
        elif 2 < mark <= 2 + calendar.monthrange(self._months // 12, self._months % 12 + 1)[1]:
            chosen = f"{mark - 2} {self._shown()}"
        else:
            said = "that is nothing to click\n"
        before, self._state = self._state, {"shown": self._shown(), "chosen": chosen}
        outcome, cut = self.outcome(self._state), self._turns >= (self.max_turns or 0)
        info = {"success": outcome is True, "state": dict(self._state)}
        seen = Observation(said + self._words(), (), info)
        return StepResult(seen, self.reward(before, self._state), outcome is not None or cut)

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return none: what shows the page, and could hide it, is not there."""
        return {}

    async def close(self) -> None:
        """Nothing is open."""

    def _shown(self) -> str:
        return f"{calendar.month_name[self._months % 12 + 1]} {self._months // 12}"

    def _words(self) -> str:
        one, two = (" (focused)" * (self._focused == mark) for mark in (1, 2))
        return f'page "none"\n  button "prev"{one} [1]\n  "{self._shown()}"\n  button "next"{two} [2]\n...'
