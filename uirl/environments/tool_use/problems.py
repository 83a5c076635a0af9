"""What the tool-use tasks share: a problem drawn per episode, the judge, the demonstrator, the controls."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import ConfigurableEnvironment
from uirl.environments.tool_use.environment import Describe, ToolEnvironment
from uirl.tools import Tool, ToolRegistry
from uirl.types import Action, Observation, Task, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and how tools solve it."""

    question: str
    calls: tuple[ToolCall, ...]
    """Those that solve it, in order; in a text '{0}' stands for the result of the first, and so on."""
    answer: str
    tools: tuple[Tool, ...]
    state_key: str | None = None
    """Of the first observation: tells apart what the question hides."""


class ProblemEnvironment(ToolEnvironment, ConfigurableEnvironment):
    """A question that tools solve. The right answer pays 1, everything else nothing."""

    options: DemonstratorOptions
    unplugged = False
    """A control: every call finds no tool."""

    def __init__(
        self, config: Any, options: DemonstratorOptions, *, describe: Describe, action_format: str, instructions: str
    ) -> None:
        super().__init__(config, describe=describe, action_format=action_format, instructions=instructions)
        self.options = options
        self.demonstrator_may_fail = options.error_rate > 0
        self._begin(random.Random(0))

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """Draw a new problem."""

    @abstractmethod
    def guess(self, rng: random.Random) -> str:
        """Return the answer of a demonstrator who does not use the tools."""

    def mistake(self, call: ToolCall, rng: random.Random) -> dict[str, Any]:
        """Return the arguments of a call with a mistake: a number is one off, a text has one wrong character."""
        return {name: _misread(value, rng) for name, value in call.arguments.items()}

    def ask(self, rng: random.Random, task: Task | None) -> Observation:
        self._begin(rng)
        return Observation(self._problem.question, state_key=self._problem.state_key)

    def judge(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Compare the answer with the right one, as the tools write it."""
        hit = answer.strip() == self._problem.answer
        return "", float(hit), True, {"success": hit, "answer": self._problem.answer}

    def note(self, results: Sequence[ToolResult]) -> None:
        """Note what the demonstrator learns from the calls of a turn."""
        self._found += [result.text for result in results if result.success]
        self._demonstration_seed = self._rng.getrandbits(32)

    def expert_action(self) -> Action:
        """Return the demonstrator's next call or answer; asked twice in one turn he says the same."""
        done, rng = len(self._found), random.Random(self._demonstration_seed)
        if done >= len(self._problem.calls):
            return Action(text=self._found[-1])
        call = self._problem.calls[done]
        filled = {k: v.format(*self._found) if isinstance(v, str) else v for k, v in call.arguments.items()}
        if rng.random() < self.options.error_rate:
            if rng.random() < 0.5:
                return Action(text=self.guess(rng))
            filled = self.mistake(ToolCall(call.name, filled), rng)
        return Action.of(call.name, **filled)

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the same questions with no tool behind the calls."""
        unplugged = self.spawn()
        assert isinstance(unplugged, ProblemEnvironment)
        unplugged.unplugged = True
        return {"no_tools": unplugged}

    def _begin(self, rng: random.Random) -> None:
        self._problem = self.draw(rng)
        self.registry = ToolRegistry(() if self.unplugged else self._problem.tools)
        # The problem is drawn by now: what the demonstrator draws later cannot change it.
        self._rng, self._demonstration_seed = rng, rng.getrandbits(32)
        self._found: list[str] = []


def _misread(value: Any, rng: random.Random) -> Any:
    """Return a number that is one off, or a text with one character replaced by another of its kind."""
    if isinstance(value, int):
        return value + rng.choice((-1, 1))
    at = rng.randrange(len(value))
    # no zero, which no number may begin with
    kind = "123456789" if value[at].isdigit() else "+-*" if value[at] in "+-*" else "abcdefghijklmnopqrstuvwxyz"
    return value[:at] + rng.choice([c for c in kind if c != value[at]]) + value[at + 1 :]
