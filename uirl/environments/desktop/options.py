"""The options of `DesktopEnvironment`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from uirl.config.section import Count, Index
from uirl.environments.browser.environment import Crop
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.desktop.tasks import table
from uirl.environments.options import Names, Size
from uirl.environments.ui.vocabulary import ActionFormat, Coordinates
from uirl.errors import ConfigError, did_you_mean


class DesktopOptions(DemonstratorOptions):
    """A desktop with real programs, and tasks that are checked by the files, cells and settings they leave."""

    key = "desktop"

    tasks: Names = ()
    """Names of the tasks; empty: all. An episode without a given task draws one by its seed."""
    width: int = Field(1280, ge=320, le=3840)
    """Of the screen in pixels."""
    height: int = Field(720, ge=240, le=2160)
    """Of the screen in pixels."""
    crop: Crop | None = None
    """Part of the screen that becomes the picture, as [left, top, width, height] in pixels; None: all."""
    image_size: Count | Size | None = None
    """The picture is resized to this [width, height], or square of this side; None: as it is. Positions are in pixels
    of the picture, whatever its size."""
    actions: Names | None = None
    """Names of the actions that are offered; None: all that a desktop has."""
    coordinates: Coordinates = "pixels"
    """'pixels', or 'grid_999': 0 to 999 along each side."""
    action_format: ActionFormat = "json"
    """Parser of the replies: 'json', 'pyautogui' (calls in Python, as in OSWorld) or 'computer' (calls of the
    computer-use tool)."""
    say_target: bool = False
    """The prompt asks for the word `target` before the coordinates of a click, and the demonstrator gives one."""
    jitter: Index = 120
    """Pixels by which the seed moves the first window to the right and down at most."""
    max_turns: Count = 30
    """Actions after which an episode ends, and is judged as it stands."""

    @model_validator(mode="after")
    def _tasks_exist(self) -> Self:
        for name in self.tasks:
            if name not in table():
                raise ConfigError(f"desktop: no task {name!r}; {did_you_mean(name, table())}")
        return self
