"""What the tool-use tasks share: a problem drawn per episode, the judge, the demonstrators, the controls."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from uirl.config.section import Index
from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, OptionsLike
from uirl.environments.tool_use.environment import Describe, ToolEnvironment
from uirl.tools import CalculatorTool, Tool, ToolRegistry
from uirl.types import Action, Observation, Task, ToolResult

OPERATORS = "+-*"


@dataclass(frozen=True, slots=True)
class Problem:
    """`operands[0] operators[0] operands[1] ...`."""

    operands: tuple[str, ...]
    """Numbers, or names of entries of `table`."""
    operators: tuple[str, ...]
    table: Mapping[str, int]

    def written(self, operands: Sequence[str] | None = None) -> str:
        """Return the expression, with other operands where they are given."""
        first, *rest = self.operands if operands is None else operands
        return first + "".join(o + operand for o, operand in zip(self.operators, rest, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that must be looked up, in order."""
        return tuple(operand for operand in self.operands if operand in self.table)

    @property
    def answer(self) -> str:
        return str(CalculatorTool().execute(self.written([str(self.table.get(o, o)) for o in self.operands])))


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


class ArithmeticEnvironment(ToolEnvironment, ConfigurableEnvironment):
    """A problem in arithmetic that tools solve. The right number as the answer pays 1, everything else nothing."""

    instructions: ClassVar[str]
    """The system prompt for models that read; unused with `describe='none'`."""

    options_class: ClassVar[type[EnvironmentOptions]] = ArithmeticOptions
    options: ArithmeticOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create a problem and the tools for it. Options: see `ArithmeticOptions`."""
        chosen = self.options_class.from_arguments(options, keys)
        assert isinstance(chosen, ArithmeticOptions)
        instructions = "" if chosen.describe == "none" else self.instructions
        super().__init__(
            config, describe=chosen.describe, action_format=chosen.action_format, instructions=instructions
        )
        self.options = chosen
        self.unplugged = chosen.unplugged
        self._carelessness = chosen.error_rate
        self.demonstrator_may_fail = self._carelessness > 0
        self.max_turns = len(self.draw(random.Random(0)).names) + 2 + chosen.spare_turns
        self._computed: str | None = None
        self._begin(random.Random(0))

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """Draw a new problem."""

    @abstractmethod
    def tools(self, problem: Problem) -> list[Tool]:
        """Return the tools of an episode."""

    def ask(self, rng: random.Random, task: Task | None) -> Observation | str:
        self._begin(rng)
        return self._problem.written()

    def judge(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Compare the answer with the right number, as the calculator writes it."""
        hit = answer.strip() == self._problem.answer
        return "", float(hit), True, {"success": hit, "answer": self._problem.answer}

    def note(self, results: Sequence[ToolResult]) -> None:
        """Note what the demonstrator learns from the calls of a turn."""
        for result in results:
            if result.success and result.name == "calculator":
                self._computed = result.text
            elif result.success:
                self._found.append(result.text)
        self._demonstration_seed = self._draw_seed()

    def expert_action(self) -> Action:
        """Return the demonstrator's next call or answer; asked twice in one turn he says the same."""
        if self._computed is not None:
            return Action(text=self._computed)
        rng = random.Random(self._demonstration_seed)
        careless = rng.random() < self._carelessness
        if careless and rng.random() < 0.5:
            return Action(text=str(rng.randrange(10 ** (2 * self.options.digits))))
        names = self._problem.names
        if len(self._found) < len(names):
            key = names[len(self._found)]
            others = [name for name in self._problem.table if name != key]
            return Action.of("lookup", key=rng.choice(others) if careless else key)
        found = iter(self._found)
        expression = self._problem.written([next(found) if o in names else o for o in self._problem.operands])
        return Action.of("calculator", expression=_misread(expression, rng) if careless else expression)

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the same problems with no tool behind the calls, and the most frequent answer."""
        unplugged = self.spawn()
        assert isinstance(unplugged, ArithmeticEnvironment)
        unplugged.unplugged = True
        answers = Counter(self.draw(random.Random(seed)).answer for seed in range(1000))
        return {"no_tools": unplugged, "constant_answer": answers.most_common(1)[0][0]}

    def _begin(self, rng: random.Random) -> None:
        self._problem = self.draw(rng)
        self.registry = ToolRegistry([] if self.unplugged else self.tools(self._problem))
        # The problem is drawn by now: what the demonstrator draws later cannot change it.
        self._rng = rng
        self._demonstration_seed = self._draw_seed()
        self._found: list[str] = []
        self._computed = None

    def _draw_seed(self) -> int:
        return self._rng.getrandbits(32)

    def _number(self, rng: random.Random) -> int:
        return rng.randrange(10 ** (self.options.digits - 1) if self.options.digits > 1 else 0, 10**self.options.digits)

    def _operators(self, rng: random.Random) -> tuple[str, ...]:
        return tuple(rng.choice(self.options.operators) for _ in range(self.options.terms - 1))


def _misread(expression: str, rng: random.Random) -> str:
    """Return the expression with one character replaced by another of its kind."""
    at = rng.randrange(len(expression))
    kind = OPERATORS if expression[at] in OPERATORS else "123456789"  # no zero, which no number may begin with
    return expression[:at] + rng.choice([c for c in kind if c != expression[at]]) + expression[at + 1 :]
