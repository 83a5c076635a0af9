"""Arithmetic beyond a tiny model's head, and a calculator."""

from __future__ import annotations

import random

from uirl.environments.tool_use.arithmetic import ArithmeticEnvironment, ArithmeticOptions, Problem
from uirl.tools import CalculatorTool, Tool


class CalculatorOptions(ArithmeticOptions):
    """Arithmetic with a calculator."""

    key = "calculator"


class CalculatorEnvironment(ArithmeticEnvironment):
    """ "37*84": call the calculator, then answer with what it says.

    Two turns solve it. The text is the expression alone, because a tiny model pays for every token.
    """

    options_class = CalculatorOptions
    instructions = "Work out the expression with the calculator. Then answer with the number and nothing else."

    def draw(self, rng: random.Random) -> Problem:
        """Draw a new problem."""
        return Problem(tuple(str(self._number(rng)) for _ in range(self.options.terms)), self._operators(rng), {})

    def tools(self, problem: Problem) -> list[Tool]:
        """Return the calculator."""
        return [CalculatorTool()]
