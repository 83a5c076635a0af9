"""BrowserGym's action strings -> calls of our vocabulary of user interface actions. Read as syntax, never executed.

The functions, their arguments and the leniency (code fences, words around the calls) are those of `HighLevelActionSet`
in browsergym-core 0.14 (ServiceNow, Apache 2.0): https://github.com/ServiceNow/BrowserGym.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from uirl.environments.browser.page import NOTCH
from uirl.environments.ui.vocabulary import MAX_SCROLL
from uirl.errors import did_you_mean
from uirl.runtime.limits import LIMITS, MAX_BITS, shown
from uirl.types import ToolCall

LONGEST = 20_000
"""Characters of an action string."""
MOST_SCROLLS = 8
"""Calls that a long scroll becomes."""
_MOST_TRIES = 64
MOST_CALLS = 16
"""Calls in one action string."""


class Unreadable(ValueError):
    """Why a string is no action, as BrowserGym writes it into `last_action_error`."""


def read_actions(text: str) -> list[list[ToolCall]]:
    """Return the calls of each function in an action string, in order: `press` is two of ours, `noop(0)` is none.

    A string is one or more calls such as `mouse_click(3, 4)`, one per line, with literals as arguments, bare, in a
    Markdown code fence, or with words around them. Raises `Unreadable`.
    """
    if len(text) > LONGEST:
        raise Unreadable(f"ValueError: an action has at most {LONGEST} characters, got {len(text)}")
    code = _unfenced(text)
    try:
        body: Sequence[ast.stmt] = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        body = _scattered(code)
        if not body:
            reason = f"{type(error).__name__}: {_first_line(error)}; expected a call such as noop()"
            raise Unreadable(reason) from error
    if not body:
        raise Unreadable("ValueError: received an empty action; expected a call such as noop()")
    if len(body) > MOST_CALLS:
        raise Unreadable(f"ValueError: an action has at most {MOST_CALLS} calls, got {len(body)}")
    _check_syntax(body)
    return [_read_call(statement) for statement in body]


def _scattered(text: str) -> list[ast.stmt]:
    """Return the calls of known functions among words that are no code, from the first on."""
    found: list[ast.stmt] = []
    place = 0
    for _ in range(_MOST_TRIES):
        begin = _NAMED.search(text, place)
        if begin is None or len(found) > MOST_CALLS:
            break
        end = _closing(text, begin.end() - 1)
        place = begin.end() if end is None else end
        if end is None:
            continue
        try:
            found += ast.parse(text[begin.start() : end]).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            place = begin.end()
    return found


def _closing(text: str, opening: int) -> int | None:
    """Return the place behind the bracket that closes the one at `opening`, strings skipped; None: there is none."""
    depth = 0
    for part in _PARTS.finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(part.group(), 0)
        if depth == 0:
            return part.end()
    return None


def _check_syntax(level: Sequence[ast.AST]) -> None:
    """Raise `Unreadable` for syntax so deep that walking it would exhaust the stack, and for numbers so long (in
    hexadecimal) that Python refuses to write them."""
    for _ in range(LIMITS.depth):
        if not level:
            return
        for node in level:
            if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
                raise Unreadable(f"ValueError: a number has at most {MAX_BITS} bits, got {node.value.bit_length()}")
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    raise Unreadable(f"ValueError: an action is nested at most {LIMITS.depth} levels deep; expected plain literals")


def describe_actions() -> str:
    """Return the functions with their arguments, one per line: for a prompt."""
    lines = (f"{name}{_signature(function)}  {function.__doc__}" for name, function in FUNCTIONS.items())
    return "\n".join(lines)


def _read_call(statement: ast.stmt) -> list[ToolCall]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise Unreadable(f"ValueError: {_written(statement):.60} is no call of a function by its name")
    name = call.func.id
    function = FUNCTIONS.get(name)
    if function is None:
        raise Unreadable(f"NameError: Invalid action type '{name:.40}'; {did_you_mean(name[:40], FUNCTIONS)}")
    try:
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise Unreadable(f"ValueError: the arguments of {name} are not all literals") from error
    try:
        bound = inspect.signature(function).bind(*positional, **named)
    except TypeError as error:
        raise Unreadable(f"TypeError: {name}: {error}; expected {name}{_signature(function)}") from error
    return list(function(*bound.args, **bound.kwargs))


def _written(statement: ast.stmt) -> str:
    try:
        return ast.unparse(statement)
    except ValueError:  # an f-string with a control character, which older versions of Python cannot write
        return f"a statement ({type(statement).__name__})"


def _noop(wait_ms: float = 1000) -> Iterator[ToolCall]:
    """waits"""
    if _number(wait_ms, "wait_ms") > 0:
        yield ToolCall("wait", {"seconds": wait_ms / 1000})


def _send_msg_to_user(text: str) -> Iterator[ToolCall]:
    """answers, which ends the episode"""
    yield ToolCall("answer", {"text": text})


def _report_infeasible(reason: str) -> Iterator[ToolCall]:
    """gives up, which ends the episode"""
    yield ToolCall("terminate", {"status": "failure"})


def _fill(bid: str, value: str, enable_autocomplete_menu: bool = False) -> Iterator[ToolCall]:
    """replaces what a field holds"""
    if not enable_autocomplete_menu or not isinstance(value, str) or not value:
        yield ToolCall("fill", {"mark": _mark(bid), "value": value})
        return
    yield ToolCall("fill", {"mark": _mark(bid), "value": value[:-1]})
    yield ToolCall("type", {"text": value[-1]})


def _select_option(bid: str, options: str | list[str]) -> Iterator[ToolCall]:
    """chooses of a list, by value or text"""
    yield ToolCall("select", {"mark": _mark(bid), "options": options})


def _click(bid: str, button: str = "left", modifiers: Sequence[str] = ()) -> Iterator[ToolCall]:
    """clicks the element with that number"""
    yield ToolCall(_button(button), {"mark": _mark(bid), **_held(modifiers)})


def _dblclick(bid: str, button: str = "left", modifiers: Sequence[str] = ()) -> Iterator[ToolCall]:
    """clicks the element twice"""
    yield from _twice(button, {"mark": _mark(bid), **_held(modifiers)})


def _hover(bid: str) -> Iterator[ToolCall]:
    """moves the pointer onto the element"""
    yield ToolCall("move", {"mark": _mark(bid)})


def _press(bid: str, key_comb: str) -> Iterator[ToolCall]:
    """gives the element the keyboard and presses keys"""
    yield ToolCall("focus", {"mark": _mark(bid)})
    yield from _keyboard_press(key_comb)


def _focus(bid: str) -> Iterator[ToolCall]:
    """gives the element the keyboard"""
    yield ToolCall("focus", {"mark": _mark(bid)})


def _clear(bid: str) -> Iterator[ToolCall]:
    """empties a field"""
    yield ToolCall("fill", {"mark": _mark(bid), "value": ""})


def _drag_and_drop(from_bid: str, to_bid: str) -> Iterator[ToolCall]:
    """drags one element onto another"""
    yield ToolCall("drag", {"mark": _mark(from_bid), "to_mark": _mark(to_bid)})


def _upload_file(bid: str, file: str | list[str]) -> Iterator[ToolCall]:
    """clicks the element and chooses files of the task"""
    yield ToolCall("upload", {"mark": _mark(bid), "files": file})


def _scroll(delta_x: float, delta_y: float) -> Iterator[ToolCall]:
    """scrolls by pixels, to the nearest notch of the wheel"""
    yield from _wheel({}, delta_x, delta_y)


def _scroll_at(x: int, y: int, dx: int, dy: int) -> Iterator[ToolCall]:
    """scrolls what is there by pixels, to the nearest notch of the wheel"""
    yield from _wheel({"x": x, "y": y}, dx, dy)


def _mouse_move(x: float, y: float) -> Iterator[ToolCall]:
    """moves the pointer"""
    yield ToolCall("move", {"x": x, "y": y})


def _mouse_up(x: float, y: float, button: str = "left") -> Iterator[ToolCall]:
    """lets a button go there"""
    yield ToolCall("mouse_up", {"x": x, "y": y, "button": button})


def _mouse_down(x: float, y: float, button: str = "left") -> Iterator[ToolCall]:
    """presses a button there and holds it"""
    yield ToolCall("mouse_down", {"x": x, "y": y, "button": button})


def _mouse_click(x: float, y: float, button: str = "left") -> Iterator[ToolCall]:
    """clicks there"""
    yield ToolCall(_button(button), {"x": x, "y": y})


def _mouse_dblclick(x: float, y: float, button: str = "left") -> Iterator[ToolCall]:
    """clicks there twice"""
    yield from _twice(button, {"x": x, "y": y})


def _mouse_drag_and_drop(from_x: float, from_y: float, to_x: float, to_y: float) -> Iterator[ToolCall]:
    """drags from one place to another"""
    yield ToolCall("drag", {"x": from_x, "y": from_y, "to_x": to_x, "to_y": to_y})


def _mouse_upload_file(x: float, y: float, file: str | list[str]) -> Iterator[ToolCall]:
    """clicks there and chooses files of the task"""
    yield ToolCall("upload", {"x": x, "y": y, "files": file})


def _keyboard_down(key: str) -> Iterator[ToolCall]:
    """presses a key and holds it"""
    yield ToolCall("key_down", {"key": key})


def _keyboard_up(key: str) -> Iterator[ToolCall]:
    """lets a key go"""
    yield ToolCall("key_up", {"key": key})


def _keyboard_press(key: str) -> Iterator[ToolCall]:
    """presses keys together, such as 'Enter' or 'Control+a'"""
    capital = isinstance(key, str) and len(key) == 1 and "A" <= key <= "Z"
    yield ToolCall("keys", {"keys": f"shift+{key}" if capital else key})


def _keyboard_type(text: str) -> Iterator[ToolCall]:
    """types into what has the focus"""
    yield ToolCall("type", {"text": text})


def _keyboard_insert_text(text: str) -> Iterator[ToolCall]:
    """puts text into what has the focus, without keys"""
    yield ToolCall("insert", {"text": text})


def _go_back() -> Iterator[ToolCall]:
    """goes back to the page before"""
    yield ToolCall("back")


def _go_forward() -> Iterator[ToolCall]:
    """goes forward again"""
    yield ToolCall("forward")


def _goto(url: str) -> Iterator[ToolCall]:
    """opens an address"""
    yield ToolCall("goto", {"url": url})


def _tab_close() -> Iterator[ToolCall]:
    """closes the tab that is shown"""
    yield ToolCall("close_tab")


def _tab_focus(index: int) -> Iterator[ToolCall]:
    """shows another tab, from 0"""
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise Unreadable(f"ValueError: index is that of an open tab, from 0, got {shown(index, 40)}")
    yield ToolCall("switch_tab", {"tab": index + 1})


def _new_tab() -> Iterator[ToolCall]:
    """opens an empty tab and shows it"""
    yield ToolCall("new_tab")


FUNCTIONS: dict[str, Callable[..., Iterator[ToolCall]]] = {
    function.__name__[1:]: function
    for function in (
        *(_noop, _send_msg_to_user, _report_infeasible, _scroll, _fill, _select_option, _click, _dblclick, _hover),
        *(_press, _focus, _clear, _drag_and_drop, _upload_file, _scroll_at, _mouse_move, _mouse_up, _mouse_down),
        *(_mouse_click, _mouse_dblclick, _mouse_drag_and_drop, _mouse_upload_file, _keyboard_down, _keyboard_up),
        *(_keyboard_press, _keyboard_type, _keyboard_insert_text, _go_back, _go_forward, _goto, _tab_close),
        *(_tab_focus, _new_tab),
    )
}
"""Name -> what it is in our vocabulary: all of `HighLevelActionSet`, in its order."""
_NAMED = re.compile(rf"\b(?:{'|'.join(FUNCTIONS)})\s*\(")
_PARTS = re.compile(r"""[()]|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")


_CLICKS = {"left": "click", "right": "right_click", "middle": "middle_click"}


def _button(button: Any) -> str:
    if not isinstance(button, str) or button not in _CLICKS:
        raise Unreadable(f"ValueError: the button is 'left', 'middle' or 'right', got {shown(button, 40)}")
    return _CLICKS[button]


def _twice(button: Any, where: dict[str, Any]) -> Iterator[ToolCall]:
    name = _button(button)
    if name == "click":
        yield ToolCall("double_click", where)
    else:  # a page sees no double click of another button than the left
        yield from (ToolCall(name, where) for _ in range(2))


def _held(modifiers: Any) -> dict[str, Any]:
    if not isinstance(modifiers, (list, tuple)) or not all(isinstance(key, str) for key in modifiers):
        raise Unreadable(f"ValueError: modifiers are a list such as ['Shift'], got {shown(modifiers, 40)}")
    return {"modifiers": list(modifiers)} if modifiers else {}


def _wheel(where: dict[str, Any], across: Any, down: Any) -> Iterator[ToolCall]:
    for name, delta, ways in (("delta_x", across, ("left", "right")), ("delta_y", down, ("up", "down"))):
        notches = round(abs(_number(delta, name)) / NOTCH) or int(delta != 0)
        for _ in range(min(-(-notches // MAX_SCROLL), MOST_SCROLLS)):
            part = min(notches, MAX_SCROLL)
            yield ToolCall("scroll", {"direction": ways[delta > 0], "amount": part, **where})
            notches -= part


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
    """Return what stands in code fences, where there are any; the whole text else."""
    fenced = re.findall(r"```(?:python\b|json\b|\w*\n)?(.*?)```", text, re.DOTALL)
    return "\n".join(line.strip() for line in ("\n".join(fenced) if fenced else text).strip().splitlines())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:120]
