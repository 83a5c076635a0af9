"""The words of the vocabulary of user interface actions: what each is, takes and looks like. Data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Button: TypeAlias = Literal["left", "right"]
Coordinates: TypeAlias = Literal["pixels", "grid_999"]

GRID = 999
"""The largest coordinate of 'grid_999': x / 999 of the width."""
CLICKS: dict[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
}
"""Name -> button and number of presses."""
DIRECTIONS = ("up", "down", "left", "right")
STATUSES = {"success": "success", "failure": "failure", "fail": "failure"}
SCROLL_NOTCHES = 3
MAX_TEXT, MAX_URL, MAX_WAIT, MAX_SCROLL = 10_000, 2_000, 10.0, 50
"""Limits of a text and an address in characters, a wait in seconds, a scroll in wheel notches."""


@dataclass(frozen=True, slots=True)
class Click:
    """Presses of a mouse button in one place, in pixels of the screen."""

    x: int
    y: int
    button: Button = "left"
    count: int = 1

    @property
    def name(self) -> str:
        return click_name(self.button, self.count)


@dataclass(frozen=True, slots=True)
class ClickMark:
    """The same on the element that carries a number (set-of-marks). Which numbers exist, the environment knows."""

    mark: int
    button: Button = "left"
    count: int = 1

    @property
    def name(self) -> str:
        return click_name(self.button, self.count)


@dataclass(frozen=True, slots=True)
class Move:
    x: int
    y: int

    name = "move"


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the left button at x, y, release it at to_x, to_y."""

    x: int
    y: int
    to_x: int
    to_y: int

    name = "drag"


@dataclass(frozen=True, slots=True)
class Type:
    """Text into whatever has the focus."""

    text: str

    name = "type"


@dataclass(frozen=True, slots=True)
class Keys:
    """One chord, pressed together."""

    keys: tuple[str, ...]
    """Names as in `uirl.environments.ui_keys`: modifiers first, at most one other key, last."""

    name = "keys"


@dataclass(frozen=True, slots=True)
class Scroll:
    direction: Literal["up", "down", "left", "right"]
    amount: int = SCROLL_NOTCHES
    """Notches of the wheel."""
    x: int | None = None
    """Where the wheel turns; None, with `y`: where the pointer is, or the middle of the screen."""
    y: int | None = None

    name = "scroll"


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float = 1.0

    name = "wait"


@dataclass(frozen=True, slots=True)
class Back:
    name = "back"


@dataclass(frozen=True, slots=True)
class Goto:
    url: str
    """As the policy wrote it: where it may go, the environment decides."""

    name = "goto"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy says in words, to the one who gave the task."""

    text: str

    name = "answer"


@dataclass(frozen=True, slots=True)
class Terminate:
    """The policy thinks it is done ('success') or cannot do it ('failure')."""

    status: Literal["success", "failure"]

    name = "terminate"


@dataclass(frozen=True, slots=True)
class LookAgain:
    """`screenshot`: nothing but a new picture."""

    name = "screenshot"


UIAction: TypeAlias = (
    Click | ClickMark | Move | Drag | Type | Keys | Scroll | Wait | Back | Goto | Answer | Terminate | LookAgain
)


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action of the vocabulary."""

    purpose: str
    arguments: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    """Of the arguments; the example of the prompt leaves them out."""


ACTIONS: dict[str, ActionSpec] = {
    "click": ActionSpec("clicks there", ("x", "y")),
    "double_click": ActionSpec("clicks twice", ("x", "y")),
    "triple_click": ActionSpec("clicks three times, which selects a line", ("x", "y")),
    "right_click": ActionSpec("clicks with the right button", ("x", "y")),
    "move": ActionSpec("moves the pointer", ("x", "y")),
    "drag": ActionSpec("drags from x, y to to_x, to_y", ("x", "y", "to_x", "to_y")),
    "type": ActionSpec("types into what has the focus", ("text",)),
    "keys": ActionSpec("presses keys together", ("keys",)),
    "scroll": ActionSpec("turns the wheel", ("direction", "x", "y", "amount"), frozenset({"x", "y", "amount"})),
    "wait": ActionSpec("waits", ("seconds",), frozenset({"seconds"})),
    "back": ActionSpec("goes back to the page before"),
    "goto": ActionSpec("opens an address", ("url",)),
    "answer": ActionSpec("answers a question", ("text",)),
    "terminate": ActionSpec("ends the task: success or failure", ("status",)),
    "screenshot": ActionSpec("only looks again"),
}
"""Name -> what it does and takes."""

AXES: dict[str, Literal["x", "y"]] = {"x": "x", "y": "y", "to_x": "x", "to_y": "y"}
"""Argument that is a coordinate -> its axis."""
VALUES: dict[str, tuple[Any, dict[str, Any]]] = {
    "text": ("hello", {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}),
    "keys": ("ctrl+a", {"type": "string", "description": "a chord such as 'enter' or 'ctrl+a'"}),
    "direction": ("down", {"type": "string", "enum": list(DIRECTIONS)}),
    "amount": (3, {"type": "integer", "minimum": 1, "maximum": MAX_SCROLL, "description": "notches of the wheel"}),
    "seconds": (1, {"type": "number", "minimum": 0, "maximum": MAX_WAIT}),
    "url": ("https://example.com/", {"type": "string", "maxLength": MAX_URL}),
    "status": ("success", {"type": "string", "enum": ["success", "failure"]}),
    "target": ("ok", {"type": "string", "description": "what is meant, in a word; before the coordinates"}),
    "mark": (3, {"type": "integer", "minimum": 1, "description": "number on the element, in place of x and y"}),
}
"""Argument that is no coordinate -> an example, and its JSON schema."""


def click_name(button: Button, count: int) -> str:
    """The name of a click: 'click', 'double_click', ..."""
    return next(name for name, press in CLICKS.items() if press == (button, count))
