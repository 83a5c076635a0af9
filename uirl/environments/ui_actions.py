"""The one vocabulary of actions on user interfaces: read, checked and described the same for browsers and phones.

`ActionSpace.read` turns what a policy wrote into one of the frozen actions below, or into a sentence that says what
was wrong with it: whatever a policy writes is its own mistake at worst, never a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from uirl.environments.ui_keys import read_chord
from uirl.environments.ui_vocabulary import (
    ACTIONS,
    AXES,
    CLICKS,
    DIRECTIONS,
    GRID,
    MAX_SCROLL,
    MAX_TEXT,
    MAX_URL,
    MAX_WAIT,
    SCROLL_NOTCHES,
    STATUSES,
    VALUES,
    Answer,
    Back,
    Click,
    ClickMark,
    Coordinates,
    Drag,
    Goto,
    Keys,
    LookAgain,
    Move,
    Scroll,
    Terminate,
    Type,
    UIAction,
    Wait,
)
from uirl.errors import ConfigError, did_you_mean
from uirl.limits import shown
from uirl.types import Action, ToolCall

__all__ = [
    "ACTIONS",
    "CLICKS",
    "ActionSpace",
    "Answer",
    "Back",
    "Click",
    "ClickMark",
    "Coordinates",
    "Drag",
    "Goto",
    "Keys",
    "LookAgain",
    "Move",
    "Scroll",
    "Terminate",
    "Type",
    "UIAction",
    "Wait",
]


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

    def __post_init__(self) -> None:
        names = tuple(self.names) or tuple(ACTIONS)
        object.__setattr__(self, "names", names)
        for name in names:
            if name not in ACTIONS:
                raise ConfigError(f"no user interface action {name!r}; {did_you_mean(str(name), ACTIONS)}")
        if self.coordinates not in ("pixels", "grid_999"):
            raise ConfigError(f"coordinates must be 'pixels' or 'grid_999', got {self.coordinates!r}")
        if min(self.width, self.height) < 1:
            raise ConfigError(f"a screen has at least one pixel, got {self.width} x {self.height}")

    def read(self, action: Action) -> UIAction | str:
        """The one action of a reply; a str where it cannot be carried out: what was wrong, in words for the policy."""
        if action.parse_error is not None:
            return action.parse_error
        if not action.tool_calls:
            return f"no action; expected {_example(self, self.names[0])}"
        if len(action.tool_calls) > 1:
            return f"{len(action.tool_calls)} actions in one reply; expected one"
        return self.read_call(action.tool_calls[0])

    def read_call(self, call: ToolCall) -> UIAction | str:
        """The same for one call."""
        if call.name not in self.names:
            known = repr(self.names[0]) if len(self.names) == 1 else ", ".join(self.names)
            return f"unknown action {shown(call.name, 40)}; expected {known}"
        spec = ACTIONS[call.name]
        arguments = {name: value for name, value in call.arguments.items() if name != "target"}
        known_names = spec.arguments + (("mark",) if self.marks and call.name in CLICKS else ())
        for name in arguments:
            if name not in known_names:
                return f"{call.name} has no argument {shown(name, 40)}; expected {', '.join(known_names) or 'none'}"
        try:
            return _READERS[call.name](_Arguments(self, call.name, arguments))
        except _Mistake as mistake:
            return str(mistake)

    def write(self, action: UIAction, target: str = "") -> ToolCall:
        """The call that `read_call` reads as `action`: for experts. `target`, where given, stands first.

        On a 'grid_999' screen of more than 999 pixels not every pixel can be named; the nearest one is.
        """
        values: dict[str, Any] = {"target": target} if target else {}
        for name in (*ACTIONS[action.name].arguments, "mark"):
            value: Any = getattr(action, name, None)
            if value is not None and name in AXES:
                values[name] = self._coordinate(value, AXES[name])
            elif value is not None:
                values[name] = "+".join(value) if name == "keys" else value
        return ToolCall(action.name, values)

    def schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the offered actions, as chat templates (`tools=`) take them."""
        return [_schema(self, name) for name in self.names]

    def describe(self) -> str:
        """The offered actions with an example each, one per line, and what the coordinates mean: for a prompt."""
        lines = [f"{_example(self, name)}  {ACTIONS[name].purpose}" for name in self.names]
        if any(set(ACTIONS[name].arguments) & set(AXES) for name in self.names):
            unit = "pixels of the picture" if self.coordinates == "pixels" else f"0 to {GRID} along each side"
            size = f" ({self.width} x {self.height})" if self.coordinates == "pixels" else ""
            lines.append(f"x grows to the right, y downwards, in {unit}{size}.")
        return "\n".join(lines)

    def limit(self, axis: Literal["x", "y"]) -> int:
        """The largest coordinate on an axis."""
        if self.coordinates == "grid_999":
            return GRID
        return (self.width if axis == "x" else self.height) - 1

    def pixel(self, value: float, axis: Literal["x", "y"]) -> int:
        """The pixel of a coordinate between 0 and `limit`."""
        if self.coordinates == "pixels":
            return int(value)
        size = self.width if axis == "x" else self.height
        return min(int(value * size / GRID), size - 1)

    def _coordinate(self, pixel: int, axis: Literal["x", "y"]) -> int:
        if self.coordinates == "pixels":
            return pixel
        size = self.width if axis == "x" else self.height
        near = int((pixel + 0.5) * GRID / size)  # about its middle
        return near if self.pixel(near, axis) == pixel else min(near + 1, GRID)


class _Mistake(ValueError):
    """What is wrong with a call, in words for the policy."""


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one call, checked as they are asked for."""

    space: ActionSpace
    action: str
    given: Mapping[str, Any]

    def has(self, *names: str) -> bool:
        return any(name in self.given for name in names)

    def point(self, x: str = "x", y: str = "y") -> tuple[int, int]:
        return self._pixel(x, x, y), self._pixel(y, x, y)

    def _pixel(self, name: str, x: str, y: str) -> int:
        value: Any = self.given.get(name)
        axis = AXES[name]
        if not _is_number(value):
            raise _Mistake(f"{self.action} needs numbers {x} and {y}; got {name}={_shown(value)}")
        limit = self.space.limit(axis)
        # A fraction of a pixel is still in that pixel: the last one reaches to just under its successor.
        inside = 0 <= value < limit + 1 if self.space.coordinates == "pixels" else 0 <= value <= limit
        if not inside:
            raise _Mistake(f"{name}={_shown(value)} is outside the picture; expected 0 to {limit}")
        return self.space.pixel(value, axis)

    def integer(self, name: str, low: int, high: int) -> int:
        value: Any = self.given.get(name)
        if not _is_number(value) or not low <= value <= high or value != int(value):
            raise _Mistake(f"{self.action} needs a whole number {name} from {low} to {high}; got {_shown(value)}")
        return int(value)

    def text(self, name: str, limit: int) -> str:
        value = self.given.get(name)
        if not isinstance(value, str) or not value:
            raise _Mistake(f"{self.action} needs a text {name}; got {_shown(value)}")
        if len(value) > limit:
            raise _Mistake(f"{self.action} takes at most {limit} characters; got {len(value)}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _Mistake(f"{self.action} needs text of whole characters; {name} holds half of a surrogate pair")
        return value

    def choice(self, name: str, known: Iterable[str]) -> str:
        value = self.given.get(name)
        if not isinstance(value, str) or value not in known:
            raise _Mistake(f"{self.action} needs {name}, one of {', '.join(known)}; got {_shown(value)}")
        return value


def _click(arguments: _Arguments) -> UIAction:
    button, count = CLICKS[arguments.action]
    if not arguments.has("mark"):
        return Click(*arguments.point(), button, count)
    if arguments.has("x", "y"):
        raise _Mistake(f"{arguments.action} takes a mark, or x and y; got both")
    return ClickMark(arguments.integer("mark", 1, 9999), button, count)


def _drag(arguments: _Arguments) -> UIAction:
    return Drag(*arguments.point(), *arguments.point("to_x", "to_y"))


def _keys(arguments: _Arguments) -> UIAction:
    try:
        return Keys(read_chord(arguments.text("keys", 100)))
    except ValueError as error:
        raise _Mistake(str(error)) from error


def _scroll(arguments: _Arguments) -> UIAction:
    direction: Any = arguments.choice("direction", DIRECTIONS)
    amount = arguments.integer("amount", 1, MAX_SCROLL) if arguments.has("amount") else SCROLL_NOTCHES
    where = arguments.point() if arguments.has("x", "y") else (None, None)
    return Scroll(direction, amount, *where)


def _wait(arguments: _Arguments) -> UIAction:
    value: Any = arguments.given.get("seconds", 1.0)
    if not _is_number(value) or not 0 <= value <= MAX_WAIT:
        raise _Mistake(f"wait needs seconds from 0 to {MAX_WAIT:g}; got {_shown(value)}")
    return Wait(float(value))


def _goto(arguments: _Arguments) -> UIAction:
    url = arguments.text("url", MAX_URL)
    if any(character <= " " for character in url):
        raise _Mistake(f"goto needs an address without spaces; got {_shown(url)}")
    return Goto(url)


def _terminate(arguments: _Arguments) -> UIAction:
    status: Any = STATUSES[arguments.choice("status", STATUSES)]
    return Terminate(status)


_READERS: dict[str, Callable[[_Arguments], UIAction]] = {
    **dict.fromkeys(CLICKS, _click),
    "move": lambda arguments: Move(*arguments.point()),
    "drag": _drag,
    "type": lambda arguments: Type(arguments.text("text", MAX_TEXT)),
    "keys": _keys,
    "scroll": _scroll,
    "wait": _wait,
    "back": lambda _: Back(),
    "goto": _goto,
    "answer": lambda arguments: Answer(arguments.text("text", MAX_TEXT)),
    "terminate": _terminate,
    "screenshot": lambda _: LookAgain(),
}


def _value(space: ActionSpace, name: str) -> tuple[Any, dict[str, Any]]:
    if name not in AXES:
        return VALUES[name]
    limit = space.limit(AXES[name])
    share = {"x": 0.2, "y": 0.3, "to_x": 0.6, "to_y": 0.5}[name]
    return round(share * limit), {"type": "integer", "minimum": 0, "maximum": limit}


def _shown_arguments(space: ActionSpace, name: str) -> list[str]:
    """Arguments of an action in the order of a reply."""
    spec = ACTIONS[name]
    return (["target"] if space.targets and name in CLICKS else []) + list(spec.arguments)


def _example(space: ActionSpace, name: str) -> str:
    spec = ACTIONS[name]
    shown = [a for a in _shown_arguments(space, name) if a not in spec.optional]
    if space.marks and name in CLICKS:
        shown = [a for a in shown if a not in AXES] + ["mark"]
    values = ((argument, _value(space, argument)[0]) for argument in shown)
    inside = ",".join(f'"{k}":{v}' if isinstance(v, int) else f'"{k}":"{v}"' for k, v in values)
    return f'{{"action":"{name}"{"," if inside else ""}{inside}}}'


def _schema(space: ActionSpace, name: str) -> dict[str, Any]:
    spec = ACTIONS[name]
    shown = _shown_arguments(space, name)
    required = [a for a in shown if a not in spec.optional]
    if space.marks and name in CLICKS:
        shown, required = [*shown, "mark"], [a for a in required if a not in AXES]
    parameters: dict[str, Any] = {"type": "object", "properties": {a: dict(_value(space, a)[1]) for a in shown}}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": spec.purpose, "parameters": parameters}}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"  # Python refuses to write very long ones
    return shown(value, 40)
