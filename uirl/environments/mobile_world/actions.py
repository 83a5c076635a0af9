"""What a policy does on a phone: calls in the words of MAI-UI -> checked actions -> what the server is sent.

Whatever is wrong with a call is told to the policy, and nothing is sent: the server answers most of it with an error
that looks like a fault of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from uirl.environments.ui.actions import CallArguments, Mistake
from uirl.environments.ui.vocabulary import (
    DIRECTIONS,
    GRID,
    MAX_TEXT,
    STATUSES,
    Answer,
    Click,
    Drag,
    Terminate,
    Type,
    Wait,
)
from uirl.errors import did_you_mean
from uirl.runtime.limits import is_finite, shown
from uirl.types import Action, ToolCall

APPS = (
    *("Contacts", "Settings", "Clock", "Maps", "Chrome", "Calendar", "Files", "Gallery", "Taodian", "Mattermost"),
    *("Mastodon", "Mail", "SMS", "Camera", "桌面", "设置", "淘店"),
)
"""What every version of the server can open; it does not mind upper and lower case."""


FARTHEST = 10 * GRID
"""Of a coordinate that is sent: what is farther from the screen is no place."""


@dataclass(frozen=True, slots=True)
class LongPress:
    """A finger that stays for a second, in pixels of the screen."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Swipe:
    """The way a finger goes: `up` shows what is further down."""

    direction: Literal["up", "down", "left", "right"]
    x: int | None = None
    """Where it begins; None, with `y`: in the middle."""
    y: int | None = None


@dataclass(frozen=True, slots=True)
class OpenApp:
    app: str


@dataclass(frozen=True, slots=True)
class PressButton:
    button: Literal["back", "home", "enter"]


@dataclass(frozen=True, slots=True)
class AskUser:
    """A question to the one who gave the task."""

    text: str


@dataclass(frozen=True, slots=True)
class UseTool:
    """A call of a tool that is no part of the phone."""

    call: ToolCall


PhoneAction: TypeAlias = (
    Click | LongPress | Drag | Swipe | Type | OpenApp | PressButton | Wait | Answer | Terminate | AskUser | UseTool
)


@dataclass(frozen=True, slots=True)
class PhoneSpace:
    """Which actions are offered now, and the screen their coordinates are of."""

    width: int
    height: int
    """Of the screen in pixels, as it is held."""
    apps: tuple[str, ...] = APPS
    tools: frozenset[str] = frozenset()
    """Names of the tools that may be called beside the phone."""
    ask_user: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The actions of the phone."""
        return tuple(name for name in _READERS if self.ask_user or name != "ask_user")

    def read(self, action: Action) -> PhoneAction | str:
        """Return the one action of a reply; a str where it cannot be carried out: why, in words for the policy."""
        if action.parse_error is not None:
            return action.parse_error
        if len(action.tool_calls) != 1:
            return f"{len(action.tool_calls) or 'no'} actions in the reply; expected one"
        call = action.tool_calls[0]
        if call.name in self.tools:
            return UseTool(call)
        if call.name not in self.names:
            offered = ", ".join([*self.names, *sorted(self.tools)])
            return f"unknown action {shown(call.name, 40)}; expected one of {offered}"
        try:
            return _READERS[call.name](_Arguments(call.name, call.arguments, self))
        except Mistake as mistake:
            return str(mistake)


def command(action: PhoneAction) -> dict[str, Any] | None:
    """Return the body of `POST /step` for an action; None: the phone has no part in it.

    An upward swipe is a downward scroll there. To the side it is sent as a swipe: early versions turn scrolls to the
    side into upward swipes, later ones into this very swipe.
    """
    match action:
        case Click(x, y, _, count):
            return {"action_type": "click" if count == 1 else "double_tap", "x": x, "y": y}
        case LongPress(x, y):
            return {"action_type": "long_press", "x": x, "y": y}
        case Drag(x, y, to_x, to_y):
            return {"action_type": "drag", "start_x": x, "start_y": y, "end_x": to_x, "end_y": to_y}
        case Swipe("up" | "down" as direction):
            return {"action_type": "scroll", "direction": "down" if direction == "up" else "up"}
        case Swipe(direction, x, y):
            return {"action_type": "swipe", "direction": direction, **({} if x is None else {"x": x, "y": y})}
        case Type(text):
            return {"action_type": "input_text", "text": text}
        case OpenApp(app):
            return {"action_type": "open_app", "app_name": app}
        case PressButton(button):
            names = {"back": "navigate_back", "home": "navigate_home", "enter": "keyboard_enter"}
            return {"action_type": names[button]}
        case Wait():
            return {"action_type": "wait"}
        case Answer(text):
            return {"action_type": "answer", "text": text}
        case AskUser(text):
            return {"action_type": "ask_user", "text": text}
        case Terminate() | UseTool():
            return None


@dataclass(frozen=True, slots=True)
class _Arguments(CallArguments):
    """The arguments of one call on a phone; others are passed over, as the server does."""

    space: PhoneSpace

    def point(self, name: str = "coordinate", default: tuple[int, int] | None = None) -> tuple[int, int]:
        """Return a place in pixels: x / 999 of the width, truncated; of a box the middle counts.

        Beyond the grid, at 999 too, it is off the screen, where a tap does nothing: the agent this comes from sends it
        so, and how that scores is for the policy to learn.
        """
        value = self.values.get(name, default)
        pair = list(value) if isinstance(value, (list, tuple)) else []
        if len(pair) == 4 and all(is_finite(n) for n in pair):
            pair = [(pair[0] + pair[2]) / 2, (pair[1] + pair[3]) / 2]
        if len(pair) != 2 or not all(is_finite(n) and abs(n) <= FARTHEST for n in pair):
            raise Mistake(f'{self.action} needs "{name}": [x,y] between 0 and {GRID}; got {shown(value, 40)}')
        x, y = (int(n / GRID * length) for n, length in zip(pair, (self.space.width, self.space.height), strict=True))
        return x, y

    def text(self, name: str = "text", *, or_nothing: bool = False) -> str:
        """Return a text; what is none is written as Python writes it (`42`, `True`), as the server does."""
        value = self.values.get(name)
        text = "" if value is None else str(value)
        if not text and not or_nothing:
            raise Mistake(f"{self.action} needs a {name}; got {shown(value, 40)}")
        return self.bounded(name, text, MAX_TEXT)

    def choice(self, name: str, choices: tuple[str, ...], default: str | None = None) -> Any:
        value = self.values.get(name, default)
        if not isinstance(value, str) or value.lower() not in choices:
            raise Mistake(f"{self.action} needs {name}, one of {', '.join(choices)}; got {shown(value, 40)}")
        return value.lower()


def _swipe(arguments: _Arguments) -> PhoneAction:
    direction = arguments.choice("direction", DIRECTIONS, "up")
    if not arguments.values.get("coordinate"):
        return Swipe(direction)
    x, y = arguments.point()
    way = 2 * int(arguments.space.width / 10)  # how far the server swipes to the side
    if (direction == "left" and x < way) or (direction == "right" and x + way >= arguments.space.width):
        raise Mistake(f"a swipe {direction} from {arguments.values['coordinate']} leaves the screen; begin further in")
    return Swipe(direction, x, y)


def _open(arguments: _Arguments) -> PhoneAction:
    wanted = arguments.text()
    apps = {app.lower(): app for app in arguments.space.apps}
    if wanted.lower() not in apps:
        raise Mistake(f"there is no app {shown(wanted, 40)}; {did_you_mean(wanted[:40], arguments.space.apps)}")
    return OpenApp(apps[wanted.lower()])


def _terminate(arguments: _Arguments) -> PhoneAction:
    """Return the end of the episode, whatever the status says; an unknown status claims no success."""
    status = str(arguments.values.get("status", "success")).lower()
    return Terminate("success" if STATUSES.get(status) == "success" else "failure")


_READERS: dict[str, Callable[[_Arguments], PhoneAction]] = {
    "click": lambda arguments: Click(*arguments.point()),
    "long_press": lambda arguments: LongPress(*arguments.point()),
    "double_click": lambda arguments: Click(*arguments.point(), count=2),
    "type": lambda arguments: Type(arguments.text()),
    "swipe": _swipe,
    "drag": lambda arguments: Drag(
        *arguments.point("start_coordinate", (0, 0)), *arguments.point("end_coordinate", (0, 0))
    ),
    "open": _open,
    "system_button": lambda arguments: PressButton(arguments.choice("button", ("back", "home", "enter"))),
    "wait": lambda arguments: Wait(),
    "terminate": _terminate,
    "answer": lambda arguments: Answer(arguments.text(or_nothing=True)),
    "ask_user": lambda arguments: AskUser(arguments.text()),
}
ACTIONS = frozenset(_READERS)
"""Names that no tool may have."""
