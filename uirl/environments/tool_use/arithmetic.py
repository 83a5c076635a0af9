"""Arithmetic beyond a tiny model's head, with a calculator, and with numbers that have to be looked up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from uirl.config.section import Index
from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import EnvironmentOptions, OptionsLike
from uirl.environments.tool_use.environment import Describe
from uirl.environments.tool_use.problems import Problem, ProblemEnvironment
from uirl.errors import ConfigError
from uirl.tools import CalculatorTool, LookupTool
from uirl.types import Action, ToolCall

OPERATORS = "+-*"
NAMES = ("apple", "fig", "grape", "kiwi", "lemon", "lime", "mango", "melon", "olive", "peach", "pear", "plum")


class ArithmeticOptions(DemonstratorOptions):
    """A problem in arithmetic that tools solve."""

    terms: int = Field(2, ge=2, le=9)
    """Numbers in the expression."""
    digits: int = Field(2, ge=1, le=9)
    """Of each number."""
    operators: str = Field(OPERATORS, pattern=r"^[-+*]+$")
    """Some of '+-*', by which the numbers are combined."""
    demonstrator: Literal["expert", "careless"] = "expert"
    """'careless' makes a mistake in every call with probability `carelessness`: half the time he guesses the answer
    instead, otherwise he gets one name or one character wrong."""
    spare_turns: Index = 1
    """Turns allowed beyond those that the solution needs."""
    unplugged: bool = False
    """A control: every call finds no tool."""
    describe: Describe = "template"
    """How the policy hears of its tools: from the chat template ('template'), in the system prompt together with how a
    call is written ('prompt'), or not at all ('none')."""
    action_format: str = "qwen"
    """Name of the parser that reads the calls."""


class ArithmeticEnvironment(ProblemEnvironment):
    """A problem in arithmetic that tools solve. The right number as the answer pays 1, everything else nothing."""

    instructions: ClassVar[str]
    """The system prompt for models that read; unused with `describe='none'`."""

    options_class: ClassVar[type[EnvironmentOptions]] = ArithmeticOptions
    options: ArithmeticOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create a problem and the tools for it. Options: see `ArithmeticOptions`."""
        chosen = self.options_class.from_arguments(options, keys)
        assert isinstance(chosen, ArithmeticOptions)
        self.unplugged = chosen.unplugged
        super().__init__(
            config,
            chosen,
            describe=chosen.describe,
            action_format=chosen.action_format,
            instructions="" if chosen.describe == "none" else self.instructions,
        )
        self.max_turns = len(self._problem.calls) + 1 + chosen.spare_turns

    def guess(self, rng: random.Random) -> str:
        return str(rng.randrange(10 ** (2 * self.options.digits)))

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the same problems with no tool behind the calls, and the most frequent answer."""
        answers = Counter(self.draw(random.Random(seed)).answer for seed in range(1000))
        return {**super().controls(), "constant_answer": answers.most_common(1)[0][0]}

    def _number(self, rng: random.Random) -> int:
        return rng.randrange(10 ** (self.options.digits - 1) if self.options.digits > 1 else 0, 10**self.options.digits)

    def _operators(self, rng: random.Random) -> list[str]:
        return [rng.choice(self.options.operators) for _ in range(self.options.terms - 1)]


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
        numbers = [str(self._number(rng)) for _ in range(self.options.terms)]
        expression = _written(numbers, self._operators(rng))
        return Problem(expression, (_calculate(expression),), _value(expression), (CalculatorTool(),))


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
        table = {name: self._number(rng) for name in NAMES[: self.options.names]}
        asked = rng.sample(list(table), self.options.terms)
        operators = self._operators(rng)
        question = _written(asked, operators)
        calls = [ToolCall("lookup", {"key": name}) for name in asked]
        calls.append(_calculate(_written([f"{{{place}}}" for place in range(len(asked))], operators)))
        answer = _value(_written([str(table[name]) for name in asked], operators))
        # another table is another instance
        key = f"{question} of {sorted(table.items())}"
        return Problem(question, tuple(calls), answer, (LookupTool(table), CalculatorTool()), key)

    def mistake(self, call: ToolCall, rng: random.Random) -> dict[str, Any]:
        """Return the arguments of a call with one name or one character wrong."""
        if call.name != "lookup":
            return super().mistake(call, rng)
        return {"key": rng.choice([name for name in NAMES[: self.options.names] if name != call.arguments["key"]])}


def _written(operands: Sequence[str], operators: Sequence[str]) -> str:
    first, *rest = operands
    return first + "".join(operator + operand for operator, operand in zip(operators, rest, strict=True))


def _calculate(expression: str) -> ToolCall:
    return ToolCall("calculator", {"expression": expression})


def _value(expression: str) -> str:
    return str(CalculatorTool().execute(expression))
