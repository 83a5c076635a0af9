"""Screens whose one square shows where a click belongs, and turns before them."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageDraw

from tests.viewer.runs import turn
from uirl.images import Screenshot
from uirl.types import Action, Observation, ToolCall, Turn

PHONE, WIDE, SMALL = (1080, 2400), (1280, 800), (56, 56)
TARGET = (31, 157, 85)
"""Colour of the square around the place of each click."""


def screen(size: tuple[int, int], place: tuple[int, int]) -> Screenshot:
    """A grey screen with a square of `TARGET` whose middle is the pixel `place`."""
    image = Image.new("RGB", size, (225, 228, 235))
    half = max(size) // 30
    x, y = place
    ImageDraw.Draw(image).rectangle([x - half, y - half, x + half, y + half], fill=TARGET)
    out = io.BytesIO()
    image.save(out, format="PNG")
    return Screenshot(out.getvalue())


def acted(name: str, size: tuple[int, int], place: tuple[int, int], reply: str = "done", **arguments: Any) -> Turn:
    """A turn with one call, before a screen whose square stands at `place`."""
    shot = screen(size, place)
    calls = (ToolCall(name, arguments),)
    seen = Observation(f"screen of {size[0]}", (shot,))
    return turn(reply, shot, observation=seen, action=Action(reply, calls, "I look for it"), tool_results=())


def clicked(size: tuple[int, int], x: int, y: int, **fields: Any) -> Turn:
    return acted("click", size, (x, y), x=x, y=y, **fields)
