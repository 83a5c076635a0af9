"""`PageOptions`: what every environment in the browser can be told."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from uirl.config.section import Count, Index, NonNegative
from uirl.environments.browser.page.viewport import Viewport
from uirl.environments.options import EnvironmentOptions, Names, Size
from uirl.environments.ui.actions import ACTIONS, ActionSpace
from uirl.environments.ui.vocabulary import CLICKS, Coordinates
from uirl.errors import ConfigError

Crop = Annotated[tuple[Index, Index, Count, Count], Field(strict=False)]
"""Left, top, width and height."""


class PageOptions(EnvironmentOptions):
    """A page in the browser: what is shown of it, and what can be done."""

    key = "page"

    width: Count | None = None
    """Of the page in CSS pixels; None: that of the environment."""
    height: Count | None = None
    """Of the page in CSS pixels; None: that of the environment."""
    zoom: float = Field(1.0, ge=0.1, le=4)
    """Pixels of the picture per CSS pixel: below 1 the browser draws the page small. Each value has a browser of its
    own."""
    crop: Crop | None = None
    """Part of the page that becomes the picture, as [left, top, width, height] in CSS pixels; None: all."""
    image_size: Count | Size | None = None
    """The picture is resized to this [width, height], or square of this side; None: as it is. Positions are in pixels
    of the picture, whatever its size."""
    image_format: Literal["png", "jpeg"] = "png"
    """How the browser encodes the picture. One that is cropped, resized or marked afterwards is handed on as it then
    is, without loss."""
    quality: Annotated[int, Field(ge=1, le=100)] | None = None
    """Of 'jpeg'; None: 80."""
    actions: Names | None = None
    """Names of the actions that are offered; None: those of the environment."""
    coordinates: Coordinates = "pixels"
    """'pixels', or 'grid_999': 0 to 999 along each side."""
    say_target: bool = False
    """The prompt asks for the word `target` before the coordinates of a click, and demonstrators give one where they
    know a word."""
    marks: bool = False
    """Numbers are drawn on what can be clicked, and `click` takes a mark in place of x and y."""
    tree: Index = 0
    """Characters of the accessibility tree that follow the text of every observation; 0: none."""
    max_turns: Count | None = None
    """Actions after which an episode is cut ('truncated'); None: that of the environment."""
    ocr: Index = 0
    """Characters of the words on the picture, each with its place, that follow the text of every observation, as
    rapidocr reads them (extra `ocr`; half a second a picture and more); 0: none."""
    picture: bool = True
    """Show the page; false: the words alone, for models that read (with `tree` and `marks`, or `ocr`)."""
    settle: NonNegative = 0.0
    """Seconds to wait after an action, for pages that move."""

    @model_validator(mode="after")
    def _something_is_shown(self) -> Self:
        if not self.picture and not self.tree and not self.ocr:
            raise ConfigError(f"{self.key}: picture=false shows nothing; set tree, or ocr, to e.g. 500")
        return self

    @model_validator(mode="after")
    def _quality_is_read(self) -> Self:
        if self.quality is not None and self.image_format == "png":
            raise ConfigError(
                f"{self.key}: PNG has no quality, got {self.quality}; set image_format to 'jpeg', or leave quality "
                "out (null)"
            )
        return self

    @property
    def crop_box(self) -> Crop | None:
        """`crop` in CSS pixels."""
        return self.crop

    def viewport(self, page_size: tuple[int, int]) -> Viewport:
        """Return the page and what is shown of it; `page_size`: width and height where the options say nothing.

        Raises ConfigError for a crop that reaches outside.
        """
        width, height = self.width or page_size[0], self.height or page_size[1]
        side = self.image_size
        size = (side, side) if isinstance(side, int) else side
        return Viewport.of(width, height, self.zoom, self.crop_box, size)

    def space(self, picture_size: tuple[int, int], actions: tuple[str, ...]) -> ActionSpace:
        """Return the actions that are offered; `actions`: where the options say nothing.

        Raises ConfigError for options of clicks and positions where no action has any.
        """
        offered = actions if self.actions is None else self.actions
        if not offered:
            raise ConfigError(f"{self.key}: actions is an empty list; expected names such as 'click'")
        space = ActionSpace(*picture_size, offered, self.coordinates, self.marks, self.say_target, modifiers=True)
        if self.say_target and not any(name in CLICKS for name in space.names):
            raise ConfigError(
                f"say_target is about clicks, and the actions {', '.join(space.names)} have none; leave it out"
            )
        if self.coordinates != "pixels" and not any({"x", "y"} & set(ACTIONS[name].arguments) for name in space.names):
            raise ConfigError(
                f"coordinates={self.coordinates!r} is about positions, and the actions {', '.join(space.names)} have "
                "none; leave it out"
            )
        return space

    def capture(self) -> dict[str, Any]:
        """Return the arguments of `Page.screenshot`."""
        return {"format": self.image_format, **({} if self.quality is None else {"quality": self.quality})}
