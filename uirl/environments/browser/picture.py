"""The picture of a page: which part at which size, where its pixels are, and the numbers that are drawn on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uirl.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]
COLOURS = ((200, 30, 30), (20, 90, 200), (10, 120, 50), (150, 60, 160), (170, 90, 0))


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
        width: int, height: int, zoom: float = 1.0, crop: Box | None = None, image_size: tuple[int, int] | None = None
    ) -> Viewport:
        """Return a viewport of a page of this size. Raises ConfigError for a crop that reaches outside."""
        left, top, across, down = box = crop or (0, 0, width, height)
        if min(left, top) < 0 or left + across > width or top + down > height:
            raise ConfigError(f"crop {box} reaches outside the page of {width} x {height} pixels")
        drawn = max(1, round(across * zoom)), max(1, round(down * zoom))
        return Viewport((width, height), zoom, box, image_size or drawn)

    @property
    def is_capture(self) -> bool:
        """Whether the picture is what the browser captures, untouched."""
        whole = self.crop == (0, 0, *self.page)
        return whole and all(abs(s - side * self.zoom) < 1e-6 for s, side in zip(self.size, self.page, strict=True))

    def shown(self, part: Image) -> Image:
        """Return the shown part, at its size, of a picture of the whole page."""
        from PIL import Image as PILImage

        left, top, width, height = (side * self.zoom for side in self.crop)
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

        def cut(side: float, axis: int) -> int:
            size = self.size[axis]
            return min(max(round((side - self.crop[axis]) * size / self.crop[axis + 2]), 0), size - 1)

        return cut(left, 0), cut(top, 1), cut(right, 0), cut(bottom, 1)


def draw_marks(picture: Image, boxes: Sequence[Box]) -> Image:
    """Return a copy of the picture with a numbered frame, from 1, around each box (left, top, right, bottom)."""
    from PIL import ImageDraw, ImageFont

    drawn = picture.copy()
    canvas = ImageDraw.Draw(drawn)
    font: Any = ImageFont.load_default(size=max(8, min(14, picture.height // 30)))
    for number, (left, top, right, bottom) in enumerate(boxes, start=1):
        colour = COLOURS[number % len(COLOURS)]
        canvas.rectangle((left, top, right, bottom), outline=colour)
        _, _, width, height = canvas.textbbox((0, 0), str(number), font=font)
        # Inside the picture, above the box where there is room: the number must not hide what it names.
        x = min(left, picture.width - int(width) - 3)
        y = top - int(height) - 2 if top > height + 2 else top
        canvas.rectangle((x, y, x + width + 2, y + height + 1), fill=colour)
        canvas.text((x + 1, y), str(number), fill="white", font=font)
    return drawn
