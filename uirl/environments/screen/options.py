"""The options of `ScreenEnvironment`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from uirl.config.section import Count, Index
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import Names
from uirl.environments.screen.stages import COLOURS
from uirl.environments.ui.vocabulary import ActionFormat
from uirl.errors import ConfigError, did_you_mean

LEVELS = {1: ("colour",), 2: ("colour", "confirm"), 3: ("colour", "digit", "confirm")}
"""Level -> kind of each page."""
PIXELS_PER_SLOT = 28


class FormOptions(DemonstratorOptions):
    """What all drawn forms have in common."""

    size: int = 56
    """Width and height in pixels, at least 28 per slot; everything scales with it, and from about 100 pixels on buttons
    carry the name of their colour."""
    slots: Count = 2
    """Places along each side of the form where something can stand."""
    jitter: Index = 2
    """Pixels of a 56-pixel screen by which a button can be moved out of its place."""
    retries: Index = 0
    """Misses that are forgiven in an episode."""
    demonstrator: Literal["expert", "careless"] = "expert"
    """'expert' presses what the instruction names; 'careless' presses any button with probability `carelessness`."""
    action_format: ActionFormat = "json"
    """Parser of the replies: 'json', 'pyautogui' (calls in Python, as in OSWorld) or 'computer' (calls of the
    computer-use tool)."""
    blank_image: bool = False
    """A control: the picture is empty."""
    hide_instruction: bool = False
    """A control: the text does not say which colour."""
    describe: bool = False
    """A system prompt that explains the actions, for models that read; a tiny one would only pay for its tokens."""

    @model_validator(mode="after")
    def _fits_the_grid(self) -> Self:
        if self.size < PIXELS_PER_SLOT * self.slots:
            raise ConfigError(
                f"{self.key}: size must be at least {PIXELS_PER_SLOT * self.slots} ({PIXELS_PER_SLOT} pixels per "
                f"slot), got {self.size}"
            )
        return self


class ScreenOptions(FormOptions):
    """A drawn form of one to three pages whose targets move."""

    key = "screen"

    level: Literal[1, 2, 3] = 2
    """1: press a colour; 2: then press OK; 3: type a drawn digit between the two."""
    palette: Names = ("red", "green", "blue", "yellow")
    """Colours that buttons can have, each once."""
    buttons: Count = 3
    """Buttons on a page, of different colours."""

    @model_validator(mode="after")
    def _has_room_for_digits(self) -> Self:
        if self.level == 3 and self.slots < 2:
            raise ConfigError("screen: level 3 needs at least 2 slots per side, for the digit and its field, got 1")
        return self

    @model_validator(mode="after")
    def _buttons_have_colours(self) -> Self:
        for colour in self.palette:
            if colour not in COLOURS:
                raise ConfigError(f"screen: no colour {colour!r} in the palette; {did_you_mean(colour, COLOURS)}")
        colours = len(set(self.palette))
        if self.buttons > min(colours, self.slots**2):
            raise ConfigError(
                "screen: buttons must not exceed the colours of the palette and the slots, got "
                f"{self.buttons} buttons, {colours} colours, {self.slots**2} slots"
            )
        if colours != len(self.palette):
            raise ConfigError(f"screen: the palette names a colour twice: {self.palette}")
        return self


class SuiteOptions(FormOptions):
    """Drawn forms of mixed difficulty, a task each: pages, buttons and colours are those of the task."""

    key = "screen_suite"

    @model_validator(mode="after")
    def _has_room_for_every_task(self) -> Self:
        if self.slots < 2:
            raise ConfigError("screen_suite: its forms need at least 2 slots per side, got 1")
        return self
