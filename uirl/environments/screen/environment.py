"""`ScreenEnvironment`: a drawn form whose targets move, small enough that a tiny model learns it from pixels."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, ClassVar

from uirl.environments.base import BaseEnvironment
from uirl.environments.options import ConfigurableEnvironment, OptionsLike
from uirl.environments.screen.drawing import Grid, draw
from uirl.environments.screen.options import LEVELS, FormOptions, ScreenOptions
from uirl.environments.screen.stages import ColourStage, ConfirmStage, DigitStage, Stage
from uirl.environments.ui.actions import ActionSpace, written
from uirl.types import Action, Observation, StepResult, ToolCall


class ScreenEnvironment(ConfigurableEnvironment):
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

    options_class: ClassVar[type[FormOptions]] = ScreenOptions
    options: FormOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create a form to fill in. Options: see `ScreenOptions`."""
        super().__init__(config, options, **keys)
        chosen = self._form = self._first_form()
        self.size, self.retries = chosen.size, chosen.retries
        self.max_turns = len(LEVELS[chosen.level]) + chosen.retries
        self.picture_size = (chosen.size, chosen.size)
        """Width and height of the picture the agent sees."""
        self.space = ActionSpace(chosen.size, chosen.size, ("click", "type"), format=chosen.action_format)
        """What can be done, for those who call functions."""
        self.action_format = chosen.action_format  # type: ignore[misc]
        self._grid = Grid(chosen.size, chosen.slots, chosen.jitter)
        self._carelessness = chosen.error_rate
        self.demonstrator_may_fail = self._carelessness > 0
        self._blank, self._hidden = chosen.blank_image, chosen.hide_instruction
        self._begin(random.Random(0))

    def reset(self, *, seed: int | None = None) -> Observation:
        """Return the first page: the instruction and the picture. `seed` None draws a new instance."""
        self._begin(random.Random(seed))
        return self._observe(self._instruction())

    def step(self, action: Action) -> StepResult:
        """Return the next page, or the same one after a miss that was forgiven."""
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
        """Return the page number and its instruction; nothing that only the picture shows."""
        if self._index == len(self._stages):
            return f"all {len(self._stages)} pages done"
        return f"page {self._index + 1} of {len(self._stages)}: {self._instruction() or 'go on'}"

    def get_prompt_prefix(self) -> str:
        if not self.options.describe:
            return ""
        click, text = (
            written(call, self.options.action_format)
            for call in (ToolCall("click", {"target": "red", "x": 12, "y": 34}), ToolCall("type", {"text": "5"}))
        )
        return (
            f"You see a screen of {self.size} x {self.size} pixels; x grows to the right, y downwards. Answer with one "
            f"{'JSON action' if self.action_format == 'json' else 'action'}: {click} says what it presses and presses "
            f"that pixel, {text} types. "
            "Do what the text says, type a digit that is shown beside an empty field, and press OK where it appears."
        )

    def expert_action(self) -> Action | None:
        """Return the demonstrator's action on this page; asked twice it says the same. None: the form is done."""
        return None if self._index == len(self._stages) else self._demonstration

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the same form without its picture, without its instruction, and a click that never moves."""
        blank, untold = copy.deepcopy(self), copy.deepcopy(self)
        blank._blank = untold._hidden = True
        return {"blank_image": blank, "no_instruction": untold, "constant_click": self.constant_click_action()}

    def constant_click_action(self) -> Action:
        """Return a click on the middle of the first slot, where buttons often stand: the control for blind policies."""
        middle = self.size // self._grid.slots // 2
        return Action.of("click", x=middle, y=middle)

    def _first_form(self) -> ScreenOptions:
        """Return the form that is there before the first reset."""
        assert isinstance(self.options, ScreenOptions)
        return self.options

    def _begin(self, rng: random.Random) -> None:
        self._stages = [self._create_stage(kind, rng) for kind in LEVELS[self._form.level]]
        # All pages are drawn by now: what the demonstrator draws later cannot change them.
        self._rng = rng
        self._index = 0
        self._misses = 0
        self._demonstration = self._demonstrate()

    def _create_stage(self, kind: str, rng: random.Random) -> Stage:
        if kind == "colour":
            return ColourStage.create(rng, self._grid, self._form.palette, self._form.buttons)
        return DigitStage.create(rng, self._grid) if kind == "digit" else ConfirmStage.create(rng, self._grid)

    def _demonstrate(self) -> Action:
        stage = self._stages[self._index]
        return stage.careless(self._rng) if self._rng.random() < self._carelessness else stage.expert()

    def _instruction(self) -> str:
        if self._index == len(self._stages):
            return ""
        stage = self._stages[self._index]
        return stage.neutral_instruction if self._hidden else stage.instruction

    def _observe(self, text: str, **info: Any) -> Observation:
        shown = not self._blank and self._index < len(self._stages)
        return Observation(text, (draw(self.size, self._stages[self._index].shapes() if shown else ()),), info)


def _find_problem(calls: Sequence[ToolCall], size: int) -> str | None:
    """Return why the one call of a reply cannot be carried out, in words for the model; None: it can."""
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
