"""`ScreenEnvironment`: a drawn form whose targets move, small enough that a tiny model learns it from pixels."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import error_rate
from uirl.environments.screen.drawing import draw
from uirl.environments.screen.layout import Grid
from uirl.environments.screen.stages import COLOURS, ColourStage, ConfirmStage, DigitStage, Stage
from uirl.environments.ui.actions import ActionSpace
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Action, Observation, StepResult, ToolCall

LEVELS = {1: ("colour",), 2: ("colour", "confirm"), 3: ("colour", "digit", "confirm")}


class ScreenEnvironment(BaseEnvironment):
    """A form of one to three pages. Press the colour that the text names, (type the drawn digit,) press OK.

    Actions: `{"action":"click","target":"red","x":..,"y":..}` in pixels and `{"action":"type","text":".."}`. Where a
    click lands decides; `target` may be left out, but a policy that says what it means to press before it says where
    learns the two apart. Every solved page pays `1 / pages`. A miss, an action that does not exist and a reply that
    cannot be read are the model's mistakes: they pay nothing, and end the episode once `retries` are used up. The text
    alone, the picture alone or a fixed point stay at chance: on level 2 with 4 slots and 3 buttons a constant click
    solves 1/16, a policy that sees and does not read 1/3.
    """

    action_format = "json"
    runs_inline = True

    def __init__(
        self,
        config: Any = None,
        *,
        size: int = 56,
        level: int = 2,
        palette: Sequence[str] = ("red", "green", "blue", "yellow"),
        buttons: int = 3,
        slots: int = 2,
        jitter: int = 2,
        retries: int = 0,
        demonstrator: str = "expert",
        carelessness: float | None = None,
        blank_image: bool = False,
        hide_instruction: bool = False,
        describe: bool = False,
    ) -> None:
        """Raises ConfigError for an option that does not fit.

        `size`: width and height in pixels; everything scales with it, and from about 100 pixels on buttons carry the
        name of their colour. `buttons` of the colours in `palette` stand in `slots` x `slots` places, moved by up to
        `jitter` (pixels of a 56-pixel screen). `demonstrator` 'careless' presses any button, with probability
        `carelessness` (None: 0.5), where the instruction names one. `blank_image` and `hide_instruction` are the
        controls that take away the picture or the words. `describe`: a system prompt that explains the actions, for
        models that read; a tiny one would only pay for its tokens.
        """
        super().__init__(config)
        palette = tuple(palette)
        _check_options(size, level, palette, buttons, slots, jitter, retries)
        self.size, self.retries = size, retries
        self.max_turns = len(LEVELS[level]) + retries
        self.picture_size = (size, size)
        """Width and height of the picture the agent sees."""
        self.space = ActionSpace(size, size, ("click", "type"))
        """What can be done, for those who call functions."""
        self._grid = Grid(size, slots, jitter)
        self._kinds, self._palette, self._buttons = LEVELS[level], palette, buttons
        self._carelessness = error_rate("screen", demonstrator, carelessness)
        self.demonstrator_may_fail = self._carelessness > 0
        self._blank, self._hidden, self._describe = blank_image, hide_instruction, describe
        self._begin(random.Random(0))

    def reset(self, *, seed: int | None = None) -> Observation:
        """The first page: the instruction and the picture. `seed` None draws a new instance."""
        self._begin(random.Random(seed))
        return self._observe(self._instruction())

    def step(self, action: Action) -> StepResult:
        """The next page, or the same one after a miss that was forgiven."""
        problem = action.parse_error or _find_problem(action.tool_calls, self.size)
        call = action.call
        if problem is None and call is not None and self._stages[self._index].is_solved_by(call):
            self._index += 1
            reward, text = 1 / len(self._stages), self._instruction() or "ok"
        else:
            self._misses += 1
            reward, text = 0.0, problem or "missed"
        success = self._index == len(self._stages)
        if not success:
            self._demonstration = self._demonstrate()
        return StepResult(
            observation=self._observe(text, success=success, stage=self._index, stages=len(self._stages)),
            reward=reward,
            terminated=success or self._misses > self.retries,
        )

    def get_state_description(self) -> str:
        """The page number and its instruction; nothing that only the picture shows."""
        if self._index == len(self._stages):
            return f"all {len(self._stages)} pages done"
        return f"page {self._index + 1} of {len(self._stages)}: {self._instruction() or 'go on'}"

    def get_prompt_prefix(self) -> str:
        if not self._describe:
            return ""
        return (
            f"You see a screen of {self.size} x {self.size} pixels; x grows to the right, y downwards. Answer with one "
            'JSON action: {"action":"click","target":"red","x":12,"y":34} says what it presses and presses that pixel, '
            '{"action":"type","text":"5"} types. '
            "Do what the text says, type a digit that is shown beside an empty field, and press OK where it appears."
        )

    def expert_action(self) -> Action | None:
        """The demonstrator's action on this page; asked twice it says the same. None: the form is done."""
        return None if self._index == len(self._stages) else self._demonstration

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """The same form without its picture, without its instruction, and a click that never moves."""
        blank, untold = copy.deepcopy(self), copy.deepcopy(self)
        blank._blank = untold._hidden = True
        return {"blank_image": blank, "no_instruction": untold, "constant_click": self.constant_click_action()}

    def constant_click_action(self) -> Action:
        """A click on the middle of the first slot, where a button often stands: the control for blind policies."""
        middle = self.size // self._grid.slots // 2
        return Action.of("click", x=middle, y=middle)

    def _begin(self, rng: random.Random) -> None:
        self._stages = [self._create_stage(kind, rng) for kind in self._kinds]
        # All pages are drawn by now: what the demonstrator draws later cannot change them.
        self._whims = rng
        self._index = 0
        self._misses = 0
        self._demonstration = self._demonstrate()

    def _create_stage(self, kind: str, rng: random.Random) -> Stage:
        if kind == "colour":
            return ColourStage.create(rng, self._grid, self._palette, self._buttons)
        return DigitStage.create(rng, self._grid) if kind == "digit" else ConfirmStage.create(rng, self._grid)

    def _demonstrate(self) -> Action:
        stage = self._stages[self._index]
        return stage.careless(self._whims) if self._whims.random() < self._carelessness else stage.expert()

    def _instruction(self) -> str:
        if self._index == len(self._stages):
            return ""
        stage = self._stages[self._index]
        return stage.neutral_instruction if self._hidden else stage.instruction

    def _observe(self, text: str, **info: Any) -> Observation:
        shown = not self._blank and self._index < len(self._stages)
        return Observation(text, (draw(self.size, self._stages[self._index].shapes() if shown else ()),), info)


def _find_problem(calls: Sequence[ToolCall], size: int) -> str | None:
    """Why the one call of a reply cannot be carried out, in words for the model; None: it can."""
    if not calls:
        return "no action"
    if len(calls) > 1:
        return f"{len(calls)} actions in one reply; expected one"
    call, arguments = calls[0], calls[0].arguments
    if call.name == "click":
        known = set(arguments) - {"target"} == {"x", "y"} and isinstance(arguments.get("target", ""), str)
        if not known or not (_is_number(arguments["x"]) and _is_number(arguments["y"])):
            return "click needs the numbers x and y"
        inside = 0 <= arguments["x"] < size and 0 <= arguments["y"] < size
        return None if inside else "outside of the screen"
    if call.name == "type":
        typed = set(arguments) == {"text"} and isinstance(arguments["text"], str)
        return None if typed else "type needs a text"
    return f"unknown action {call.name[:20]}; use click or type"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_options(
    size: int,
    level: int,
    palette: tuple[str, ...],
    buttons: int,
    slots: int,
    jitter: int,
    retries: int,
) -> None:
    for name, value, low in (
        ("slots", slots, 1),
        ("buttons", buttons, 1),
        ("jitter", jitter, 0),
        ("retries", retries, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"screen: {name} must be an int of at least {low}, got {value!r}")
    if isinstance(size, bool) or not isinstance(size, int) or size < 28 * slots:
        raise ConfigError(f"screen: size must be an int of at least {28 * slots} (28 pixels per slot), got {size!r}")
    if level not in LEVELS:
        raise ConfigError(f"screen: level must be one of {list(LEVELS)}, got {level!r}")
    for colour in palette:
        if colour not in COLOURS:
            raise ConfigError(f"screen: no colour {colour!r} in the palette; {did_you_mean(str(colour), COLOURS)}")
    if buttons > min(len(set(palette)), slots**2):
        raise ConfigError(
            f"screen: buttons must not exceed the colours of the palette and the slots, got {buttons} buttons, "
            f"{len(set(palette))} colours, {slots**2} slots"
        )
    if len(set(palette)) != len(palette):
        raise ConfigError(f"screen: the palette names a colour twice: {palette}")
    if level == 3 and slots < 2:
        raise ConfigError("screen: level 3 needs at least 2 slots per side, for the digit and its field, got 1")
