"""A data-entry screen for the stand-ins: a sheet at the left, a form at the right, 1280 x 800."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw

WIDTH, HEIGHT = 1280, 800
ROWS = (
    ("Ada", "Lovelace", "ada1[at]yahoo.com"),
    ("Alan", "Turing", "alan2[at]yahoo.com"),
    ("Grace", "Hopper", "grace3[at]yahoo.com"),
)
FIELDS = [(700, 120 + 100 * i, 1220, 160 + 100 * i) for i in range(3)]
SUBMIT = (700, 440, 840, 490)
SHEET_TOP, SHEET_LINE = 80, 40


def middle(box: tuple[int, int, int, int]) -> tuple[int, int]:
    return (box[0] + box[2]) // 2, (box[1] + box[3]) // 2


def row_place(row: int) -> tuple[int, int]:
    """Where a row of the sheet stands."""
    return 300, SHEET_TOP + SHEET_LINE * row + SHEET_LINE // 2


class Form:
    """The screen: focus, three fields, and what was submitted. A right click on a row of the sheet copies it over, so
    that a mouse alone can fill the form in."""

    def __init__(self, rows: Sequence[tuple[str, str, str]] = ROWS) -> None:
        self.rows = list(rows)
        self.values = ["", "", ""]
        self.focus: int | None = None
        self.selected = False
        self.pointer = (WIDTH // 2, HEIGHT // 2)
        self.submitted: list[int] = []
        self.wrong = 0

    def move(self, x: int, y: int) -> None:
        """The pointer, stopped by the edges of the screen."""
        self.pointer = (min(max(x, 0), WIDTH - 1), min(max(y, 0), HEIGHT - 1))

    def click(self, button: str = "left", count: int = 1) -> None:
        x, y = self.pointer
        row = (y - SHEET_TOP) // SHEET_LINE
        if button == "right":
            if x < WIDTH // 2 and 0 <= row < len(self.rows):
                self.values = list(self.rows[row])
            return
        self.focus = next((i for i, box in enumerate(FIELDS) if _inside(box, x, y)), None)
        self.selected = count == 3
        if _inside(SUBMIT, x, y):
            self.submit()

    def type(self, text: str) -> None:
        """What the original's keyboard can write: ASCII, and no word about the rest."""
        kept = "".join(letter for letter in text if letter.isascii())
        if self.focus is not None:
            old = "" if self.selected else self.values[self.focus]
            self.values[self.focus], self.selected = old + kept, False

    def press(self, chord: str) -> None:
        """A chord; one that nobody knows does nothing."""
        keys = chord.lower().split("+")
        if keys == ["tab"]:
            self.focus = 0 if self.focus is None else min(self.focus + 1, 2)
        elif keys == ["ctrl", "a"]:
            self.selected = True
        elif keys == ["backspace"] and self.focus is not None:
            self.values[self.focus] = "" if self.selected else self.values[self.focus][:-1]
        elif keys == ["enter"]:
            self.submit()

    def submit(self) -> None:
        try:
            self.submitted.append(self.rows.index(tuple(self.values)))  # type: ignore[arg-type]
        except ValueError:
            self.wrong += 1
        self.values, self.focus = ["", "", ""], None

    def picture(self) -> bytes:
        """What stands there, in words."""
        image = Image.new("RGB", (WIDTH, HEIGHT), "white")
        words = f"{self.rows}\n{self.values}, field {self.focus}\npointer at {self.pointer}"
        ImageDraw.Draw(image).text((40, SHEET_TOP), words, fill="black")
        buffer = io.BytesIO()
        image.save(buffer, format="PNG", compress_level=1)
        return buffer.getvalue()


def _inside(box: tuple[int, int, int, int], x: int, y: int) -> bool:
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]
