"""What the tool-use tasks share: a problem drawn per episode, the judge, the demonstrators, the controls."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import error_rate
from uirl.environments.tool_use.environment import Describe, ToolEnvironment
from uirl.errors import ConfigError
from uirl.tools import CalculatorTool, Tool, ToolRegistry
from uirl.types import Action, Task, ToolResult

OPERATORS = "+-*"


@dataclass(frozen=True, slots=True)
class Problem:
    """`operands[0] operators[0] operands[1] ...`."""

    operands: tuple[str, ...]
    """Numbers, or names of entries of `table`."""
    operators: tuple[str, ...]
    table: Mapping[str, int]

    def written(self, operands: Sequence[str] | None = None) -> str:
        """The expression, with other operands where they are given."""
        first, *rest = self.operands if operands is None else operands
        return first + "".join(o + operand for o, operand in zip(self.operators, rest, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that must be looked up, in order."""
        return tuple(operand for operand in self.operands if operand in self.table)

    @property
    def answer(self) -> str:
        return str(CalculatorTool().execute(self.written([str(self.table.get(o, o)) for o in self.operands])))


class ArithmeticEnvironment(ToolEnvironment):
    """A problem in arithmetic that tools solve. The right number as the answer pays 1, everything else nothing."""

    instructions: ClassVar[str]
    """The system prompt for models that read; unused with `describe='none'`."""

    def __init__(
        self,
        config: Any = None,
        *,
        terms: int = 2,
        digits: int = 2,
        operators: str = OPERATORS,
        demonstrator: str = "expert",
        carelessness: float | None = None,
        spare_turns: int = 1,
        unplugged: bool = False,
        describe: Describe = "template",
        action_format: str = "qwen",
    ) -> None:
        """Raises ConfigError for an option that does not fit.

        `terms` numbers of `digits` digits are combined by some of the `operators`. `demonstrator` 'careless' makes a
        mistake in every call with probability `carelessness` (None: 0.5): half the time he guesses the answer
        instead, otherwise he gets one name or one character wrong. `spare_turns` more than the solution needs are
        allowed. `unplugged`: the control in which every call finds no tool. `describe` and `action_format`: see
        `ToolEnvironment`.
        """
        instructions = "" if describe == "none" else self.instructions
        super().__init__(config, describe=describe, action_format=action_format, instructions=instructions)
        name = type(self).__name__
        for option, value, least, most in (("terms", terms, 2, 9), ("digits", digits, 1, 9)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"{name}: {option} must be an int from {least} to {most}, got {value!r}")
        if isinstance(spare_turns, bool) or not isinstance(spare_turns, int) or spare_turns < 0:
            raise ConfigError(f"{name}: spare_turns must be an int from 0, got {spare_turns!r}")
        if not isinstance(operators, str) or not operators or set(operators) - set(OPERATORS):
            raise ConfigError(f"{name}: operators must be some of {OPERATORS!r}, got {operators!r}")
        self.terms, self.digits, self.operators = terms, digits, operators
        self.unplugged = unplugged
        self._carelessness = error_rate(name, demonstrator, carelessness)
        self.demonstrator_may_fail = self._carelessness > 0
        self.max_turns = len(self.draw(random.Random(0)).names) + 2 + spare_turns
        self._computed: str | None = None
        self._begin(random.Random(0))

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """A new problem."""

    @abstractmethod
    def tools(self, problem: Problem) -> list[Tool]:
        """The tools of an episode."""

    def ask(self, rng: random.Random, task: Task | None) -> str:
        self._begin(rng)
        return self._problem.written()

    def judge(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        """The right number, as the calculator writes it."""
        hit = answer.strip() == self._problem.answer
        return "", float(hit), True, {"success": hit, "answer": self._problem.answer}

    def note(self, results: Sequence[ToolResult]) -> None:
        """What the demonstrator learns from the calls of a turn."""
        for result in results:
            if result.success and result.name == "calculator":
                self._computed = result.text
            elif result.success:
                self._found.append(result.text)
        self._whim = self._draw_whim()

    def expert_action(self) -> Action:
        """The demonstrator's next call or answer; asked twice in one turn he says the same."""
        if self._computed is not None:
            return Action(text=self._computed)
        rng = random.Random(self._whim)
        careless = rng.random() < self._carelessness
        if careless and rng.random() < 0.5:
            return Action(text=str(rng.randrange(10 ** (2 * self.digits))))
        names = self._problem.names
        if len(self._found) < len(names):
            key = names[len(self._found)]
            others = [name for name in self._problem.table if name != key]
            return Action.of("lookup", key=rng.choice(others) if careless else key)
        found = iter(self._found)
        expression = self._problem.written([next(found) if o in names else o for o in self._problem.operands])
        return Action.of("calculator", expression=_misread(expression, rng) if careless else expression)

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """The same problems with no tool behind the calls, and the most frequent answer."""
        unplugged = self.spawn()
        assert isinstance(unplugged, ArithmeticEnvironment)
        unplugged.unplugged = True
        answers = Counter(self.draw(random.Random(seed)).answer for seed in range(1000))
        return {"no_tools": unplugged, "constant_answer": answers.most_common(1)[0][0]}

    def _begin(self, rng: random.Random) -> None:
        self._problem = self.draw(rng)
        self.registry = ToolRegistry([] if self.unplugged else self.tools(self._problem))
        # The problem is drawn by now: what the demonstrator draws later cannot change it.
        self._whims = rng
        self._whim = self._draw_whim()
        self._found: list[str] = []
        self._computed = None

    def _draw_whim(self) -> int:
        return self._whims.getrandbits(32)

    def _number(self, rng: random.Random) -> int:
        return rng.randrange(10 ** (self.digits - 1) if self.digits > 1 else 0, 10**self.digits)

    def _operators(self, rng: random.Random) -> tuple[str, ...]:
        return tuple(rng.choice(self.operators) for _ in range(self.terms - 1))


def _misread(expression: str, rng: random.Random) -> str:
    """The expression with one character replaced by another of its kind."""
    at = rng.randrange(len(expression))
    kind = OPERATORS if expression[at] in OPERATORS else "123456789"  # no zero, which no number may begin with
    return expression[:at] + rng.choice([c for c in kind if c != expression[at]]) + expression[at + 1 :]
