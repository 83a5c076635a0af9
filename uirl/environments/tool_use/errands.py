"""Questions in words, three tools, and one of them to choose: for models that read."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from uirl.config.section import Count, Index
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import OptionsLike
from uirl.environments.tool_use.environment import Describe
from uirl.environments.tool_use.problems import Problem, ProblemEnvironment
from uirl.tools import CalculatorTool, CalendarTool, LookupTool
from uirl.types import ToolCall

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


class ErrandsEnvironment(ProblemEnvironment):
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
            chosen,
            describe=chosen.describe,
            action_format=chosen.action_format,
            instructions=chosen.instructions,
        )
        self.max_turns = 3 + chosen.spare_turns

    def draw(self, rng: random.Random) -> Problem:
        kind, largest = rng.choice(self.options.kinds), self.options.largest
        phrase, n = rng.choice(_PHRASES[kind]), rng.randint(2, largest)
        prices = {thing: rng.randint(2, largest) for thing in _THINGS}
        if kind == "sum":
            word, b = rng.choice(list(_SIGNS)), rng.randint(2, largest)
            expression = f"{n}{_SIGNS[word]}{b}"
            calls = (ToolCall("calculator", {"expression": expression}),)
            question, answer = phrase.format(a=n, word=word, b=b), str(CalculatorTool().execute(expression))
        elif kind == "price":
            thing = rng.choice(_THINGS)
            calls = (ToolCall("price", {"key": thing}), ToolCall("calculator", {"expression": f"{n}*{{0}}"}))
            question, answer = phrase.format(n=n, thing=thing), str(n * prices[thing])
        else:
            day = _DAYS[0] + timedelta(days=rng.randrange((_DAYS[1] - _DAYS[0]).days))
            side = rng.choice(("after", "before"))
            days = n if side == "after" else -n
            calls = (ToolCall("calendar", {"date": day.isoformat(), "days": days}),)
            question = phrase.format(n=n, side=side, day=day.isoformat())
            answer = (day + timedelta(days=days)).isoformat()
        tools = (CalculatorTool(), LookupTool(prices, "price", "Returns the price of a thing."), CalendarTool())
        # the question hides the prices: others are another instance
        return Problem(question, calls, answer, tools, f"{question} {answer}")

    def guess(self, rng: random.Random) -> str:
        return str(rng.randrange(10000))
