"""Look things up in a table of the episode, then compute with what was found."""

from __future__ import annotations

import random
from typing import Any

from uirl.environments.tool_use.arithmetic import OPERATORS, ArithmeticEnvironment, Problem
from uirl.environments.tool_use.environment import Describe
from uirl.errors import ConfigError
from uirl.tools import CalculatorTool, LookupTool, Tool

NAMES = ("apple", "fig", "grape", "kiwi", "lemon", "lime", "mango", "melon", "olive", "peach", "pear", "plum")


class LookupEnvironment(ArithmeticEnvironment):
    """ "plum*fig": look up both, call the calculator with the two numbers, answer with what it says.

    With two terms four turns solve it, three where both are looked up in one reply. Every episode has a table of its
    own, so nothing can be learned by heart.
    """

    instructions = (
        "Look up the value of every name, work out the expression with the calculator, then answer with the number and "
        "nothing else."
    )

    def __init__(
        self,
        config: Any = None,
        *,
        terms: int = 2,
        digits: int = 2,
        operators: str = OPERATORS,
        names: int = len(NAMES),
        demonstrator: str = "expert",
        carelessness: float | None = None,
        spare_turns: int = 1,
        unplugged: bool = False,
        describe: Describe = "template",
        action_format: str = "qwen",
    ) -> None:
        """`names`: entries of the table, of which `terms` different ones are asked for. The other options: see
        `ArithmeticEnvironment`. Raises ConfigError for an option that does not fit."""
        if isinstance(names, bool) or not isinstance(names, int) or not 2 <= names <= len(NAMES) or terms > names:
            raise ConfigError(f"LookupEnvironment: names must be an int from terms to {len(NAMES)}, got {names!r}")
        self.names = NAMES[:names]
        super().__init__(
            config,
            terms=terms,
            digits=digits,
            operators=operators,
            demonstrator=demonstrator,
            carelessness=carelessness,
            spare_turns=spare_turns,
            unplugged=unplugged,
            describe=describe,
            action_format=action_format,
        )

    def draw(self, rng: random.Random) -> Problem:
        """A new problem and its table."""
        table = {name: self._number(rng) for name in self.names}
        return Problem(tuple(rng.sample(self.names, self.terms)), self._operators(rng), table)

    def tools(self, problem: Problem) -> list[Tool]:
        """The table and the calculator."""
        return [LookupTool(problem.table), CalculatorTool()]
