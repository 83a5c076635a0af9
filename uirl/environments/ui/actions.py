"""The one vocabulary of actions on user interfaces: read, checked and described the same for browsers and phones.

`ActionSpace.read` turns what a policy wrote into one of the frozen actions below, or into a sentence that says what
was wrong with it: whatever a policy writes is its own mistake at worst, never a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from uirl.environments.ui import vocabulary as ui
from uirl.environments.ui.keys import MODIFIERS, read_chord
from uirl.environments.ui.vocabulary import (
    ACTIONS,
    AXES,
    CLICKS,
    FORMATS,
    GRID,
    MARKED,
    VALUES,
    ActionFormat,
    Axis,
    Coordinates,
    UIAction,
)
from uirl.errors import ConfigError, did_you_mean
from uirl.parsers.registry import create_parser
from uirl.runtime.limits import is_whole, shown
from uirl.types import Action, ToolCall

__all__ = ["ACTIONS", "ActionSpace"]
MOST_MARKS = 9999


class Mistake(ValueError):
    """What is wrong with a call, in words for the policy."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of one call, checked as they are asked for."""

    action: str
    values: Mapping[str, Any]

    def has(self, *names: str) -> bool:
        """Return whether one of these arguments is there."""
        return any(name in self.values for name in names)

    def bounded(self, name: str, text: str, max_chars: int) -> str:
        """Return the text of the argument `name`. Raises Mistake for a long one, and for half of a surrogate pair."""
        if len(text) > max_chars:
            raise Mistake(f"{self.action} takes at most {max_chars} characters; got {len(text)}")
        if not is_whole(text):
            raise Mistake(f"{self.action} needs text of whole characters; {name} holds half of a surrogate pair")
        return text


def shown_value(value: Any) -> str:
    """Return a value for the policy: Python refuses to write very long numbers."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return shown(value, 40)


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """Which actions a policy is offered, and the screen its coordinates are of."""

    width: int
    height: int
    """Of the picture the policy sees, in pixels."""
    names: tuple[str, ...] = ()
    """The offered actions; empty: all of `ACTIONS`."""
    coordinates: Coordinates = "pixels"
    """'pixels' of the picture, from 0; 'grid_999': 0 to 999 along each side, whatever the picture's size; the pixel is
    x / 999 * width, truncated, and 999 is the last one."""
    marks: bool = False
    """Clicks may name the number of a marked element in place of x and y."""
    targets: bool = False
    """The descriptions ask for the word `target` before the coordinates of a click: a policy that says what it means
    to press before it says where learns the two apart. It is accepted, and ignored, either way."""
    modifiers: bool = False
    """Clicks may say which keys are held meanwhile."""
    format: ActionFormat = "json"
    """Parser of the replies; the examples are written for it."""

    def __post_init__(self) -> None:
        names = tuple(self.names) or tuple(ACTIONS)
        object.__setattr__(self, "names", names)
        for name in names:
            if name not in ACTIONS:
                raise ConfigError(f"no user interface action {name!r}; {did_you_mean(str(name), ACTIONS)}")
        if self.coordinates not in ("pixels", "grid_999"):
            raise ConfigError(f"coordinates must be 'pixels' or 'grid_999', got {self.coordinates!r}")
        if self.format not in FORMATS:
            raise ConfigError(f"no format of user interface actions {self.format!r}; expected {', '.join(FORMATS)}")
        if min(self.width, self.height) < 1:
            raise ConfigError(f"a screen has at least one pixel, got {self.width} x {self.height}")

    def read(self, action: Action) -> UIAction | str:
        """Return the one action of a reply; a str where it cannot be carried out: why, in words for the policy."""
        if action.parse_error is not None:
            return action.parse_error
        if not action.tool_calls:
            return f"no action; expected {_example(self, self.names[0])}"
        if len(action.tool_calls) > 1:
            return f"{len(action.tool_calls)} actions in one reply; expected one"
        return self.read_call(action.tool_calls[0])

    def read_call(self, call: ToolCall) -> UIAction | str:
        """Return the action of one call, or what was wrong, as `read` does for a reply."""
        if call.name not in self.names:
            expected = repr(self.names[0]) if len(self.names) == 1 else ", ".join(self.names)
            return f"unknown action {shown(call.name, 40)}; expected {expected}"
        spec = ACTIONS[call.name]
        arguments = {name: value for name, value in call.arguments.items() if name != "target"}
        known_names = (*spec.arguments, *self._more(call.name))
        for name in arguments:
            if name not in known_names:
                return f"{call.name} has no argument {shown(name, 40)}; expected {', '.join(known_names) or 'none'}"
        try:
            return READERS[call.name](Arguments(call.name, arguments, self))
        except Mistake as mistake:
            return str(mistake)

    def write(self, action: UIAction, target: str = "") -> ToolCall:
        """Return the call that `read_call` reads as `action`: for experts. `target`, where given, stands first.

        On a 'grid_999' screen of more than 999 pixels not every pixel can be named; the nearest one is.
        """
        values: dict[str, Any] = {"target": target} if target else {}
        for name in (*ACTIONS[action.name].arguments, "mark", "to_mark", "modifiers"):
            value: Any = getattr(action, name, None)
            if value is None or (name == "modifiers" and not value):
                continue
            if name in AXES:
                values[name] = self._coordinate(value, AXES[name])
            elif isinstance(value, tuple):
                values[name] = "+".join(value) if name in ("keys", "modifiers") else list(value)
            else:
                values[name] = value
        return ToolCall(action.name, values)

    def schemas(self) -> list[dict[str, Any]]:
        """Return JSON schemas of the offered actions, as chat templates (`tools=`) take them."""
        return [_schema(self, name) for name in self.names]

    def describe(self) -> str:
        """Return the offered actions with examples, one per line, and the meaning of coordinates: for a prompt."""
        lines = [f"{_example(self, name)}  {ACTIONS[name].purpose}" for name in self.names]
        if any(set(ACTIONS[name].arguments) & set(AXES) for name in self.names):
            unit = "pixels of the picture" if self.coordinates == "pixels" else f"0 to {GRID} along each side"
            size = f" ({self.width} x {self.height})" if self.coordinates == "pixels" else ""
            lines.append(f"x grows to the right, y downwards, in {unit}{size}.")
        return "\n".join(lines)

    def ask(self) -> str:
        """Return the sentence that asks for one action, and the offered ones: for a prompt."""
        return f"Reply with one action {FORMATS[self.format]}:\n{self.describe()}"

    def limit(self, axis: Axis) -> int:
        """Return the largest coordinate on an axis."""
        if self.coordinates == "grid_999":
            return GRID
        return (self.width if axis == "x" else self.height) - 1

    def pixel(self, value: float, axis: Axis) -> int:
        """Return the pixel of a coordinate between 0 and `limit`."""
        if self.coordinates == "pixels":
            return int(value)
        size = self.width if axis == "x" else self.height
        return min(int(value * size / GRID), size - 1)

    def _more(self, name: str) -> tuple[str, ...]:
        """Return the arguments of an action that not every screen takes."""
        marks = self._marks(name)
        return (*marks, "modifiers") if self.modifiers and name in CLICKS else marks

    def _marks(self, name: str) -> tuple[str, ...]:
        if not self.marks or name not in MARKED:
            return ()
        return ("mark", "to_mark") if name == "drag" else ("mark",)

    def _coordinate(self, pixel: int, axis: Axis) -> int:
        if self.coordinates == "pixels":
            return pixel
        size = self.width if axis == "x" else self.height
        near = int((pixel + 0.5) * GRID / size)  # about its middle
        return near if self.pixel(near, axis) == pixel else min(near + 1, GRID)


def _value(space: ActionSpace, name: str) -> tuple[Any, dict[str, Any]]:
    if name not in AXES:
        return VALUES[name]
    limit = space.limit(AXES[name])
    share = {"x": 0.2, "y": 0.3, "to_x": 0.6, "to_y": 0.5}[name]
    return round(share * limit), {"type": "integer", "minimum": 0, "maximum": limit}


def _shown_arguments(space: ActionSpace, name: str) -> list[str]:
    """Return the arguments of an action in the order of a reply."""
    spec = ACTIONS[name]
    return (["target"] if space.targets and name in CLICKS else []) + list(spec.arguments)


def _example(space: ActionSpace, name: str) -> str:
    spec = ACTIONS[name]
    shown = [a for a in _shown_arguments(space, name) if a not in spec.optional]
    marks = space._marks(name)
    if marks:
        others = [a for a in shown if a not in AXES]
        shown = [*others, *marks] if name in CLICKS else [*marks, *others]  # a click's target stands before it
    return written(ToolCall(name, {argument: _value(space, argument)[0] for argument in shown}), space.format)


def written(call: ToolCall, form: ActionFormat) -> str:
    """Return a call as a reply in that format has it, on one line and without the fence around it: for a prompt."""
    text = create_parser(form).render(Action(tool_calls=(call,)))
    return text.removeprefix("```python\n").removesuffix("\n```").replace("\n", "; ")


def _schema(space: ActionSpace, name: str) -> dict[str, Any]:
    spec = ACTIONS[name]
    shown = _shown_arguments(space, name)
    required = [a for a in shown if a not in spec.optional]
    if space._marks(name):
        required = [a for a in required if a not in AXES]
    shown = [*shown, *space._more(name)]
    parameters: dict[str, Any] = {"type": "object", "properties": {a: dict(_value(space, a)[1]) for a in shown}}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": spec.purpose, "parameters": parameters}}


@dataclass(frozen=True, slots=True)
class Arguments(CallArguments):
    """The arguments of one call on a screen."""

    space: ActionSpace

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
    where = arguments.point() if arguments.has("x", "y") else (None, None)
    return ui.MouseButton(*where, button, arguments.action == "mouse_down")


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
