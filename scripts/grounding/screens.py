"""Synthetic screens: a pure function of a seed and an index.

Nothing of the pages and screens of the package's environments is in them. This folder imports none of these, reads no
file but fonts, and invents its words and places (`tests/inference/models/test_grounding.py` checks it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw, ImageFont

_COMMON = (
    "OK Cancel Submit Save Open Close Next Back Home Search Login Logout Send Delete Edit Copy Paste Print Share Help "
    "About Settings Profile Account Options Tools View File New Add Remove Update Reset Clear Apply Yes No Done Start "
    "Stop Play Pause Upload Download Buy Cart Order Pay Price Total Name Email Phone Address City Country Date Time "
    "Day Week Month Year User Password Message Subject Title Comment Reply Forward Archive Inbox Draft News Sports "
    "Music Video Photo Image Map Travel Food Health Money Books Games Weather World Local Today More Less Show Hide "
    "Filter Sort List Grid Table Chart Report Refresh Load Sign Register Join Follow Like Rate Review Contact Support "
    "Terms Privacy Language English Menu Sun Rain Tree River Stone Paper Glass Light Dark Small Large"
)
COMMON = tuple(_COMMON.split())
"""Some of what buttons, links, fields and headings say."""

_ONSETS = ("", "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "qu",
           "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "x", "y", "z")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou", "ie")
_CODAS = ("", "", "", "b", "c", "d", "g", "k", "l", "m", "n", "nd", "p", "r", "s", "st", "t", "x")


def invented(rng: Random) -> str:
    """Return a word of one to three syllables, in lower case."""
    count = rng.choice((1, 2, 2, 2, 3))
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(count))[:9]


def word(rng: Random) -> str:
    """Return a word in lower case, with a capital, or all in capitals."""
    text = rng.choice(COMMON) if rng.random() < 0.35 else invented(rng)
    case = rng.random()
    return text.lower() if case < 0.45 else text.upper() if case > 0.9 else text[0].upper() + text[1:]


def label(rng: Random, *, longest: int = 14) -> str:
    """Return one word, seldom two or a number, of at most `longest` letters."""
    if rng.random() < 0.08:
        return str(rng.randint(0, 999))
    text = word(rng)
    if rng.random() < 0.15:
        text += " " + word(rng).lower()
    return text[:longest].strip()


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


Drawn = list[Element]
_BLUES: tuple[Colour, ...] = ((0, 0, 238), (20, 90, 200), (85, 26, 139), (0, 102, 204))


def button(canvas: Canvas) -> Drawn:
    """Draw a frame with a word in its middle."""
    rng, look = canvas.rng, canvas.look
    text, face = label(rng), rng.choice(look.fonts[:3])
    wide, high = text_size(text, face)
    width, height = wide + rng.randint(6, 24), high + rng.randint(2, 12)
    at = canvas.place(width, height)
    if at is None:
        return []
    box = (at[0], at[1], at[0] + width, at[1] + height)
    coloured = rng.random() < 0.2
    fill: Colour = (rng.randint(0, 110), rng.randint(0, 130), rng.randint(0, 200)) if coloured else look.fill
    canvas.frame(box, fill, look.line if rng.random() < 0.85 or fill == look.ground else None, look.round)
    canvas.text(at[0] + (width - wide) // 2, at[1] + (height - high) // 2, text, face, (255,) * 3 if coloured else None)
    return [Element("button", box, text)]


def link(canvas: Canvas) -> Drawn:
    """Draw a word or two in the colour of links."""
    text, face = label(canvas.rng), canvas.rng.choice(canvas.look.fonts[:3])
    width, height = text_size(text, face)
    at = canvas.place(width, height)
    return [] if at is None else [_linked(canvas, (at[0], at[1], at[0] + width, at[1] + height), text, face)]


def heading(canvas: Canvas) -> Drawn:
    """Draw large text."""
    return _plain(canvas, "heading", label(canvas.rng), 3)


def words(canvas: Canvas) -> Drawn:
    """Draw a word of plain text."""
    return _plain(canvas, "text", label(canvas.rng), 0)


def _plain(canvas: Canvas, kind: str, text: str, size: int) -> Drawn:
    face = canvas.look.fonts[size]
    width, height = text_size(text, face)
    at = canvas.place(width, height)
    if at is None:
        return []
    canvas.text(*at, text, face)
    return [Element(kind, (at[0], at[1], at[0] + width, at[1] + height), text)]


def paragraph(canvas: Canvas) -> Drawn:
    """Draw two to four lines of words, sometimes with links among them."""
    rng, face = canvas.rng, canvas.look.fonts[0]
    lines = [[word(rng).lower() for _ in range(rng.randint(2, 4))] for _ in range(rng.randint(2, 4))]
    lines = [line for line in lines if text_size(" ".join(line), face)[0] < canvas.picture.width - 4]
    if not lines:
        return []
    width, high = max(text_size(" ".join(line), face)[0] for line in lines), text_size("x", face)[1]
    at = canvas.place(width, high * len(lines))
    if at is None:
        return []
    links, linked = [], 0.2 if rng.random() < 0.5 else 0.0
    for i, line in enumerate(lines):
        x, y = float(at[0]), at[1] + i * high
        for text in line:
            box = (int(x), y, int(x) + text_size(text, face)[0], y + high)
            if rng.random() < linked:
                links.append(_linked(canvas, box, text, face))
            else:
                canvas.text(int(x), y, text, face)
            x += face.getlength(text + " ")
    return links or [Element("paragraph", (at[0], at[1], at[0] + width, at[1] + high * len(lines)))]


def _linked(canvas: Canvas, box: Box, text: str, face: ImageFont.FreeTypeFont) -> Element:
    """Write a link, mostly underlined."""
    ink = (130, 170, 255) if sum(canvas.look.ground) < 300 else canvas.rng.choice(_BLUES)
    canvas.text(box[0], box[1], text, face, ink)
    if canvas.rng.random() < 0.75:
        line = box[1] + face.getmetrics()[0] + 1
        canvas.draw.line((box[0], line, box[2] - 2, line), fill=ink)
    return Element("link", box, text)


def field(canvas: Canvas) -> Drawn:
    """Draw a text field, with or without a word before it, empty or not."""
    return _field(canvas, "field", 1)


def area(canvas: Canvas) -> Drawn:
    """Draw a field of several lines."""
    return _field(canvas, "text area", canvas.rng.randint(2, 4))


def dropdown(canvas: Canvas) -> Drawn:
    """Draw a list that is folded: a field with an arrow."""
    return _field(canvas, "list", 1)


def _field(canvas: Canvas, kind: str, lines: int) -> Drawn:
    rng, look = canvas.rng, canvas.look
    face, text = look.fonts[0], word(rng) if rng.random() < 0.6 else ""
    before, high = text_size(text + ":", face) if text else (0, text_size("x", face)[1])
    width, height = rng.randint(30, 90), high * lines + rng.randint(2, 8)
    at = canvas.place(before + 3 + width, height)
    if at is None:
        return []
    box = (at[0] + before + 3, at[1], at[0] + before + 3 + width, at[1] + height)
    canvas.frame(box, look.fill if kind == "list" and rng.random() < 0.5 else (255, 255, 255), look.line, look.round)
    if text:
        canvas.text(at[0], at[1] + (height - high) // 2, text + ":", face)
    if kind == "list":
        _arrow_down(canvas, (box[2] - 11, box[1] + height // 2 - 2, box[2] - 3, box[1] + height // 2 + 3))
    held = word(rng) if kind == "list" or rng.random() < 0.25 else ""
    if held and text_size(held, face)[0] < width - 14:
        canvas.text(box[0] + 3, box[1] + 2, held, face, (30, 30, 30))
    if kind == "text area":
        for d in (3, 6):
            canvas.draw.line((box[2] - d - 2, box[3] - 2, box[2] - 2, box[3] - d - 2), fill=look.line)
    return [Element(kind, box, text)]


def check_box(canvas: Canvas) -> Drawn:
    """Draw a check box and its word."""
    return _choice(canvas, "check box")


def radio(canvas: Canvas) -> Drawn:
    """Draw a radio button and its word."""
    return _choice(canvas, "radio button")


def _choice(canvas: Canvas, kind: str) -> Drawn:
    rng, look = canvas.rng, canvas.look
    text, face, side = label(rng), look.fonts[0], rng.randint(9, 14)
    wide, high = text_size(text, face)
    height = max(side, high)
    at = canvas.place(side + 4 + wide, height)
    if at is None:
        return []
    x, y = at[0], at[1] + (height - side) // 2
    box, inner = (x, y, x + side, y + side), (x, y, x + side - 1, y + side - 1)
    blue, on = rng.random() < 0.5, rng.random() < 0.3
    mark: Colour = (30, 110, 220) if blue else (20, 20, 20)
    if kind == "radio button":
        canvas.draw.ellipse(inner, fill=(255, 255, 255), outline=mark if on and blue else look.line)
        if on:
            canvas.draw.ellipse((x + 3, y + 3, x + side - 4, y + side - 4), fill=mark)
    else:
        canvas.frame(box, mark if on and blue else (255, 255, 255), look.line, min(look.round, 2))
        if on:
            points = [(x + 2, y + side // 2), (x + side // 2 - 1, y + side - 4), (x + side - 3, y + 3)]
            canvas.draw.line(points, fill=(255, 255, 255) if blue else mark, width=2)
    canvas.text(x + side + 4, at[1] + (height - high) // 2, text, face)
    return [Element(kind, box, text)]


def tabs(canvas: Canvas) -> Drawn:
    """Draw a row of two to four tabs."""
    rng, look = canvas.rng, canvas.look
    face, names = look.fonts[0], list(dict.fromkeys(word(rng)[:7] for _ in range(rng.randint(2, 4))))
    sizes = [text_size(name, face)[0] + 8 for name in names]
    height = text_size("x", face)[1] + rng.randint(2, 8)
    at = canvas.place(sum(sizes), height)
    if at is None:
        return []
    out, x, chosen = [], at[0], rng.randrange(len(names))
    for i, (name, width) in enumerate(zip(names, sizes, strict=True)):
        box = (x, at[1], x + width, at[1] + height)
        canvas.frame(box, look.ground if i == chosen else look.fill, look.line)
        canvas.text(x + 4, at[1] + (height - text_size(name, face)[1]) // 2, name, face)
        out.append(Element("tab", box, name, column=i + 1))
        x += width
    return out


def grid(canvas: Canvas) -> Drawn:
    """Draw a table of cells: empty, coloured, or with letters or numbers."""
    rng, look = canvas.rng, canvas.look
    rows, columns = rng.randint(2, 5), rng.randint(2, 5)
    width, height, face = rng.randint(13, 26), rng.randint(12, 24), look.fonts[0]
    at = canvas.place(columns * width + 1, rows * height + 1)
    if at is None:
        return []
    content = rng.choice(("empty", "colour", "letter", "number"))
    out = []
    for i in range(rows * columns):
        row, column = divmod(i, columns)
        x, y = at[0] + column * width, at[1] + row * height
        text = {"letter": chr(65 + rng.randrange(26)), "number": str(rng.randint(0, 99))}.get(content, "")
        name = rng.choice(tuple(COLOURS)) if content == "colour" else ""
        canvas.frame((x, y, x + width + 1, y + height + 1), shade(rng, name) if name else None, look.line)
        wide, high = text_size(text, face)
        canvas.text(x + (width - wide) // 2 + 1, y + (height - high) // 2 + 1, text, face)
        out.append(Element("cell", (x, y, x + width, y + height), text, colour=name, row=row + 1, column=column + 1))
    return out


def shape(canvas: Canvas) -> Drawn:
    """Draw a coloured shape."""
    rng = canvas.rng
    name, colour, side = rng.choice((*SHAPES, "square", "square")), rng.choice(tuple(COLOURS)), rng.randint(9, 44)
    width, height = (side, max(5, side // 3)) if name == "bar" else (side, side)
    at = canvas.place(width, height)
    if at is None:
        return []
    box = (at[0], at[1], at[0] + width, at[1] + height)
    ink = shade(rng, colour)
    near = max(abs(a - b) for a, b in zip(ink, canvas.look.ground, strict=True)) < 60
    line: Colour | None = (90, 90, 90) if near else (10, 10, 10) if rng.random() < 0.3 else None
    _draw_shape(canvas, name, box, ink, line)
    return [Element("shape", box, colour=colour, shape=name)]


def _draw_shape(canvas: Canvas, name: str, box: Box, ink: Colour, line: Colour | None) -> None:
    x0, y0, x1, y1 = box[0], box[1], box[2] - 1, box[3] - 1
    mid, half = (x0 + x1) / 2, (y0 + y1) / 2
    if name in ("square", "bar"):
        canvas.frame(box, ink, line)
    elif name == "circle":
        canvas.draw.ellipse((x0, y0, x1, y1), fill=ink, outline=line)
    elif name == "cross":
        third = (x1 - x0) / 3
        points = [(x0 + a * third, y0 + b * third) for a, b in ((1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (2, 2), (2, 3),
                                                               (1, 3), (1, 2), (0, 2), (0, 1), (1, 1))]  # fmt: skip
        canvas.draw.polygon(points, fill=ink, outline=line)
    else:
        radius = (x1 - x0) / 2
        corners: dict[str, list[tuple[float, float]]] = {
            "triangle": [(mid, y0), (x1, y1), (x0, y1)],
            "diamond": [(mid, y0), (x1, half), (mid, y1), (x0, half)],
            "star": [
                (mid + math.sin(k * math.pi / 5) * radius * (0.45 if k % 2 else 1),
                 half - math.cos(k * math.pi / 5) * radius * (0.45 if k % 2 else 1))
                for k in range(10)
            ],
        }  # fmt: skip
        canvas.draw.polygon(corners[name], fill=ink, outline=line)


def icon(canvas: Canvas) -> Drawn:
    """Draw an icon, with or without a frame."""
    rng, look = canvas.rng, canvas.look
    name, side = rng.choice(ICONS), rng.randint(10, 20)
    at = canvas.place(side + 4, side + 4)
    if at is None:
        return []
    box = (at[0], at[1], at[0] + side + 4, at[1] + side + 4)
    if rng.random() < 0.5:
        canvas.frame(box, look.fill, look.line, look.round)
    _draw_icon(canvas, name, (at[0] + 3, at[1] + 3, at[0] + side, at[1] + side))
    return [Element("icon", box, shape=name)]


def _draw_icon(canvas: Canvas, name: str, inner: Box) -> None:
    x0, y0, x1, y1 = inner
    x, y, ink, draw = (x0 + x1) / 2, (y0 + y1) / 2, canvas.look.ink, canvas.draw
    lines: dict[str, list[tuple[float, float, float, float]]] = {
        "close": [(x0, y0, x1, y1), (x0, y1, x1, y0)],
        "menu": [(x0, y0 + 1, x1, y0 + 1), (x0, y, x1, y), (x0, y1 - 1, x1, y1 - 1)],
        "plus": [(x, y0, x, y1), (x0, y, x1, y)],
        "minus": [(x0, y, x1, y)],
        "search": [(x, y, x1, y1)],
        "mail": [(x0, y0 + 2, x, y), (x, y, x1, y0 + 2)],
        "trash": [(x0, y0 + 2, x1, y0 + 2), (x - 2, y0, x + 2, y0)],
        "left arrow": [(x0, y, x1, y), (x0, y, x, y0), (x0, y, x, y1)],
        "right arrow": [(x0, y, x1, y), (x1, y, x, y0), (x1, y, x, y1)],
        "up arrow": [(x, y0, x, y1), (x, y0, x0, y), (x, y0, x1, y)],
        "down arrow": [(x, y0, x, y1), (x, y1, x0, y), (x, y1, x1, y)],
    }
    for line in lines.get(name, []):
        draw.line(line, fill=ink, width=2 if name in ("close", "plus", "minus") else 1)
    if name == "play":
        draw.polygon([(x0, y0), (x1, y), (x0, y1)], fill=ink)
    elif name == "search":
        draw.ellipse((x0, y0, x + 1, y + 1), outline=ink)
    elif name == "mail":
        draw.rectangle((x0, y0 + 2, x1, y1 - 1), outline=ink)
    elif name == "trash":
        draw.rectangle((x0 + 1, y0 + 4, x1 - 1, y1), outline=ink)
    elif name == "heart":
        draw.pieslice((x0, y0, x, y + 1), 180, 360, fill=(220, 30, 60))
        draw.pieslice((x, y0, x1, y + 1), 180, 360, fill=(220, 30, 60))
        draw.polygon([(x0, (y0 + y) / 2), (x1, (y0 + y) / 2), (x, y1)], fill=(220, 30, 60))


def _arrow_down(canvas: Canvas, box: Box) -> None:
    canvas.draw.polygon([(box[0], box[1]), (box[2], box[1]), ((box[0] + box[2]) // 2, box[3])], fill=canvas.look.line)


KINDS: dict[Callable[[Canvas], Drawn], int] = {
    button: 6, link: 4, words: 3, heading: 1, paragraph: 1, field: 3, area: 1, dropdown: 1, check_box: 3, radio: 3,
    tabs: 1, grid: 1, shape: 5, icon: 2,
}  # fmt: skip
"""What draws -> how often it is tried."""


SIZES = ((160, 160),) * 6 + ((160, 208),) * 3 + ((112, 112), (128, 176), (192, 128), (176, 160), (144, 192))
"""Width and height of pictures, as often as they are named: multiples of 16, the side of an image token."""


@dataclass(frozen=True, slots=True)
class Screen:
    """A picture, and what is on it."""

    picture: Image.Image
    elements: tuple[Element, ...]
    glyphs: tuple[tuple[str, int, int], ...]
    """Every letter on it, and the place of its middle."""


def screen(seed: int, index: int, size: tuple[int, int] | None = None) -> Screen:
    """Return screen number `index` of a seed; `size`: width and height in pixels, None: drawn too."""
    rng = Random(f"screen {seed} {index}")
    width, height = rng.choice(SIZES)
    if size is not None:
        width, height = size
    canvas = Canvas(width, height, style(rng), rng)
    kinds = list(KINDS)
    weights = [KINDS[kind] for kind in kinds]
    if rng.random() < 0.4:  # few kinds on one screen: several things that differ in their words or colours alone
        kinds = list(dict.fromkeys(rng.choices(kinds, weights, k=2)))
        weights = [1] * len(kinds)
    elements: list[Element] = []
    for _ in range(rng.randint(3, 16)):
        kind = rng.choices(kinds, weights)[0]
        elements += kind(canvas)
    if not elements:  # too small for anything that was tried
        return screen(seed, index + 10**9, size)
    return Screen(canvas.picture, tuple(elements), tuple(canvas.glyphs))
