"""The words of the vocabulary of user interface actions: what each is, takes and looks like. Data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Button: TypeAlias = Literal["left", "right", "middle"]
Axis: TypeAlias = Literal["x", "y"]
Coordinates: TypeAlias = Literal["pixels", "grid_999"]
ActionFormat: TypeAlias = Literal["json", "pyautogui", "computer"]

GRID = 999
"""The largest coordinate of 'grid_999': x / 999 of the width."""
CLICKS: dict[str, tuple[Button, int]] = {
    "click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
}
"""Name -> button and number of presses."""
FORMATS: dict[ActionFormat, str] = {
    "json": "in JSON",
    "pyautogui": "as a call of pyautogui in a code block of Python",
    "computer": "as a call of the computer, in JSON",
}
"""Parser -> how an action is written for it, in words for the policy."""
MARKED = (*CLICKS, "move", "drag", "fill", "focus", "select", "upload")
"""What may name the number of a marked element in place of x and y."""
BUTTONS: tuple[Button, ...] = ("left", "right", "middle")
CHOICES = ("ok", "cancel")
DIRECTIONS = ("up", "down", "left", "right")
STATUSES = {"success": "success", "failure": "failure", "fail": "failure"}
SCROLL_NOTCHES = 3
MAX_TEXT, MAX_URL, MAX_WAIT, MAX_SCROLL = 10_000, 2_000, 10.0, 50
"""Limits of a text and an address in characters, a wait in seconds, a scroll in wheel notches."""
MAX_LISTED = 50
"""Options or files that one action names."""


@dataclass(frozen=True, slots=True)
class Click:
    """Presses of a mouse button in one place, in pixels of the screen."""

    x: int
    y: int
    button: Button = "left"
    count: int = 1
    modifiers: tuple[str, ...] = ()
    """Keys that are held meanwhile, named as in `uirl.environments.ui.keys`."""

    @property
    def name(self) -> str:
        return click_name(self.button, self.count)


@dataclass(frozen=True, slots=True)
class ClickMark:
    """The same on the element that carries a number (set-of-marks). Which numbers exist, the environment knows."""

    mark: int
    button: Button = "left"
    count: int = 1
    modifiers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return click_name(self.button, self.count)


@dataclass(frozen=True, slots=True)
class Move:
    x: int
    y: int

    name = "move"


@dataclass(frozen=True, slots=True)
class MoveToMark:
    """The pointer onto a marked element."""

    mark: int

    name = "move"


@dataclass(frozen=True, slots=True)
class MouseButton:
    """Moves to x, y and presses a button there, or lets it go."""

    x: int | None = None
    """None, with `y`: where the pointer is."""
    y: int | None = None
    button: Button = "left"
    down: bool = True

    @property
    def name(self) -> str:
        return "mouse_down" if self.down else "mouse_up"


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the left button at x, y, release it at to_x, to_y."""

    x: int
    y: int
    to_x: int
    to_y: int

    name = "drag"


@dataclass(frozen=True, slots=True)
class DragMark:
    """The same from one marked element to another."""

    mark: int
    to_mark: int

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
    """Names as in `uirl.environments.ui.keys`: modifiers first, at most one other key, last."""

    name = "keys"


@dataclass(frozen=True, slots=True)
class HoldKey:
    """Presses a key and holds it, or lets it go."""

    key: str
    """As in `uirl.environments.ui.keys`."""
    down: bool = True

    @property
    def name(self) -> str:
        return "key_down" if self.down else "key_up"


@dataclass(frozen=True, slots=True)
class Insert:
    """Text into whatever has the focus, at once and without keys, as if it were pasted."""

    text: str

    name = "insert"


@dataclass(frozen=True, slots=True)
class OnElement:
    """An action on the element that is at x, y or that carries a mark."""

    x: int | None = None
    y: int | None = None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Fill(OnElement):
    """Replaces what a field holds."""

    value: str = ""
    """Empty: the field is cleared."""

    name = "fill"


@dataclass(frozen=True, slots=True)
class Focus(OnElement):
    """Gives it the keyboard, without a click."""

    name = "focus"


@dataclass(frozen=True, slots=True)
class Select(OnElement):
    """Chooses options of a list, and no others."""

    options: tuple[str, ...] = ()
    """Each by its value or its text."""

    name = "select"


@dataclass(frozen=True, slots=True)
class Upload(OnElement):
    """Gives files of the task to the file chooser that is open, or that a click on the element opens."""

    files: tuple[str, ...] = ()
    """By name; empty: none."""

    name = "upload"


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
class Forward:
    name = "forward"


@dataclass(frozen=True, slots=True)
class NewTab:
    name = "new_tab"


@dataclass(frozen=True, slots=True)
class SwitchTab:
    tab: int
    """From 1, in the order in which they were opened."""

    name = "switch_tab"


@dataclass(frozen=True, slots=True)
class CloseTab:
    """The one that is shown."""

    name = "close_tab"


@dataclass(frozen=True, slots=True)
class AnswerDialog:
    """What is pressed in a dialog of the page (alert, confirm, prompt, leaving), and what is written into it."""

    choice: Literal["ok", "cancel"]
    text: str | None = None
    """None: what the page proposes stays."""

    name = "dialog"


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
    Click | ClickMark | Move | MoveToMark | MouseButton | Drag | DragMark | Type | Keys | HoldKey | Insert | Fill
    | Focus | Select | Upload | Scroll | Wait | Back | Forward | Goto | NewTab | SwitchTab | CloseTab | AnswerDialog
    | Answer | Terminate | LookAgain
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One action of the vocabulary."""

    purpose: str
    arguments: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()
    """Of the arguments; the example of the prompt leaves them out."""


_WHERE_IT_IS = frozenset({"x", "y", "button"})
ACTIONS: dict[str, ActionSpec] = {
    "click": ActionSpec("clicks there", ("x", "y")),
    "double_click": ActionSpec("clicks twice", ("x", "y")),
    "triple_click": ActionSpec("clicks three times, which selects a line", ("x", "y")),
    "right_click": ActionSpec("clicks with the right button", ("x", "y")),
    "middle_click": ActionSpec("clicks with the middle button", ("x", "y")),
    "move": ActionSpec("moves the pointer", ("x", "y")),
    "mouse_down": ActionSpec("presses a button and holds it", ("x", "y", "button"), _WHERE_IT_IS),
    "mouse_up": ActionSpec("lets a button go", ("x", "y", "button"), _WHERE_IT_IS),
    "drag": ActionSpec("drags from x, y to to_x, to_y", ("x", "y", "to_x", "to_y")),
    "type": ActionSpec("types into what has the focus", ("text",)),
    "keys": ActionSpec("presses keys together", ("keys",)),
    "key_down": ActionSpec("presses a key and holds it", ("key",)),
    "key_up": ActionSpec("lets a key go", ("key",)),
    "insert": ActionSpec("puts text in at once, without keys", ("text",)),
    "fill": ActionSpec("replaces the text of a field", ("x", "y", "value")),
    "focus": ActionSpec("gives it the keyboard", ("x", "y")),
    "select": ActionSpec("chooses of a list, one or several", ("x", "y", "options")),
    "upload": ActionSpec("chooses files of the task", ("x", "y", "files"), frozenset({"x", "y"})),
    "scroll": ActionSpec("turns the wheel", ("direction", "x", "y", "amount"), frozenset({"x", "y", "amount"})),
    "wait": ActionSpec("waits", ("seconds",), frozenset({"seconds"})),
    "back": ActionSpec("goes back to the page before"),
    "forward": ActionSpec("goes forward again"),
    "goto": ActionSpec("opens an address", ("url",)),
    "new_tab": ActionSpec("opens an empty tab"),
    "switch_tab": ActionSpec("shows another tab", ("tab",)),
    "close_tab": ActionSpec("closes the tab that is shown"),
    "dialog": ActionSpec("answers a dialog of the page", ("choice", "text"), frozenset({"text"})),
    "answer": ActionSpec("answers a question", ("text",)),
    "terminate": ActionSpec("ends the task: success or failure", ("status",)),
    "screenshot": ActionSpec("only looks again"),
}
"""Name -> what it does and takes."""

AXES: dict[str, Axis] = {"x": "x", "y": "y", "to_x": "x", "to_y": "y"}
"""Argument that is a coordinate -> its axis."""
_ONE_OR_SEVERAL: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": MAX_LISTED}]
}
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
    "to_mark": (5, {"type": "integer", "minimum": 1, "description": "number on the other element"}),
    "modifiers": ("ctrl", {"type": "string", "description": "keys held meanwhile, such as 'ctrl' or 'ctrl+shift'"}),
    "button": ("left", {"type": "string", "enum": list(BUTTONS)}),
    "key": ("shift", {"type": "string", "description": "one key such as 'shift' or 'a'"}),
    "value": ("hello", {"type": "string", "maxLength": MAX_TEXT}),
    "options": ("red", {**_ONE_OR_SEVERAL, "description": "value or text of an option, or a list of them"}),
    "files": ("photo.png", {**_ONE_OR_SEVERAL, "description": "name of a file of the task, or a list of them"}),
    "tab": (2, {"type": "integer", "minimum": 1}),
    "choice": ("ok", {"type": "string", "enum": list(CHOICES)}),
}
"""Argument that is no coordinate -> an example, and its JSON schema."""


def click_name(button: Button, count: int) -> str:
    """Return the name of a click: 'click', 'double_click', ..."""
    return next(name for name, press in CLICKS.items() if press == (button, count))
