"""Where things stand on the screen, boxes in a grid of slots moved a little at random; shapes -> a picture."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]

BACKGROUND: Colour = (122, 117, 104)
"""A desk in the middle grey that image processors subtract: what is left to see are the things on it."""
TITLE_BAR: Colour = (40, 40, 60)
SIDE_BAR: Colour = (190, 190, 205)
SHADOW: Colour = (90, 86, 76)
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


BASE_SIZE = 56
"""The size, in pixels, whose geometry the proportions below give: slots of 28, bars of 4, buttons of 24 x 20."""
BUTTON_WIDTH, BUTTON_HEIGHT = 24 / 28, 20 / 28
"""Of a slot."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels."""

    left: int
    top: int
    width: int
    height: int

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x < self.left + self.width and self.top <= y < self.top + self.height

    @property
    def centre(self) -> tuple[int, int]:
        return self.left + self.width // 2, self.top + self.height // 2


def bar_width(size: int) -> int:
    """Return the thickness in pixels of the title bar at the top and of the side bar at the left."""
    return size * 4 // BASE_SIZE


@dataclass(frozen=True, slots=True)
class Grid:
    """`slots` x `slots` places on a square screen of `size` pixels."""

    size: int
    slots: int
    jitter: int
    """How far a box moves from the middle of its slot, at most, in pixels of a screen of `BASE_SIZE`."""

    def place(self, rng: random.Random, slot: int) -> Box:
        """Return a button-sized box in the slot, moved at random and never out of it."""
        edge = self.size // self.slots
        width, height = round(edge * BUTTON_WIDTH), round(edge * BUTTON_HEIGHT)
        row, column = divmod(slot, self.slots)
        return Box(
            column * edge + self._offset(rng, edge - width),
            row * edge + self._offset(rng, edge - height),
            width,
            height,
        )

    def scatter(self, rng: random.Random, count: int) -> list[Box]:
        """Return boxes in `count` different slots, in random order."""
        return [self.place(rng, slot) for slot in rng.sample(range(self.slots**2), count)]

    def _offset(self, rng: random.Random, free: int) -> int:
        middle = free // 2
        reach = min(middle, round(self.jitter * self.size / BASE_SIZE))
        return middle + rng.randint(-reach, reach)


@dataclass(frozen=True, slots=True)
class Shape:
    """A filled box with a label."""

    box: Box
    fill: Colour
    label: str = ""
    ink: Colour = WHITE
    optional_label: bool = False
    """The label is drawn only where there is room."""
    label_height: float = 0.8
    """Size of the font, as a share of the height of the box; two thirds of it where there is room for margins."""


ROUNDED_FROM = 24
"""Height of a box, in pixels, from which it is drawn with round corners, a shadow and its optional label. Smaller
ones are plain rectangles: at that size decoration is noise."""
LARGE_LABELS = 0.65


def draw(size: int, shapes: tuple[Shape, ...]) -> Image.Image:
    """Draw an RGB picture of `size` x `size` pixels."""
    picture = Image.new("RGB", (size, size), BACKGROUND)
    canvas = ImageDraw.Draw(picture)
    for shape in shapes:
        large = shape.box.height >= ROUNDED_FROM
        (_draw_rounded if large else _draw_plain)(canvas, shape)
        if shape.label and (large or not shape.optional_label):
            _draw_label(picture, shape, large)
    _draw_frame(canvas, size)
    return picture


def _draw_frame(canvas: ImageDraw.ImageDraw, size: int) -> None:
    """Draw a title bar and a side bar, as windows have, over all shapes. They tell one corner from another."""
    bar = bar_width(size)
    canvas.rectangle((0, bar, bar - 1, size - 1), fill=SIDE_BAR)
    canvas.rectangle((0, 0, size - 1, bar - 1), fill=TITLE_BAR)


def _draw_plain(canvas: ImageDraw.ImageDraw, shape: Shape) -> None:
    canvas.rectangle(_corners(shape.box), fill=shape.fill, outline=BLACK)


def _draw_rounded(canvas: ImageDraw.ImageDraw, shape: Shape) -> None:
    radius, depth = shape.box.height // 5, max(1, shape.box.height // 20)
    left, top, right, bottom = _corners(shape.box)
    canvas.rounded_rectangle((left, top + depth, right, bottom + depth), radius, fill=SHADOW)
    canvas.rounded_rectangle(
        (left, top, right, bottom), radius, fill=shape.fill, outline=_darker(shape.fill), width=depth
    )


def _draw_label(picture: Image.Image, shape: Shape, large: bool) -> None:
    share = shape.label_height * (LARGE_LABELS if large else 1.0)
    mask, letter_height = _label(shape.label, max(6, round(shape.box.height * share)))
    left = shape.box.left + (shape.box.width - mask.width) // 2
    top = shape.box.top + (shape.box.height - letter_height) // 2
    picture.paste(shape.ink, (left, top), mask)


@lru_cache(maxsize=256)
def _label(text: str, height: int) -> tuple[Image.Image, int]:
    """Return the ink of a text, and the height of its letters above the line, by which it is centred.

    Kept, because rendering a font costs more than all the rest of a small picture.
    """
    font = ImageFont.load_default(size=height)
    left, _, right, bottom = font.getbbox(text)
    _, top, _, line = font.getbbox("b")
    mask = Image.new("L", (round(right - left), round(max(bottom, line) - top)))
    ImageDraw.Draw(mask).text((-left, -top), text, fill=255, font=font)
    return mask, round(line - top)


def _corners(box: Box) -> tuple[int, int, int, int]:
    return box.left, box.top, box.left + box.width - 1, box.top + box.height - 1


def _darker(colour: Colour) -> Colour:
    red, green, blue = colour
    return red * 3 // 5, green * 3 // 5, blue * 3 // 5
