"""The options of `MiniWobEnvironment`."""

from __future__ import annotations

from typing import Literal

from uirl.environments.browser.miniwob.pages import AREA
from uirl.environments.browser.options import Crop, PageOptions
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import Names


class MiniWobOptions(DemonstratorOptions, PageOptions):
    """Pages of MiniWoB++. They are made for 160 x 210 pixels; without options only `click` is offered."""

    key = "miniwob"

    task: str | Names = "click-test"
    """Name of a page, or of several, or 'all': an episode without a given task then draws one by its seed."""
    tags: Names = ()
    """Of these pages only those that carry every one of the tags, for example ['click', 'easy']."""
    crop: Literal["area"] | Crop | None = None  # type: ignore[assignment]
    """Part of the page that becomes the picture: [left, top, width, height] in CSS pixels, or 'area', the 160 x 160
    below the instruction, which the text says anyway; None: all."""
    reward: Literal["page", "success"] = "page"
    """'page': what the page gives, in [-1, 1]; 'success': 1 for a success, else 0."""
    demonstrator: Literal["expert", "careless"] = "expert"
    """'expert' clicks the right thing; 'careless' does so too, but with probability `carelessness` it clicks any of the
    things the page offers (or anywhere, where there is only one)."""

    @property
    def crop_box(self) -> Crop | None:
        return AREA if self.crop == "area" else self.crop
