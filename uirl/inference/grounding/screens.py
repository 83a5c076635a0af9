"""Synthetic screens: a pure function of a seed and an index.

Nothing of the pages and screens of the package's environments is in them. This folder imports none of these, reads no
file but fonts, and invents its words and places (`tests/inference/models/test_grounded_screens.py` checks all three).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from PIL.Image import Image

from uirl.inference.grounding.kinds import KINDS
from uirl.inference.grounding.widgets import Canvas, Element, style

SIZES = ((160, 160),) * 6 + ((160, 208),) * 3 + ((112, 112), (128, 176), (192, 128), (176, 160), (144, 192))
"""Width and height of pictures, as often as they are named: multiples of 16, the side of an image token."""


@dataclass(frozen=True, slots=True)
class Screen:
    """A picture, and what is on it."""

    picture: Image
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
