"""What is on a page, as plain data: the rules of the form load no image library."""

from __future__ import annotations

from dataclasses import dataclass

from uirl.environments.screen.layout import Box

Colour = tuple[int, int, int]

BACKGROUND: Colour = (122, 117, 104)
"""A desk in the middle grey that image processors subtract: what is left to see are the things on it."""
TITLE_BAR: Colour = (40, 40, 60)
SIDE_BAR: Colour = (190, 190, 205)
SHADOW: Colour = (90, 86, 76)
BLACK: Colour = (0, 0, 0)
WHITE: Colour = (255, 255, 255)


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
