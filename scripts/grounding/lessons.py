"""Which screens and questions stand in which batch, and what each cell of a picture shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from .screens import COLOURS, ICONS, KIND_NAMES, SHAPES, SIZES, Box, Element, Screen, screen

_VERBS = ("Click", "Click on", "click", "click on", "Press", "press", "Select", "Choose", "Tap")
_LABELLED = {
    "button": ("button",), "link": ("link",), "heading": ("heading", "title"), "text": ("text", "word"),
    "field": ("text field", "field", "input field", "text box", "textbox"), "text area": ("text area", "textarea"),
    "list": ("list", "drop-down list"), "check box": ("check box", "checkbox"),
    "radio button": ("radio button", "option"), "tab": ("tab",), "cell": ("cell",), "shape": ("shape",),
    "icon": ("icon",), "paragraph": ("paragraph", "text"),
}  # fmt: skip
"""Kind -> what people call it."""
_BESIDE = ("field", "text area", "list", "check box", "radio button")
"""Kinds whose word stands beside them."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, the answer that is taught, and which clicks are right."""

    text: str
    reply: str
    """JSON, as a policy writes it."""
    kind: str
    """Kind of what is asked for; 'read': it is no click."""
    place: tuple[int, int]
    """Middle of the thing that it is about."""
    boxes: tuple[Box, ...] = ()
    """A click inside any of them is right; empty where the answer is no click."""

    def right(self, reply: str) -> bool:
        """Return whether a reply is right: a click inside, or the same words."""
        try:
            said = json.loads(reply)
            if not self.boxes:
                return bool(said == json.loads(self.reply))
            x, y = said["x"], said["y"]
            return said["action"] == "click" and any(b[0] <= x < b[2] and b[1] <= y < b[3] for b in self.boxes)
        except (ValueError, TypeError, KeyError):
            return False


def click(place: tuple[int, int]) -> str:
    """Return a click as a policy writes it."""
    return json.dumps({"action": "click", "x": place[0], "y": place[1]}, separators=(",", ":"))


def questions(screen: Screen, rng: Random, count: int) -> list[Question]:
    """Return at most `count` questions about a screen, in any order, no element asked for twice."""
    things = list(screen.elements)
    rng.shuffle(things)
    out: list[Question] = []
    for thing in things:
        if len(out) == count:
            break
        asked = list(_about(thing, things, rng))
        if asked:
            text, meant = rng.choice(asked)
            out.append(Question(text, click(thing.middle), thing.kind, thing.middle, tuple(t.box for t in meant)))
        if len(out) < count and rng.random() < 0.1 and thing.label and thing.kind != "cell":
            out.append(reading(thing, rng))
    rng.shuffle(out)
    return out


def reading(thing: Element, rng: Random) -> Question:
    """Return the question what a thing says."""
    x, y = thing.middle
    reply = json.dumps({"action": "answer", "text": thing.label}, separators=(",", ":"))
    return Question(rng.choice(("Read", "What is at", "Read the text at")) + f" {x},{y}", reply, "read", (x, y))


def _about(thing: Element, things: Sequence[Element], rng: Random) -> Iterator[tuple[str, list[Element]]]:
    """Yield ways to ask for a thing, each with all that it could mean."""
    verb, kind = rng.choice(_VERBS), rng.choice(_LABELLED[thing.kind])
    alike = [t for t in things if t.kind == thing.kind]
    if thing.label:
        yield from _by_label(thing, things, verb, kind, rng)
    if len(alike) == 1 and thing.kind not in ("shape", "icon", "cell"):
        article = "the" if rng.random() < 0.6 else "an" if kind[0] in "aeio" else "a"
        yield f"{verb} {article} {kind}{rng.choice(('.', ''))}", alike
        if thing.kind in ("field", "text area"):
            yield f"{rng.choice(('Focus', 'Focus on', 'Activate'))} the {kind}.", alike
    if thing.kind == "cell":
        yield (
            f"{verb} the cell in row {thing.row}, column {thing.column}.",
            [t for t in alike if (t.row, t.column) == (thing.row, thing.column)],
        )
    if thing.kind == "tab":
        ordinal = ("first", "second", "third", "fourth")[thing.column - 1]
        which = rng.choice((f"the {ordinal} tab", f"tab {thing.column}", f"tab number {thing.column}"))
        yield f"{verb} {which}.", [t for t in alike if t.column == thing.column]
    if thing.kind == "icon":
        name = rng.choice(("icon", "button", "symbol"))
        yield f"{verb} the {thing.shape} {name}.", [t for t in alike if t.shape == thing.shape]
    if thing.kind == "shape":
        yield from _by_looks(thing, alike, verb)
    if thing.kind == "cell" and thing.colour:
        yield f"{verb} the {thing.colour} cell.", [t for t in alike if t.colour == thing.colour]


def _by_label(
    thing: Element, things: Sequence[Element], verb: str, kind: str, rng: Random
) -> Iterator[tuple[str, list[Element]]]:
    quote = rng.choice(('"', '"', "'", ""))
    said = f"{quote}{thing.label}{quote}"
    named = [t for t in things if t.kind == thing.kind and t.label == thing.label]
    if thing.kind in _BESIDE:
        yield f"{verb} the {kind} {rng.choice(('beside', 'next to', 'for'))} {said}.", named
    else:
        yield f"{verb} the {said} {kind}{rng.choice(('.', ''))}", named
        yield f"{verb} the {kind} {said}{rng.choice(('.', ''))}", named
    yield f"{verb} {said}{rng.choice(('.', ''))}", [t for t in things if t.label == thing.label]


def _by_looks(thing: Element, alike: Sequence[Element], verb: str) -> Iterator[tuple[str, list[Element]]]:
    both = [t for t in alike if (t.colour, t.shape) == (thing.colour, thing.shape)]
    yield f"{verb} the {thing.colour} {thing.shape}.", both
    yield (
        f"{verb} the {thing.colour} {'box' if thing.shape == 'square' else 'one'}.",
        [t for t in alike if t.colour == thing.colour and (thing.shape != "square" or t.shape == "square")],
    )
    yield f"{verb} the {thing.shape}.", [t for t in alike if t.shape == thing.shape]
    if len(both) > 1 and both[0].box != both[1].box:
        size = {t.box: (t.box[2] - t.box[0]) for t in both}
        ordered = sorted(size.values())
        if ordered[-1] >= ordered[-2] + 5 and size[thing.box] == ordered[-1]:
            yield f"{verb} the largest {thing.colour} {thing.shape}.", [thing]


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
