"""Widgets drawn with Pillow: each function draws one thing and says where it is. Nothing is read but fonts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFont

Box = tuple[int, int, int, int]
"""Left, top, right, bottom in pixels; right and bottom are outside."""
Colour = tuple[int, int, int]

COLOURS: dict[str, Colour] = {
    "red": (225, 30, 30), "green": (25, 150, 45), "blue": (35, 60, 225), "yellow": (245, 225, 30),
    "orange": (250, 140, 20), "purple": (130, 35, 165), "pink": (250, 130, 185), "brown": (125, 75, 35),
    "black": (10, 10, 10), "white": (252, 252, 252), "grey": (135, 135, 135), "cyan": (20, 215, 230),
    "magenta": (240, 25, 225), "lime": (110, 245, 20), "navy": (10, 15, 110), "olive": (125, 125, 15),
}  # fmt: skip
"""Name -> its middle; each thing is drawn a little off it."""
KIND_NAMES = ("button", "link", "heading", "text", "paragraph", "field", "text area", "list", "check box",
              "radio button", "tab", "cell", "shape", "icon")  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross", "bar")
ICONS = ("close", "menu", "plus", "minus", "play", "heart", "search", "left arrow", "right arrow", "up arrow",
         "down arrow", "mail", "trash")  # fmt: skip
_FONTS = (
    "DejaVuSans", "DejaVuSans", "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSerif",
    "DejaVuSerif-Bold", "DejaVuSansMono", "STIXGeneral", "STIXGeneralBol", "",
)  # fmt: skip
"""Files that come with matplotlib, as often as they are named; '': the one that comes with Pillow."""


@dataclass(frozen=True, slots=True)
class Element:
    """One thing on a screen."""

    kind: str
    box: Box
    """Where a click means this thing."""
    label: str = ""
    """What it says, or what is written beside it."""
    colour: str = ""
    shape: str = ""
    row: int = 0
    """Of a cell or a tab, from 1."""
    column: int = 0

    @property
    def middle(self) -> tuple[int, int]:
        return (self.box[0] + self.box[2] - 1) // 2, (self.box[1] + self.box[3] - 1) // 2


@dataclass(frozen=True, slots=True)
class Style:
    """What the things on one screen have in common."""

    ground: Colour
    ink: Colour
    line: Colour
    fill: Colour
    """Of buttons, tabs and the like."""
    fonts: tuple[ImageFont.FreeTypeFont, ...]
    """Of text, from the small one to that of headings."""
    round: int
    """Radius of corners."""


def style(rng: Random) -> Style:
    """Return a style: mostly dark on light."""
    dark = rng.random() < 0.1
    ground = tuple(rng.randint(15, 60) if dark else rng.choice((255, 255, rng.randint(215, 255))) for _ in range(3))
    ink = tuple(rng.randint(210, 255) if dark else rng.randint(0, 60) for _ in range(3))
    grey = rng.randint(80, 110) if dark else rng.randint(205, 245)
    line = tuple([rng.randint(120, 160) if dark else rng.randint(80, 180)] * 3)
    fill = tuple(max(0, min(255, grey + rng.randint(-12, 12))) for _ in range(3))
    name, size = rng.choice(_FONTS), rng.choice((9, 10, 10, 10, 11, 12, 13))
    fonts = tuple(font(name, round(size * scale)) for scale in (1, 1.0, 1.25, 1.6))
    return Style(ground, ink, line, fill, fonts, rng.choice((0, 0, 2, 3, 5)))  # type: ignore[arg-type]


@cache
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a font that ships with matplotlib, or for '' the one that ships with Pillow."""
    if not name:
        loaded = ImageFont.load_default(size)
        assert isinstance(loaded, ImageFont.FreeTypeFont)
        return loaded
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def shade(rng: Random, name: str) -> Colour:
    """Return a colour near the middle of its name."""
    red, green, blue = (max(0, min(255, value + rng.randint(-18, 18))) for value in COLOURS[name])
    return red, green, blue


def text_size(text: str, face: ImageFont.FreeTypeFont) -> tuple[int, int]:
    """Return width and height of a line of text in pixels."""
    ascent, descent = face.getmetrics()
    return int(face.getlength(text)) + 1, ascent + descent


class Canvas:
    """A picture with things on it that do not overlap."""

    def __init__(self, width: int, height: int, look: Style, rng: Random) -> None:
        self.picture = Image.new("RGB", (width, height), look.ground)
        self.look, self.rng = look, rng
        self.draw = ImageDraw.Draw(self.picture)
        self.draw.fontmode = "1" if rng.random() < 0.06 else "L"
        self.glyphs: list[tuple[str, int, int]] = []
        """Every letter that was written, and the place of its middle."""
        self._taken: list[Box] = []
        self._flow = rng.random() < 0.5
        self._left = rng.randint(1, 10)
        self._x, self._y = self._left, rng.randint(1, 20)
        self._below = self._y  # the lowest edge so far

    def place(self, width: int, height: int, *, tries: int = 12, gap: int = 2) -> tuple[int, int] | None:
        """Return left and top of a free place of this size, and keep it; None: none was found.

        On a screen that flows, things follow each other as in a text; on others they lie anywhere.
        """
        right, bottom = self.picture.width - width - 1, self.picture.height - height - 1
        if right < 1 or bottom < 1:
            return None
        if self._flow:
            return self._follow(width, height, right, bottom)
        for _ in range(tries):
            x, y = self.rng.randint(1, right), self.rng.randint(1, bottom)
            box = (x - gap, y - gap, x + width + gap, y + height + gap)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in self._taken):
                self._taken.append((x, y, x + width, y + height))
                return x, y
        return None

    def _follow(self, width: int, height: int, right: int, bottom: int) -> tuple[int, int] | None:
        if self._x > right or self.rng.random() < 0.45:
            self._x, self._y = self._left, self._below + self.rng.randint(1, 6)
        x, y = min(self._x, right), self._y
        if y > bottom:
            return None
        self._x, self._below = x + width + self.rng.randint(2, 10), max(self._below, y + height)
        return x, y

    def text(self, x: int, y: int, text: str, face: ImageFont.FreeTypeFont, ink: Colour | None = None) -> None:
        """Write a line of text whose left upper corner is x, y."""
        self.draw.text((x, y), text, font=face, fill=ink or self.look.ink)
        middle, left = y + round(0.65 * face.getmetrics()[0]), 0.0
        for letter in text:
            width = face.getlength(letter)
            if letter != " ":
                self.glyphs.append((letter, round(x + left + width / 2), middle))
            left += width

    def frame(self, box: Box, fill: Colour | None, line: Colour | None, radius: int = 0) -> None:
        """Draw a rectangle."""
        inner = (box[0], box[1], box[2] - 1, box[3] - 1)
        if radius and box[3] - box[1] > 2 * radius and box[2] - box[0] > 2 * radius:
            self.draw.rounded_rectangle(inner, radius, fill=fill, outline=line)
        else:
            self.draw.rectangle(inner, fill=fill, outline=line)
