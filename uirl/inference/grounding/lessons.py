"""Which screens and questions stand in which batch, and what each cell of a picture shows."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from uirl.inference.grounding.questions import Question, questions
from uirl.inference.grounding.screens import SIZES, Screen, screen
from uirl.inference.grounding.widgets import COLOURS, ICONS, KIND_NAMES, SHAPES

HELD_OUT = 1_000_000_007
"""Added to the seed for screens that nothing is learned from."""
_LETTERS = [chr(code) for code in range(33, 127)]
LETTERS = len(_LETTERS)
"""How many of the sights are letters; they come first."""
SIGHTS = {name: i for i, name in enumerate((
    *(f"letter {c}" for c in _LETTERS), *(f"{k} here" for k in KIND_NAMES), *(f"{k} middle" for k in KIND_NAMES),
    *COLOURS, *SHAPES, *ICONS,
))}  # fmt: skip
"""What can be in a cell -> its number."""


def lesson(
    seed: int, number: int, pictures: int, at_most: int, *, rank: int = 0, processes: int = 1
) -> tuple[list[Screen], list[list[Question]]]:
    """Return the screens of batch `number` of a seed, all of one size, with up to `at_most` questions each.

    Of the `pictures` of a batch, process `rank` of `processes` gets its share."""
    size, share = Random(f"size {seed} {number}").choice(SIZES), pictures // processes
    first = number * pictures + rank * share
    screens = [screen(seed, first + i, size) for i in range(share)]
    asked = [questions(s, Random(f"questions {seed} {first + i}"), at_most) for i, s in enumerate(screens)]
    return screens, asked


def sights(screen: Screen, side: int) -> Tensor:
    """Return [cells, sights]: 1 where a cell of `side` x `side` pixels shows a thing, else 0; cells row by row."""
    columns, rows = screen.picture.width // side, screen.picture.height // side
    seen = torch.zeros(rows, columns, len(SIGHTS))
    for letter, x, y in screen.glyphs:
        if 0 <= x < columns * side and 0 <= y < rows * side and letter in _LETTERS:
            seen[y // side, x // side, SIGHTS[f"letter {letter}"]] = 1
    for thing in screen.elements:
        x, y = thing.middle
        left, top, right, bottom = (edge // side for edge in (*thing.box[:2], thing.box[2] - 1, thing.box[3] - 1))
        seen[top : bottom + 1, left : right + 1, SIGHTS[f"{thing.kind} here"]] = 1
        there = seen[y // side, x // side]
        there[SIGHTS[f"{thing.kind} middle"]] = 1
        for name in (thing.colour, thing.shape):
            if name:
                there[SIGHTS[name]] = 1
    return seen.flatten(0, 1)


def letters_of(screen: Screen, side: int) -> Tensor:
    """Return [rows, columns]: the number of the letter whose middle is in a patch of `side` x `side` pixels, from 1; 0
    where there is none."""
    columns, rows = screen.picture.width // side, screen.picture.height // side
    letters = torch.zeros(rows, columns, dtype=torch.long)
    for letter, x, y in screen.glyphs:
        if 0 <= x < columns * side and 0 <= y < rows * side and letter in _LETTERS:
            letters[y // side, x // side] = 1 + _LETTERS.index(letter)
    return letters


def cell_of(screen: Screen, place: tuple[int, int], side: int) -> int:
    """Return the number of the cell of `side` x `side` pixels that a place lies in, as `sights` counts them."""
    return place[1] // side * (screen.picture.width // side) + place[0] // side
