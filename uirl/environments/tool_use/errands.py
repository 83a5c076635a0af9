"""Questions in words, three tools, and one of them to choose: for models that read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from uirl.config.section import Count, Index
from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import ConfigurableEnvironment, OptionsLike
from uirl.environments.tool_use.environment import Describe, ToolEnvironment
from uirl.tools import CalculatorTool, CalendarTool, LookupTool, ToolRegistry
from uirl.types import Action, Observation, Task, ToolResult

Kind = Literal["sum", "price", "date"]
KINDS: tuple[Kind, ...] = ("sum", "price", "date")

_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_WORDS = (
    "apple banana basket bell belt book bottle bowl box brush candle chair clock coat cup desk drum fan flag fork "
    "glove hammer hat jar kettle key kite lamp lemon lock map mirror needle pan pen pillow pot radio ring rope "
    "rug saw scarf shirt shovel soap sock spoon stamp table tent towel tray umbrella vase wallet wheel whistle "
    "window"
)
_THINGS = tuple(_WORDS.split())
_PHRASES: dict[Kind, tuple[str, ...]] = {
    "sum": ("What is {a} {word} {b}?", "How much is {a} {word} {b}?", "Tell me {a} {word} {b}."),
    "price": (
        "What do {n} pieces of {thing} cost?",
        "How much are {n} of {thing}?",
        "The price of {n} {thing}, please.",
    ),
    "date": (
        "Which date is {n} days {side} {day}?",
        "What date is {n} days {side} {day}?",
        "{n} days {side} {day}, please.",
    ),
}
_DAYS = (date(1990, 1, 1), date(2039, 12, 31))


class ErrandsOptions(DemonstratorOptions):
    """Questions in words and three tools."""

    key = "errands"

    kinds: Annotated[tuple[Kind, ...], Field(strict=False, min_length=1)] = KINDS
    """Kinds of questions: arithmetic, prices that are looked up, dates."""
    largest: Count = 99
    """Numbers of the questions are 2 to `largest`."""
    spare_turns: Index = 1
    """Turns allowed beyond the two or three that a question needs."""
    describe: Describe = "none"
    """How the policy hears of its tools: see `ToolEnvironment`."""
    action_format: str = "qwen"
    """Name of the parser that reads the calls."""
    instructions: str = "Use a tool. Then answer with the result alone."
    """The system prompt."""


@dataclass(frozen=True, slots=True)
class _Errand:
    question: str
    calls: tuple[Action, ...]
    """Those that solve it, '{}' for the result of the one before."""
    answer: str
    prices: dict[str, int]


class ErrandsEnvironment(ToolEnvironment, ConfigurableEnvironment):
    """ "What do 14 pieces of soap cost?": look the price up, multiply, answer with the number and nothing else.

    The tools are a calculator, a price list of the episode's own and a calendar. The right answer pays 1, everything
    else nothing.
    """

    options_class = ErrandsOptions
    options: ErrandsOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create a question and the tools for it. Options: see `ErrandsOptions`."""
        chosen = ErrandsOptions.from_arguments(options, keys)
        assert isinstance(chosen, ErrandsOptions)
        super().__init__(
            config,
            describe=chosen.describe,
            action_format=chosen.action_format,
            instructions=chosen.instructions,
            max_turns=3 + chosen.spare_turns,
        )
        self.options = chosen
        self.demonstrator_may_fail = chosen.error_rate > 0
        self.unplugged = False
        self._begin(random.Random(0))

    def ask(self, rng: random.Random, task: Task | None) -> Observation:
        """Return the question, with a key for the price list that it hides: other prices are another instance."""
        self._begin(rng)
        return Observation(self._errand.question, state_key=f"{self._errand.question} {self._errand.answer}")

    def judge(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Compare the answer with what the tools say."""
        hit = answer.strip() == self._errand.answer
        return "", float(hit), True, {"success": hit, "answer": self._errand.answer}

    def note(self, results: Sequence[ToolResult]) -> None:
        """Note what the demonstrator learns from the calls of a turn."""
        self._results_seen += [result.text for result in results if result.success]
        self._demonstration_seed = self._rng.getrandbits(32)

    def expert_action(self) -> Action:
        """Return the demonstrator's next call or answer; asked twice in one turn he says the same."""
        done, rng = len(self._results_seen), random.Random(self._demonstration_seed)
        if done >= len(self._errand.calls):
            return Action(text=self._results_seen[-1])
        call = self._errand.calls[done].tool_calls[0]
        arguments = {k: v.format(*self._results_seen) if isinstance(v, str) else v for k, v in call.arguments.items()}
        if rng.random() < self.options.error_rate:
            if rng.random() < 0.5:
                return Action(text=str(rng.randrange(10000)))
            arguments = {k: _misread(v, rng) for k, v in arguments.items()}
        return Action.of(call.name, **arguments)

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the same questions with no tool behind the calls."""
        unplugged = self.spawn()
        assert isinstance(unplugged, ErrandsEnvironment)
        unplugged.unplugged = True
        return {"no_tools": unplugged}

    def _begin(self, rng: random.Random) -> None:
        self._errand = errand = _draw(rng, rng.choice(self.options.kinds), self.options.largest)
        tools = [CalculatorTool(), LookupTool(errand.prices, "price", "Returns the price of a thing."), CalendarTool()]
        self.registry = ToolRegistry([] if self.unplugged else tools)
        self._rng, self._demonstration_seed = rng, rng.getrandbits(32)
        self._results_seen: list[str] = []


def _draw(rng: random.Random, kind: Kind, largest: int) -> _Errand:
    """Return a question of `kind` and how it is solved."""
    phrase, n = rng.choice(_PHRASES[kind]), rng.randint(2, largest)
    prices = {thing: rng.randint(2, largest) for thing in _THINGS}
    if kind == "sum":
        word, b = rng.choice(list(_SIGNS)), rng.randint(2, largest)
        expression = f"{n}{_SIGNS[word]}{b}"
        call = Action.of("calculator", expression=expression)
        return _Errand(phrase.format(a=n, word=word, b=b), (call,), str(CalculatorTool().execute(expression)), prices)
    if kind == "price":
        thing = rng.choice(_THINGS)
        calls = (Action.of("price", key=thing), Action.of("calculator", expression=f"{n}*{{0}}"))
        return _Errand(phrase.format(n=n, thing=thing), calls, str(n * prices[thing]), prices)
    day = _DAYS[0] + timedelta(days=rng.randrange((_DAYS[1] - _DAYS[0]).days))
    side = rng.choice(("after", "before"))
    days = n if side == "after" else -n
    call = Action.of("calendar", date=day.isoformat(), days=days)
    question = phrase.format(n=n, side=side, day=day.isoformat())
    return _Errand(question, (call,), (day + timedelta(days=days)).isoformat(), prices)


def _misread(value: Any, rng: random.Random) -> Any:
    """Return a number that is one off, or a text with one character replaced by another of its kind."""
    if isinstance(value, int):
        return value + rng.choice((-1, 1))
    at = rng.randrange(len(value))
    kind = "123456789" if value[at].isdigit() else "+-*" if value[at] in "+-*" else "abcdefghijklmnopqrstuvwxyz"
    return value[:at] + rng.choice([c for c in kind if c != value[at]]) + value[at + 1 :]
