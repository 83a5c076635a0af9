"""Where an action points: its coordinates as pixels of the picture that the policy saw, for the overlay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

Point = tuple[float, float]

GRID = 999
"""Largest coordinate of the grid of `coordinates: grid_999` and of MAI-UI, whatever the size of the picture."""
FARTHEST = 1e9
"""A number beyond it is no coordinate: a policy may write any, and none of them can be drawn."""
_POINTS = (("x", "y"), ("to_x", "to_y"))
_PLACES = ("coordinate", "start_coordinate", "end_coordinate", "point", "start_point", "end_point")
_TYPED = ("text", "value", "content")
_KEYS = ("keys", "key", "button")
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("type", "insert", "fill", "input_text", "write"), "type"),
    **dict.fromkeys(("scroll", "swipe"), "scroll"),
    **dict.fromkeys(("keys", "key", "key_down", "key_up", "press", "hotkey", "system_button"), "key"),
    **dict.fromkeys(("drag", "left_click_drag"), "drag"),
}
"""Name of a call -> kind of its mark, where the name alone says it; any other call with a place is a 'click'."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What one call did, and where."""

    kind: str
    """'click', 'drag', 'type', 'scroll' or 'key'."""
    places: tuple[Point, ...]
    """None, one, or two of a drag: pixels of the picture that the environment showed, from 0."""
    text: str | None
    """What was typed, pressed or said beside the place."""


def marks_of(
    calls: Sequence[tuple[str, Mapping[str, Any]]], size: tuple[int, int] | None, grid: int | None = None
) -> list[Mark]:
    """Return the marks of calls, (name, arguments) each; calls that point nowhere and type nothing have none.

    `size`: of the picture, in pixels; `grid`: largest coordinate where coordinates are shares of the picture, None:
    they are pixels. On a grid without a size nothing is known of the place.
    """
    marks = (_mark(name, arguments, size, grid) for name, arguments in calls)
    return [mark for mark in marks if mark is not None]


def to_pixel(place: Point, size: tuple[int, int] | None, grid: int | None) -> Point | None:
    """Return the pixel of a coordinate; None: it cannot be known."""
    if grid is None:
        return place
    if size is None:
        return None
    x, y = (min(math.floor(value * side / grid), side - 1) for value, side in zip(place, size, strict=True))
    return float(x), float(y)


def _mark(name: str, arguments: Mapping[str, Any], size: tuple[int, int] | None, grid: int | None) -> Mark | None:
    found = [to_pixel(place, size, grid) for place in places_of(arguments)]
    places = tuple(place for place in found if place is not None)
    kind = _KINDS.get(name, "click")
    if len(places) == 2 and kind in ("click", "scroll"):
        kind = "drag"
    text = _text(name, kind, arguments)
    points = bool(found) or arguments.get("mark") is not None
    if not points and kind == "click":
        return None
    return Mark(kind, places[: 2 if kind == "drag" else 1], text)


def places_of(arguments: Mapping[str, Any]) -> list[Point]:
    """Return the places in the arguments of a call, as they were written: `x` and `y`, `to_x` and `to_y`, and pairs
    such as `coordinate`; of a box the centre."""
    places = [(arguments.get(x), arguments.get(y)) for x, y in _POINTS]
    pairs = [arguments.get(name) for name in _PLACES]
    places += [_centre(pair) for pair in pairs if isinstance(pair, (list, tuple))]
    return [(float(x), float(y)) for x, y in places if is_number(x) and is_number(y)]


def numbers_written(arguments: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return (name, axis, value) of the coordinates that have a name each, x and y of each place in turn."""
    parts = [(name, axis, arguments.get(name)) for names in _POINTS for name, axis in zip(names, "xy", strict=True)]
    return [(name, axis, float(value)) for name, axis, value in parts if is_number(value)]


def pairs_written(arguments: Mapping[str, Any]) -> list[tuple[str, Point]]:
    """Return (name, place) of the places that were written as pairs; boxes are left out."""
    pairs = [(name, arguments.get(name)) for name in _PLACES]
    return [
        (name, (float(pair[0]), float(pair[1])))
        for name, pair in pairs
        if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_number, pair))
    ]


def _centre(values: Sequence[Any]) -> tuple[Any, Any]:
    if len(values) == 4 and all(map(is_number, values)):
        return (values[0] + values[2]) / 2, (values[1] + values[3]) / 2
    return (values[0], values[1]) if len(values) == 2 else (None, None)


def _text(name: str, kind: str, arguments: Mapping[str, Any]) -> str | None:
    if kind == "type":
        return _first(arguments, _TYPED)
    if kind == "key":
        return _first(arguments, _KEYS)
    if kind == "scroll":
        said = _first(arguments, ("direction",))
        return said if arguments.get("amount") is None else f"{said or ''} {arguments['amount']}".strip()
    said = None if arguments.get("mark") is None else f"mark {arguments['mark']}"
    return " ".join([*([] if name in ("click", "drag") else [name]), *([said] if said else [])]) or None


def _first(arguments: Mapping[str, Any], names: Sequence[str]) -> str | None:
    value = next((arguments[name] for name in names if arguments.get(name) is not None), None)
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else None if value is None else str(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number that can be a coordinate."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -FARTHEST <= value <= FARTHEST
