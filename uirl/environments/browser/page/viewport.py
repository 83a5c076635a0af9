"""What of a page becomes the picture, at which size, and where its pixels are on the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uirl.errors import ConfigError
from uirl.images import Screenshot

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Viewport:
    """The page and the part of it that is shown."""

    page: tuple[int, int]
    """Width and height of the page in CSS pixels."""
    zoom: float
    """Pixels the browser draws per CSS pixel."""
    crop: Box
    """Left, top, width and height, in CSS pixels."""
    size: tuple[int, int]
    """Width and height of the picture."""

    @staticmethod
    def of(
        width: int,
        height: int,
        zoom: float = 1.0,
        crop: Box | None = None,
        image_size: tuple[int, int] | None = None,
    ) -> Viewport:
        """Return a viewport of a page of this size. Raises ConfigError for a crop that reaches outside."""
        box = (0, 0, width, height) if crop is None else crop
        left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
        if min(left, top) < 0 or right > width or bottom > height:
            raise ConfigError(f"crop {box} reaches outside the page of {width} x {height} pixels")
        return Viewport((width, height), zoom, box, image_size or (_scaled(box[2], zoom), _scaled(box[3], zoom)))

    @property
    def is_capture(self) -> bool:
        """Whether the picture is what the browser captures, untouched."""
        whole = self.crop == (0, 0, *self.page)
        return whole and all(abs(s - side * self.zoom) < 1e-6 for s, side in zip(self.size, self.page, strict=True))

    def picture(self, captured: bytes) -> Image:
        """Return the shown part, at its size, of a capture of the whole page."""
        from PIL import Image as PILImage

        left, top, width, height = (side * self.zoom for side in self.crop)
        part = Screenshot(captured).open()
        box = (round(left), round(top), round(left + width), round(top + height))
        if box != (0, 0, *part.size):
            part = part.crop(box)
        return part if part.size == self.size else part.resize(self.size, PILImage.Resampling.BOX)

    def on_page(self, x: float, y: float) -> tuple[float, float]:
        """Return the page position of the middle of a picture pixel."""
        left, top, width, height = self.crop
        return left + (x + 0.5) * width / self.size[0], top + (y + 0.5) * height / self.size[1]

    def in_picture(self, x: float, y: float) -> tuple[int, int] | None:
        """Return the picture pixel that shows a page position; None: it is outside the picture."""
        left, top, width, height = self.crop
        column = math.floor((x - left) * self.size[0] / width)
        row = math.floor((y - top) * self.size[1] / height)
        return (column, row) if 0 <= column < self.size[0] and 0 <= row < self.size[1] else None

    def box(self, left: float, top: float, right: float, bottom: float) -> Box:
        """Return the picture pixels (left, top, right, bottom) that show a box of the page, cut at the edges."""
        x, y, width, height = self.crop
        columns = [round((side - x) * self.size[0] / width) for side in (left, right)]
        rows = [round((side - y) * self.size[1] / height) for side in (top, bottom)]
        last_column, last_row = self.size[0] - 1, self.size[1] - 1
        return (
            min(max(columns[0], 0), last_column),
            min(max(rows[0], 0), last_row),
            min(max(columns[1], 0), last_column),
            min(max(rows[1], 0), last_row),
        )


def _scaled(side: int, zoom: float) -> int:
    return max(1, round(side * zoom))
