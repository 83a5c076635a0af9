"""Look things up in a table of the episode, then compute with what was found."""

from __future__ import annotations

import random
from typing import Self

from pydantic import Field, model_validator

from uirl.environments.tool_use.arithmetic import ArithmeticEnvironment, ArithmeticOptions, Problem
from uirl.errors import ConfigError
from uirl.tools import CalculatorTool, LookupTool, Tool
from uirl.types import Observation, Task

NAMES = ("apple", "fig", "grape", "kiwi", "lemon", "lime", "mango", "melon", "olive", "peach", "pear", "plum")


class LookupOptions(ArithmeticOptions):
    """Arithmetic with the numbers in a table that has to be looked up."""

    key = "lookup"

    names: int = Field(len(NAMES), ge=2, le=len(NAMES))
    """Entries of the table, of which `terms` different ones are asked for."""

    @model_validator(mode="after")
    def _names_suffice(self) -> Self:
        if self.terms > self.names:
            raise ConfigError(f"lookup: names must be at least terms ({self.terms}), got {self.names}")
        return self


class LookupEnvironment(ArithmeticEnvironment):
    """ "plum*fig": look up both, call the calculator with the two numbers, answer with what it says.

    With two terms four turns solve it, three where both are looked up in one reply. Every episode has a table of its
    own, so nothing can be learned by heart.
    """

    options_class = LookupOptions
    options: LookupOptions
    instructions = (
        "Look up the value of every name, work out the expression with the calculator, then answer with the number and "
        "nothing else."
    )

    def draw(self, rng: random.Random) -> Problem:
        """Draw a new problem and its table."""
        table = {name: self._number(rng) for name in NAMES[: self.options.names]}
        return Problem(tuple(rng.sample(list(table), self.options.terms)), self._operators(rng), table)

    def ask(self, rng: random.Random, task: Task | None) -> Observation:
        """Return the question, with a key for the table that it hides: another table is another instance."""
        question = super().ask(rng, task)
        assert isinstance(question, str)
        return Observation(question, state_key=f"{question} of {sorted(self._problem.table.items())}")

    def tools(self, problem: Problem) -> list[Tool]:
        """Return the table and the calculator."""
        return [LookupTool(problem.table), CalculatorTool()]
