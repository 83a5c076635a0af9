"""Set-of-marks: numbers drawn on what can be clicked, so that a policy may name one in place of a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

COLOURS = ((200, 30, 30), (20, 90, 200), (10, 120, 50), (150, 60, 160), (170, 90, 0))


def draw_marks(picture: Image, boxes: Sequence[tuple[int, int, int, int]]) -> Image:
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
