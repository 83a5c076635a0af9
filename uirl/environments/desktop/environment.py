"""`DesktopEnvironment`: tasks on a real X desktop, by screenshots, keyboard and mouse."""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import time
from collections.abc import Mapping
from typing import Any, Self

from uirl.environments.base import BaseEnvironment
from uirl.environments.browser.picture import Viewport
from uirl.environments.desktop.options import DesktopOptions
from uirl.environments.desktop.session import PLACE, REST, Desktop, find_programs
from uirl.environments.desktop.tasks import Instance, draw, table
from uirl.environments.desktop.x11 import Connection, DisplayLost, Window
from uirl.environments.options import ConfigurableEnvironment, OptionsLike
from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.actions import ActionSpace
from uirl.environments.ui.keys import read_chord
from uirl.types import Action, Observation, StepResult, Task

_LOG = logging.getLogger(__name__)
ACTIONS = (
    *ui.CLICKS, "move", "mouse_down", "mouse_up", "drag", "type", "keys", "key_down", "key_up", "scroll", "wait",
    "screenshot", "answer", "terminate",
)  # fmt: skip
KEYPAD = {
    name: ((column + 0.5) / 5, 0.464 + 0.1165 * row)
    for row, names in enumerate(("( )", "7 8 9 / sqrt", "4 5 6 * %", "1 2 3 - =", "0 . +/- +"))
    for column, name in enumerate(names.split())
}
"""Button of the calculator -> its place as shares of the window."""


class DesktopEnvironment(ConfigurableEnvironment):
    """A real desktop: Xvfb, openbox, an editor, a calculator, a file manager and a spreadsheet of Debian.

    Every episode has an X server and a home of its own, and programs behind walls: other users' processes and files,
    the network and other displays are not there. It ends with `terminate`, `answer` or the last turn, and is judged
    then, once, by what it left: 1 where the files, cells, settings and the display are those that were asked for, no
    other file changed, no dialog is open and no work is unsaved; else 0. A desktop that an action brings down ends the
    episode, and the task is not solved.
    """

    action_format = "json"
    scored_at_end = True

    options_class = DesktopOptions
    options: DesktopOptions
    _desktop: Desktop | None = None
    _instance: Instance | None = None
    _turns = 0
    _blank = _untold = False

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Check the options; the desktop starts at the first reset. Raises ConfigError where programs are missing."""
        super().__init__(config, options, **keys)
        options = self.options
        find_programs()
        side = options.image_size
        size = (side, side) if isinstance(side, int) else side
        self._viewport = Viewport.of(options.width, options.height, 1.0, options.crop, size)
        self.picture_size = self._viewport.size
        names = ACTIONS if options.actions is None else options.actions
        self.space = ActionSpace(
            *self.picture_size,
            names,
            options.coordinates,
            targets=options.say_target,
            modifiers=True,
            format=options.action_format,
        )
        self.action_format = options.action_format  # type: ignore[misc]
        self.max_turns = options.max_turns
        self.demonstrator_may_fail = options.error_rate > 0

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks that are played."""
        return self.options.tasks or tuple(table())

    def tasks(self) -> list[Task]:
        """Return one task per row of the table, named 'desktop/<name>'."""
        return [Task(f"desktop/{name}", "desktop", tags=("desktop", name.split("-")[0])) for name in self.names]

    def reset(self, task: Task | None = None, seed: int | None = None) -> Observation:
        """Return the goal and the picture of a new episode on a new desktop. Raises DisplayLost where none starts."""
        self.close()
        seed = random.SystemRandom().getrandbits(31) if seed is None else seed
        self._rng = rng = random.Random(seed)
        name = rng.choice(self.names)
        if task is not None and (given := task.id.removeprefix("desktop/")) in table():
            name = given
        self._instance, self._turns, self._done = draw(name, rng), 0, False
        place = PLACE[0] + rng.randint(0, self.options.jitter), PLACE[1] + rng.randint(0, self.options.jitter)
        try:
            self._start(self._instance, place)
        except DisplayLost as error:  # nobody has acted yet: a program that does not start is started once more
            _LOG.warning("desktop: started again: %s", error)
            self.close()
            self._start(self._instance, place)
        return self._observe(self.get_state_description(), {"seed": seed, "success": False, "task": name})

    def _start(self, instance: Instance, place: tuple[int, int]) -> None:
        self._desktop = desktop = Desktop((self.options.width, self.options.height), instance.content())
        program, *paths = instance.program
        desktop.open(program, *paths, place=place)
        desktop.input.move(self.options.width - 1, self.options.height - 1)
        desktop.settle()

    def step(self, action: Action) -> StepResult:
        """Carry out an action; return the new picture, or how the episode ended."""
        if self._done or self._desktop is None:
            raise RuntimeError("step after the end of an episode; call reset first")
        self._turns += 1
        meant = self.space.read(action)
        try:
            problem = meant if isinstance(meant, str) else self._perform(self._desktop, meant)
            ended = isinstance(meant, (ui.Answer, ui.Terminate))
            if ended or self._turns >= self.options.max_turns:
                return self._end(self._desktop, meant if ended else None)
            info = {"success": False, **({"mistake": problem} if problem else {})}
            return StepResult(self._observe(problem or "", info), self.mistake_reward if problem else 0.0)
        except DisplayLost as error:
            self._done = True
            info = {"success": False, "lost": str(error)}
            return StepResult(Observation(f"the desktop is gone: {error}", (), info), 0.0, terminated=True)

    def score_now(self) -> tuple[float, dict[str, Any]] | None:
        """Judge an episode that the run ends here."""
        if self._desktop is None or self._done:
            return None
        try:
            result = self._end(self._desktop, None)
        except DisplayLost as error:
            return 0.0, {"success": False, "lost": str(error)}
        return result.reward, dict(result.observation.info)

    def get_state_description(self) -> str:
        return "" if self._instance is None or self._untold else self._instance.goal

    def get_prompt_prefix(self) -> str:
        return f"Do what is asked on this desktop. {self.space.ask()}"

    def expert_action(self) -> Action | None:
        """Return the next action of the script, and at its end that the task is done."""
        if self._instance is None or self._desktop is None or self._turns > len(self._instance.script):
            return None
        if self._turns == len(self._instance.script):
            return self._write(ui.Terminate("success"))
        step = self._instance.script[self._turns]
        if step.startswith("@"):
            name = step[1:]
            if self._rng.random() < self.options.error_rate:
                name = self._rng.choice(sorted(KEYPAD))
            return self._write(self._click_on(self._desktop, name), name)
        if step == "~":
            return self._write(ui.Wait(1.0))
        if step.startswith("<"):
            return self._write(ui.Keys(read_chord(step[1:-1])))
        return self._write(ui.Type(step))

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the same tasks without a picture, and without what is asked."""
        blank, untold = self.spawn(), self.spawn()
        blank._blank = untold._untold = True
        return {"blank_image": blank, "no_instruction": untold}

    def spawn(self) -> Self:
        """Return another environment with the same options and no desktop yet."""
        other = copy.copy(self)
        other._desktop = other._instance = None
        return other

    def close(self) -> None:
        """End the desktop with all its programs."""
        desktop, self._desktop = self._desktop, None
        if desktop is not None:
            desktop.close()

    def _end(self, desktop: Desktop, last: ui.UIAction | None) -> StepResult:
        """Judge the episode; `last`: the action that ended it, None where it is out of turns."""
        assert self._instance is not None
        self._done = True
        desktop.input.release_all()
        desktop.settle(REST)
        windows = desktop.input.windows()
        if self._instance.saves_at_close():
            for window in windows:
                desktop.input.close_window(window.id)
            desktop.settle()
        problem = self._instance.problem(desktop.read_home(), windows)
        info: dict[str, Any] = {"success": problem is None, **({"reason": problem} if problem else {})}
        if isinstance(last, ui.Terminate):
            info["claimed"] = last.status
        elif last is None:
            info["out_of_turns"] = True
        return StepResult(Observation("", (), info), float(problem is None), terminated=True)

    def _perform(self, desktop: Desktop, action: ui.UIAction) -> str | None:
        """Carry out an action and wait for what comes of it; return why it cannot be, in words for the policy."""
        hand = desktop.input
        match action:
            case ui.Click(x, y, button, count, held):
                hand.move(*self._at(x, y))
                _hold(hand, held, True)
                for _ in range(count):
                    hand.button(button, True)
                    hand.button(button, False)
                _hold(hand, held, False)
            case ui.Move(x, y):
                hand.move(*self._at(x, y))
            case ui.MouseButton(x, y, button, down):
                if x is not None and y is not None:
                    hand.move(*self._at(x, y))
                hand.button(button, down)
            case ui.Drag(x, y, to_x, to_y):
                (left, top), (right, bottom) = self._at(x, y), self._at(to_x, to_y)
                hand.move(left, top)
                hand.button("left", True)
                for part in (1, 2, 3, 4):  # programs begin to drag only after some way
                    desktop.settle()
                    hand.move(left + (right - left) * part // 4, top + (bottom - top) * part // 4)
                desktop.settle()
                hand.button("left", False)
            case ui.Scroll(direction, amount, x, y):
                if x is not None and y is not None:
                    hand.move(*self._at(x, y))
                hand.wheel(direction, amount)
            case ui.Type(text):
                try:
                    if hand.learn(text):
                        desktop.settle()
                except ValueError as error:
                    return str(error)
                hand.type(text)
            case ui.Keys(keys):
                _hold(hand, keys, True)
                _hold(hand, keys, False)
            case ui.HoldKey(key, down):
                _hold(hand, (key,), down)
            case ui.Wait(seconds):
                time.sleep(seconds)
        desktop.settle()
        return None

    def _at(self, x: int, y: int) -> tuple[int, int]:
        left, top = self._viewport.on_page(x, y)
        return int(left), int(top)

    def _observe(self, text: str, info: Mapping[str, Any]) -> Observation:
        assert self._desktop is not None
        picture = self._viewport.shown(self._desktop.picture())
        if self._blank:
            picture.paste("white", (0, 0, *picture.size))
        return Observation(text, (picture,), dict(info))

    def _write(self, action: ui.UIAction, target: str = "") -> Action:
        return Action(tool_calls=(self.space.write(action, target if self.space.targets else ""),))

    def _click_on(self, desktop: Desktop, button: str) -> ui.UIAction:
        """Return a click on a button of the calculator."""
        window: Window = desktop.input.windows()[-1]
        left, top, width, height = window.box
        across, down = KEYPAD[button]
        pixel = self._viewport.in_picture(left + across * width, top + down * height)
        return ui.LookAgain() if pixel is None else ui.Click(*pixel)


def _hold(hand: Connection, keys: tuple[str, ...], down: bool) -> None:
    for key in keys if down else keys[::-1]:
        with contextlib.suppress(KeyError):  # a key that the keyboard does not have
            hand.key(key, down)
