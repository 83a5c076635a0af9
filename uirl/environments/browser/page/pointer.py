"""Movements of a mouse -> the events a page sees from a person's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

Event = dict[str, Any]
"""Parameters of one `Input.dispatchMouseEvent`."""
Direction = Literal["up", "down", "left", "right"]

NOTCH = 53
"""Pixels that one notch of the wheel scrolls, as in Chromium on Linux."""
DRAG_STEPS = 5
"""Movements of a drag: pages look at the first few to tell a drag from a click."""
_BITS = {"left": 1, "right": 2, "middle": 4}


def move(x: float, y: float) -> Event:
    return {"type": "mouseMoved", "x": x, "y": y, "buttons": 0}


def button_event(x: float, y: float, button: str, down: bool) -> Iterator[Event]:
    """Yield a move to x, y and one press or release."""
    yield move(x, y) | ({} if down else {"button": button, "buttons": _BITS[button]})
    event = {"x": x, "y": y, "button": button, "clickCount": 1}
    yield {"type": "mousePressed" if down else "mouseReleased", "buttons": _BITS[button] if down else 0, **event}


def clicks(x: float, y: float, button: str, count: int, modifiers: int = 0) -> Iterator[Event]:
    """Yield a move to x, y and `count` presses and releases, counted as the browser counts quick ones.

    `modifiers`: bits of the keys that are held, as in `keyboard.MODIFIER_BITS`.
    """
    held = {"modifiers": modifiers} if modifiers else {}
    yield move(x, y) | held
    for number in range(1, count + 1):
        press = {"x": x, "y": y, "button": button, "clickCount": number, **held}
        yield {"type": "mousePressed", "buttons": _BITS[button], **press}
        yield {"type": "mouseReleased", "buttons": 0, **press}


def drag(x: float, y: float, to_x: float, to_y: float) -> Iterator[Event]:
    """Yield a press at x, y, some movements, and a release at to_x, to_y."""
    yield move(x, y)
    held = {"button": "left", "buttons": 1}
    yield {"type": "mousePressed", "x": x, "y": y, "clickCount": 1, **held}
    for step in range(1, DRAG_STEPS + 1):
        share = step / DRAG_STEPS
        yield {"type": "mouseMoved", "x": x + share * (to_x - x), "y": y + share * (to_y - y), **held}
    yield {"type": "mouseReleased", "x": to_x, "y": to_y, "clickCount": 1, "button": "left", "buttons": 0}


def wheel(x: float, y: float, direction: Direction, notches: int) -> Event:
    """Return the event of turning the wheel at x, y by `notches`."""
    across, down = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
    distance = NOTCH * notches
    return {"type": "mouseWheel", "x": x, "y": y, "deltaX": across * distance, "deltaY": down * distance}
