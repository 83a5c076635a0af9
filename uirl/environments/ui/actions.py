"""The one vocabulary of actions on user interfaces: read, checked and described the same for browsers and phones.

`ActionSpace.read` turns what a policy wrote into one of the frozen actions below, or into a sentence that says what
was wrong with it: whatever a policy writes is its own mistake at worst, never a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uirl.environments.ui.arguments import Mistake
from uirl.environments.ui.reading import READERS, Arguments
from uirl.environments.ui.vocabulary import ACTIONS, AXES, CLICKS, GRID, MARKED, VALUES, Axis, Coordinates, UIAction
from uirl.errors import ConfigError, did_you_mean
from uirl.runtime.limits import shown
from uirl.types import Action, ToolCall

__all__ = ["ACTIONS", "ActionSpace"]


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
    values = ((argument, _value(space, argument)[0]) for argument in shown)
    inside = ",".join(f'"{k}":{v}' if isinstance(v, int) else f'"{k}":"{v}"' for k, v in values)
    return f'{{"action":"{name}"{"," if inside else ""}{inside}}}'


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
