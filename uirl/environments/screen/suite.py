"""`ScreenSuite`: drawn forms of mixed difficulty as 36 tasks, for one policy that learns them all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from uirl.environments.options import OptionsLike
from uirl.environments.screen.environment import ScreenEnvironment
from uirl.environments.screen.options import LEVELS, ScreenOptions, SuiteOptions
from uirl.errors import ConfigError, did_you_mean
from uirl.types import Observation, Task

PALETTES = {
    "primary": ["red", "green", "blue", "yellow"],
    "secondary": ["purple", "cyan", "orange", "brown"],
    "mixed": ["red", "purple", "yellow", "brown"],
}
_SAYS = ("level", "buttons", "palette")


class ScreenSuite(ScreenEnvironment):
    """Forms as in `ScreenEnvironment`, with one to three pages, one to four buttons and three palettes.

    The task says which: its `checks` are the options `level`, `buttons` and `palette` of the screen, so a task file can
    hold others.
    """

    options_class = SuiteOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create the forms. Options: see `SuiteOptions`."""
        super().__init__(config, options, **keys)
        self.max_turns = max(map(len, LEVELS.values())) + self.retries

    def tasks(self) -> list[Task]:
        """Return the 36 tasks."""
        return [
            Task(f"{level} pages, {buttons} of {name}", checks={"level": level, "buttons": buttons, "palette": palette})
            for level, buttons, (name, palette) in product(LEVELS, (1, 2, 3, 4), PALETTES.items())
        ]

    def reset(self, task: Task | None = None, *, seed: int | None = None) -> Observation:
        """Return the first page of a form of the task; None: of the default form of the screen. Raises ConfigError for
        a task that describes none."""
        self._form = self._first_form() if task is None else self._form_of(task)
        return super().reset(seed=seed)

    def _first_form(self) -> ScreenOptions:
        return self._form_with({})

    def _form_of(self, task: Task) -> ScreenOptions:
        for name in task.checks:
            if name not in _SAYS:
                raise ConfigError(f"task {task.id!r}: a form has no {name!r}; {did_you_mean(name, _SAYS)}")
        if task.goal or not task.checks:
            raise ConfigError(
                f"task {task.id!r} describes no form; expected checks with {', '.join(_SAYS)} and no goal: the "
                "instruction is drawn with the form"
            )
        return self._form_with(task.checks)

    def _form_with(self, says: Mapping[str, Any]) -> ScreenOptions:
        return ScreenOptions.from_arguments({**self.options.model_dump(exclude_unset=True), **says}, {})
