"""Reading the arguments of an action: every value checked, every mistake a sentence for the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.arguments import CallArguments, Mistake, shown_value
from uirl.environments.ui.keys import MODIFIERS, read_chord

MOST_MARKS = 9999


class Screen(Protocol):
    """What coordinates are of: an `ActionSpace`."""

    @property
    def coordinates(self) -> ui.Coordinates: ...

    def limit(self, axis: ui.Axis) -> int: ...

    def pixel(self, value: float, axis: ui.Axis) -> int: ...


@dataclass(frozen=True, slots=True)
class Arguments(CallArguments):
    """The arguments of one call on a screen."""

    space: Screen

    def point(self, x: str = "x", y: str = "y") -> tuple[int, int]:
        return self._pixel(x, x, y), self._pixel(y, x, y)

    def _pixel(self, name: str, x: str, y: str) -> int:
        value: Any = self.values.get(name)
        axis = ui.AXES[name]
        if not _is_number(value):
            raise Mistake(f"{self.action} needs numbers {x} and {y}; got {name}={shown_value(value)}")
        limit = self.space.limit(axis)
        # A fraction of a pixel is still in that pixel: the last one reaches to just under its successor.
        inside = 0 <= value < limit + 1 if self.space.coordinates == "pixels" else 0 <= value <= limit
        if not inside:
            raise Mistake(f"{name}={shown_value(value)} is outside the picture; expected 0 to {limit}")
        return self.space.pixel(value, axis)

    def integer(self, name: str, low: int, high: int) -> int:
        value: Any = self.values.get(name)
        if not _is_number(value) or not low <= value <= high or value != int(value):
            raise Mistake(f"{self.action} needs a whole number {name} from {low} to {high}; got {shown_value(value)}")
        return int(value)

    def mark(self, *others: str) -> int | None:
        """Return the number of a marked element; None: x and y are to be read."""
        if not self.has("mark"):
            return None
        if self.has("x", "y", *others):
            raise Mistake(f"{self.action} takes a mark, or x and y; got both")
        return self.integer("mark", 1, MOST_MARKS)

    def element(self) -> tuple[int | None, int | None, int | None]:
        """Return x, y and mark of an `OnElement`."""
        mark = self.mark()
        return (*self.point(), None) if mark is None else (None, None, mark)

    def chord(self, name: str) -> tuple[str, ...]:
        try:
            return read_chord(self.text(name, 100))
        except Mistake:
            raise
        except ValueError as error:
            raise Mistake(str(error)) from error

    def modifiers(self) -> tuple[str, ...]:
        if not self.has("modifiers"):
            return ()
        modifiers = self.values["modifiers"]
        if modifiers in ("", []):
            return ()
        if isinstance(modifiers, list) and all(isinstance(key, str) for key in modifiers):
            modifiers = "+".join(modifiers)
        keys = Arguments(self.action, {"modifiers": modifiers}, self.space).chord("modifiers")
        if not set(keys) <= set(MODIFIERS):
            raise Mistake(f"modifiers are of {', '.join(MODIFIERS)}; got {shown_value(self.values['modifiers'])}")
        return keys

    def texts(self, name: str) -> tuple[str, ...]:
        """Return one text, or a list of them, as a tuple."""
        value = self.values.get(name)
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Mistake(f"{self.action} needs {name}, a text or a list of texts; got {shown_value(value)}")
        if len(texts) > ui.MAX_LISTED or any(len(text) > ui.MAX_TEXT for text in texts):
            raise Mistake(f"{self.action} takes at most {ui.MAX_LISTED} {name} of {ui.MAX_TEXT} characters")
        return tuple(self.bounded(name, text, ui.MAX_TEXT) for text in texts)

    def text(self, name: str, limit: int, *, empty: bool = False) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or not (value or empty):
            raise Mistake(f"{self.action} needs a text {name}; got {shown_value(value)}")
        return self.bounded(name, value, limit)

    def choice(self, name: str, choices: Iterable[str]) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise Mistake(f"{self.action} needs {name}, one of {', '.join(choices)}; got {shown_value(value)}")
        return value


def _click(arguments: Arguments) -> ui.UIAction:
    button, count = ui.CLICKS[arguments.action]
    mark, held = arguments.mark(), arguments.modifiers()
    if mark is None:
        return ui.Click(*arguments.point(), button, count, held)
    return ui.ClickMark(mark, button, count, held)


def _move(arguments: Arguments) -> ui.UIAction:
    mark = arguments.mark()
    return ui.Move(*arguments.point()) if mark is None else ui.MoveToMark(mark)


def _drag(arguments: Arguments) -> ui.UIAction:
    mark = arguments.mark("to_x", "to_y")
    if mark is None and not arguments.has("to_mark"):
        return ui.Drag(*arguments.point(), *arguments.point("to_x", "to_y"))
    return ui.DragMark(arguments.integer("mark", 1, MOST_MARKS), arguments.integer("to_mark", 1, MOST_MARKS))


def _button(arguments: Arguments) -> ui.UIAction:
    button: Any = arguments.choice("button", ui.BUTTONS) if arguments.has("button") else "left"
    return ui.MouseButton(*arguments.point(), button, arguments.action == "mouse_down")


def _held(arguments: Arguments) -> ui.UIAction:
    keys = arguments.chord("key")
    if len(keys) > 1:
        raise Mistake(f"{arguments.action} takes one key; got {'+'.join(keys)}")
    return ui.HoldKey(keys[0], arguments.action == "key_down")


def _upload(arguments: Arguments) -> ui.UIAction:
    place = arguments.element() if arguments.has("x", "y", "mark") else (None, None, None)
    return ui.Upload(*place, arguments.texts("files"))


def _dialog(arguments: Arguments) -> ui.UIAction:
    choice: Any = arguments.choice("choice", ui.CHOICES)
    return ui.AnswerDialog(choice, arguments.text("text", ui.MAX_TEXT, empty=True) if arguments.has("text") else None)


def _scroll(arguments: Arguments) -> ui.UIAction:
    direction: Any = arguments.choice("direction", ui.DIRECTIONS)
    amount = arguments.integer("amount", 1, ui.MAX_SCROLL) if arguments.has("amount") else ui.SCROLL_NOTCHES
    where = arguments.point() if arguments.has("x", "y") else (None, None)
    return ui.Scroll(direction, amount, *where)


def _wait(arguments: Arguments) -> ui.UIAction:
    value: Any = arguments.values.get("seconds", 1.0)
    if not _is_number(value) or not 0 <= value <= ui.MAX_WAIT:
        raise Mistake(f"wait needs seconds from 0 to {ui.MAX_WAIT:g}; got {shown_value(value)}")
    return ui.Wait(float(value))


def _goto(arguments: Arguments) -> ui.UIAction:
    url = arguments.text("url", ui.MAX_URL)
    if any(character <= " " for character in url):
        raise Mistake(f"goto needs an address without spaces; got {shown_value(url)}")
    return ui.Goto(url)


def _terminate(arguments: Arguments) -> ui.UIAction:
    status: Any = ui.STATUSES[arguments.choice("status", ui.STATUSES)]
    return ui.Terminate(status)


READERS: dict[str, Callable[[Arguments], ui.UIAction]] = {
    **dict.fromkeys(ui.CLICKS, _click),
    "move": _move,
    "mouse_down": _button,
    "mouse_up": _button,
    "drag": _drag,
    "type": lambda arguments: ui.Type(arguments.text("text", ui.MAX_TEXT)),
    "keys": lambda arguments: ui.Keys(arguments.chord("keys")),
    "key_down": _held,
    "key_up": _held,
    "insert": lambda arguments: ui.Insert(arguments.text("text", ui.MAX_TEXT)),
    "fill": lambda arguments: ui.Fill(*arguments.element(), arguments.text("value", ui.MAX_TEXT, empty=True)),
    "focus": lambda arguments: ui.Focus(*arguments.element()),
    "select": lambda arguments: ui.Select(*arguments.element(), arguments.texts("options")),
    "upload": _upload,
    "scroll": _scroll,
    "wait": _wait,
    "back": lambda _: ui.Back(),
    "forward": lambda _: ui.Forward(),
    "goto": _goto,
    "new_tab": lambda _: ui.NewTab(),
    "switch_tab": lambda arguments: ui.SwitchTab(arguments.integer("tab", 1, MOST_MARKS)),
    "close_tab": lambda _: ui.CloseTab(),
    "dialog": _dialog,
    "answer": lambda arguments: ui.Answer(arguments.text("text", ui.MAX_TEXT)),
    "terminate": _terminate,
    "screenshot": lambda _: ui.LookAgain(),
}
"""Name of an action -> what reads its arguments; it raises `Mistake`."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
