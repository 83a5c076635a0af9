"""The stages of the form: what is on the screen, which action solves it, how a demonstrator would act."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uirl.environments.screen.drawing import BLACK, WHITE, Box, Colour, Grid, Shape
from uirl.types import Action, ToolCall

COLOURS: Mapping[str, Colour] = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 80, 220),
    "yellow": (235, 200, 40),
    "purple": (150, 50, 180),
    "cyan": (40, 190, 200),
    "orange": (240, 130, 30),
    "brown": (120, 75, 40),
}
_DARK_INK = frozenset({"yellow", "cyan", "orange"})


class Stage(ABC):
    """One page of the form."""

    instruction: str = ""
    """What the agent is told when the page comes up; empty: nothing new."""
    neutral_instruction: str = ""
    """What it is told instead where instructions are hidden."""

    @abstractmethod
    def is_solved_by(self, call: ToolCall) -> bool:
        """Return whether a well-formed call is the right one."""

    @abstractmethod
    def expert(self) -> Action:
        """Return the right action."""

    def careless(self, rng: random.Random) -> Action:
        """Return an action of someone who sees the page and did not read the instruction. Default: the right one."""
        return self.expert()

    @abstractmethod
    def shapes(self) -> tuple[Shape, ...]:
        """Return what is drawn."""


@dataclass(frozen=True)
class ColourStage(Stage):
    """Several buttons; the instruction names the colour of the right one."""

    buttons: Mapping[str, Box]
    target: str
    neutral_instruction = "press"

    @staticmethod
    def create(rng: random.Random, grid: Grid, palette: Sequence[str], buttons: int) -> ColourStage:
        placed = dict(zip(rng.sample(palette, buttons), grid.scatter(rng, buttons), strict=True))
        return ColourStage(placed, rng.choice(list(placed)))

    @property
    def instruction(self) -> str:  # type: ignore[override]
        return f"press {self.target}"

    def is_solved_by(self, call: ToolCall) -> bool:
        return _hits(call, self.buttons[self.target])

    def expert(self) -> Action:
        return _press(self.target, self.buttons[self.target])

    def careless(self, rng: random.Random) -> Action:
        return _press(*rng.choice(list(self.buttons.items())))

    def shapes(self) -> tuple[Shape, ...]:
        return tuple(
            Shape(box, COLOURS[name], name, _ink(name), optional_label=True, label_height=0.56)
            for name, box in self.buttons.items()
        )


@dataclass(frozen=True)
class DigitStage(Stage):
    """A drawn digit and an empty field: the digit must be typed."""

    digit: str
    sign: Box
    field: Box

    @staticmethod
    def create(rng: random.Random, grid: Grid) -> DigitStage:
        sign, field = grid.scatter(rng, 2)
        return DigitStage(str(rng.randint(0, 9)), _taller(sign), field)

    def is_solved_by(self, call: ToolCall) -> bool:
        return call.name == "type" and call.arguments["text"] == self.digit

    def expert(self) -> Action:
        return Action.of("type", text=self.digit)

    def shapes(self) -> tuple[Shape, ...]:
        return (Shape(self.sign, WHITE, self.digit, BLACK, label_height=1.1), Shape(self.field, (225, 230, 240)))


@dataclass(frozen=True)
class ConfirmStage(Stage):
    """One OK button somewhere."""

    button: Box

    @staticmethod
    def create(rng: random.Random, grid: Grid) -> ConfirmStage:
        return ConfirmStage(grid.scatter(rng, 1)[0])

    def is_solved_by(self, call: ToolCall) -> bool:
        return _hits(call, self.button)

    def expert(self) -> Action:
        return _press("ok", self.button)

    def shapes(self) -> tuple[Shape, ...]:
        return (Shape(self.button, (60, 60, 60), "OK"),)


def _ink(colour: str) -> Colour:
    return BLACK if colour in _DARK_INK else WHITE


def _press(name: str, box: Box) -> Action:
    """Return a click that first says what it is meant for. A careless user, too, knows what he presses."""
    x, y = box.centre
    return Action.of("click", target=name, x=x, y=y)


def _hits(call: ToolCall, box: Box) -> bool:
    return call.name == "click" and box.contains(call.arguments["x"], call.arguments["y"])


def _taller(box: Box) -> Box:
    """Return the box grown to its slot's middle band: a digit of button height is hardly legible on a small screen."""
    grow = box.height // 4
    return Box(box.left, box.top - grow, box.width, box.height + 2 * grow)
