"""BrowserGym's action strings -> calls of our vocabulary of user interface actions. Read as syntax, never executed."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from uirl.environments.browser.pointer import NOTCH
from uirl.errors import did_you_mean
from uirl.limits import LIMITS, shown
from uirl.types import ToolCall

LONGEST = 20_000
"""Characters of an action string."""
MOST_CALLS = 16
"""Calls in one action string."""


class Unreadable(ValueError):
    """Why a string is no action, as BrowserGym writes it into `last_action_error`."""


def read_actions(text: str) -> list[list[ToolCall]]:
    """The calls of each function in an action string, in order: `fill` is two of ours, `noop()` may be none.

    A string is one or more calls such as `mouse_click(3, 4)`, one per line, with literals as arguments, bare or in a
    Markdown code fence. Raises `Unreadable`.
    """
    if len(text) > LONGEST:
        raise Unreadable(f"ValueError: an action has at most {LONGEST} characters, got {len(text)}")
    try:
        body = ast.parse(_unfenced(text)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{type(error).__name__}: {_first_line(error)}; expected a call such as noop()") from error
    if not body:
        raise Unreadable("ValueError: received an empty action; expected a call such as noop()")
    if len(body) > MOST_CALLS:
        raise Unreadable(f"ValueError: an action has at most {MOST_CALLS} calls, got {len(body)}")
    _check_depth(body)
    return [_read_call(statement) for statement in body]


def _check_depth(level: Sequence[ast.AST]) -> None:
    """Raises `Unreadable` for syntax so deep that walking it would exhaust the stack."""
    for _ in range(LIMITS.depth):
        if not level:
            return
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    raise Unreadable(f"ValueError: an action is nested at most {LIMITS.depth} levels deep; expected plain literals")


def describe_actions() -> str:
    """The functions with their arguments, one per line: for a prompt."""
    lines = (f"{name}{_signature(function)}  {function.__doc__}" for name, function in FUNCTIONS.items())
    return "\n".join(lines)


def _read_call(statement: ast.stmt) -> list[ToolCall]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise Unreadable(f"ValueError: {ast.unparse(statement):.60} is no call of a function by its name")
    name = call.func.id
    function = FUNCTIONS.get(name)
    if function is None:
        raise Unreadable(f"NameError: Invalid action type '{name:.40}'; {did_you_mean(name[:40], FUNCTIONS)}")
    try:
        given = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Unreadable(f"ValueError: the arguments of {name} are not all literals") from error
    try:
        bound = inspect.signature(function).bind(*given, **named)
    except TypeError as error:
        raise Unreadable(f"TypeError: {name}: {error}; expected {name}{_signature(function)}") from error
    return list(function(*bound.args, **bound.kwargs))


def _noop(wait_ms: float = 1000) -> Iterator[ToolCall]:
    """waits"""
    if _number(wait_ms, "wait_ms") > 0:
        yield ToolCall("wait", {"seconds": wait_ms / 1000})


def _mouse_move(x: float, y: float) -> Iterator[ToolCall]:
    """moves the pointer"""
    yield ToolCall("move", {"x": x, "y": y})


def _mouse_click(x: float, y: float, button: str = "left") -> Iterator[ToolCall]:
    """clicks there"""
    yield ToolCall(_button(button), {"x": x, "y": y})


def _mouse_dblclick(x: float, y: float, button: str = "left") -> Iterator[ToolCall]:
    """clicks there twice"""
    _left(button)
    yield ToolCall("double_click", {"x": x, "y": y})


def _mouse_drag_and_drop(from_x: float, from_y: float, to_x: float, to_y: float) -> Iterator[ToolCall]:
    """drags from one place to another"""
    yield ToolCall("drag", {"x": from_x, "y": from_y, "to_x": to_x, "to_y": to_y})


def _click(bid: str, button: str = "left") -> Iterator[ToolCall]:
    """clicks the element with that number on the picture"""
    yield ToolCall(_button(button), {"mark": _mark(bid)})


def _dblclick(bid: str, button: str = "left") -> Iterator[ToolCall]:
    """clicks the element twice"""
    _left(button)
    yield ToolCall("double_click", {"mark": _mark(bid)})


def _fill(bid: str, value: str) -> Iterator[ToolCall]:
    """replaces the text of a field of one line"""
    yield ToolCall("triple_click", {"mark": _mark(bid)})
    yield ToolCall("type", {"text": value}) if value else ToolCall("keys", {"keys": "backspace"})


def _press(bid: str, key_comb: str) -> Iterator[ToolCall]:
    """clicks the element and presses keys"""
    yield ToolCall("click", {"mark": _mark(bid)})
    yield from _keyboard_press(key_comb)


def _keyboard_press(key: str) -> Iterator[ToolCall]:
    """presses keys together, such as 'Enter' or 'Control+a'"""
    yield ToolCall("keys", {"keys": key.replace("ControlOrMeta", "Control") if isinstance(key, str) else key})


def _keyboard_type(text: str) -> Iterator[ToolCall]:
    """types into what has the focus"""
    yield ToolCall("type", {"text": text})


def _scroll(delta_x: float, delta_y: float) -> Iterator[ToolCall]:
    """scrolls by pixels, to the nearest notch of the wheel"""
    for name, delta, ways in (("delta_x", delta_x, ("left", "right")), ("delta_y", delta_y, ("up", "down"))):
        notches = round(abs(_number(delta, name)) / NOTCH) or int(delta != 0)
        if notches:
            yield ToolCall("scroll", {"direction": ways[delta > 0], "amount": notches})


def _goto(url: str) -> Iterator[ToolCall]:
    """opens an address"""
    yield ToolCall("goto", {"url": url})


def _go_back() -> Iterator[ToolCall]:
    """goes back to the page before"""
    yield ToolCall("back")


def _send_msg_to_user(text: str) -> Iterator[ToolCall]:
    """answers, which ends the episode"""
    yield ToolCall("answer", {"text": text})


def _report_infeasible(reason: str) -> Iterator[ToolCall]:
    """gives up, which ends the episode"""
    yield ToolCall("terminate", {"status": "failure"})


FUNCTIONS: dict[str, Callable[..., Iterator[ToolCall]]] = {
    "noop": _noop,
    "mouse_move": _mouse_move,
    "mouse_click": _mouse_click,
    "mouse_dblclick": _mouse_dblclick,
    "mouse_drag_and_drop": _mouse_drag_and_drop,
    "keyboard_press": _keyboard_press,
    "keyboard_type": _keyboard_type,
    "keyboard_insert_text": _keyboard_type,
    "scroll": _scroll,
    "click": _click,
    "dblclick": _dblclick,
    "fill": _fill,
    "press": _press,
    "goto": _goto,
    "go_back": _go_back,
    "send_msg_to_user": _send_msg_to_user,
    "report_infeasible": _report_infeasible,
}
"""Name -> what it is in our vocabulary."""


def _button(button: str) -> str:
    if button not in ("left", "right"):
        raise Unreadable(f"ValueError: the button is 'left' or 'right', got {shown(button, 40)}")
    return "click" if button == "left" else "right_click"


def _left(button: str) -> None:
    if button != "left":
        raise Unreadable(f"ValueError: only the left button clicks twice, got {shown(button, 40)}")


def _mark(bid: Any) -> int:
    digits = str(bid).strip("[] ")
    if isinstance(bid, bool) or not (digits.isascii() and digits.isdigit() and len(digits) <= 4):
        raise Unreadable(f"ValueError: a bid is a number on the picture, such as '3', got {shown(bid, 40)}")
    return int(digits)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e6:
        raise Unreadable(f"ValueError: {name} is a number, got {shown(value, 40)}")
    return float(value)


def _signature(function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    shown = (p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters)
    return f"({', '.join(shown)})"


def _unfenced(text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) >= 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        lines = lines[1:-1]
    return "\n".join(line.strip() for line in lines)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:120]
