"""The kinds of things on the synthetic screens. Each function draws one of a kind where there is room, and returns its
elements; none where there is no room."""

from __future__ import annotations

import math
from collections.abc import Callable

from PIL import ImageFont

from uirl.inference.grounding.widgets import COLOURS, ICONS, SHAPES, Box, Canvas, Colour, Element, shade, text_size
from uirl.inference.grounding.words import label, word

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
