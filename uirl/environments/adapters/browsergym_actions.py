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
    return "\n".join(f"{name}{_signature(calls)}  {purpose}" for name, purpose, calls in _FUNCTIONS)


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
    return function(*bound.args, **bound.kwargs)


def _written(statement: ast.stmt) -> str:
    try:
        return ast.unparse(statement)
    except ValueError:  # an f-string with a control character, which older versions of Python cannot write
        return f"a statement ({type(statement).__name__})"


def _one(action: str, **arguments: Any) -> list[ToolCall]:
    return [ToolCall(action, arguments)]


def _noop(wait_ms: Any = 1000) -> list[ToolCall]:
    return _one("wait", seconds=wait_ms / 1000) if _number(wait_ms, "wait_ms") > 0 else []


def _fill(bid: Any, value: Any, enable_autocomplete_menu: Any = False) -> list[ToolCall]:
    if not enable_autocomplete_menu or not isinstance(value, str) or not value:
        return _one("fill", mark=_mark(bid), value=value)
    return _one("fill", mark=_mark(bid), value=value[:-1]) + _one("type", text=value[-1])


def _keyboard_press(key: Any) -> list[ToolCall]:
    capital = isinstance(key, str) and len(key) == 1 and "A" <= key <= "Z"
    return _one("keys", keys=f"shift+{key}" if capital else key)


def _tab_focus(index: Any) -> list[ToolCall]:
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise Unreadable(f"ValueError: index is that of an open tab, from 0, got {shown(index, 40)}")
    return _one("switch_tab", tab=index + 1)


Calls = Callable[..., list[ToolCall]]
_FUNCTIONS: tuple[tuple[str, str, Calls], ...] = (
    ("noop", "waits", _noop),
    ("send_msg_to_user", "answers, which ends the episode", lambda text: _one("answer", text=text)),
    ("report_infeasible", "gives up, which ends the episode", lambda reason: _one("terminate", status="failure")),
    (
        "scroll",
        "scrolls by pixels, to the nearest notch of the wheel",
        lambda delta_x, delta_y: list(_wheel({}, delta_x, delta_y)),
    ),
    ("fill", "replaces what a field holds", _fill),
    (
        "select_option",
        "chooses of a list, by value or text",
        lambda bid, options: _one("select", mark=_mark(bid), options=options),
    ),
    (
        "click",
        "clicks the element with that number",
        lambda bid, button="left", modifiers=(): _one(_button(button), mark=_mark(bid), **_held(modifiers)),
    ),
    (
        "dblclick",
        "clicks the element twice",
        lambda bid, button="left", modifiers=(): _twice(button, mark=_mark(bid), **_held(modifiers)),
    ),
    ("hover", "moves the pointer onto the element", lambda bid: _one("move", mark=_mark(bid))),
    (
        "press",
        "gives the element the keyboard and presses keys",
        lambda bid, key_comb: _one("focus", mark=_mark(bid)) + _keyboard_press(key_comb),
    ),
    ("focus", "gives the element the keyboard", lambda bid: _one("focus", mark=_mark(bid))),
    ("clear", "empties a field", lambda bid: _one("fill", mark=_mark(bid), value="")),
    (
        "drag_and_drop",
        "drags one element onto another",
        lambda from_bid, to_bid: _one("drag", mark=_mark(from_bid), to_mark=_mark(to_bid)),
    ),
    (
        "upload_file",
        "clicks the element and chooses files of the task",
        lambda bid, file: _one("upload", mark=_mark(bid), files=file),
    ),
    (
        "scroll_at",
        "scrolls what is there by pixels, to the nearest notch of the wheel",
        lambda x, y, dx, dy: list(_wheel({"x": x, "y": y}, dx, dy)),
    ),
    ("mouse_move", "moves the pointer", lambda x, y: _one("move", x=x, y=y)),
    ("mouse_up", "lets a button go there", lambda x, y, button="left": _one("mouse_up", x=x, y=y, button=button)),
    (
        "mouse_down",
        "presses a button there and holds it",
        lambda x, y, button="left": _one("mouse_down", x=x, y=y, button=button),
    ),
    ("mouse_click", "clicks there", lambda x, y, button="left": _one(_button(button), x=x, y=y)),
    ("mouse_dblclick", "clicks there twice", lambda x, y, button="left": _twice(button, x=x, y=y)),
    (
        "mouse_drag_and_drop",
        "drags from one place to another",
        lambda from_x, from_y, to_x, to_y: _one("drag", x=from_x, y=from_y, to_x=to_x, to_y=to_y),
    ),
    (
        "mouse_upload_file",
        "clicks there and chooses files of the task",
        lambda x, y, file: _one("upload", x=x, y=y, files=file),
    ),
    ("keyboard_down", "presses a key and holds it", lambda key: _one("key_down", key=key)),
    ("keyboard_up", "lets a key go", lambda key: _one("key_up", key=key)),
    ("keyboard_press", "presses keys together, such as 'Enter' or 'Control+a'", _keyboard_press),
    ("keyboard_type", "types into what has the focus", lambda text: _one("type", text=text)),
    ("keyboard_insert_text", "puts text into what has the focus, without keys", lambda text: _one("insert", text=text)),
    ("go_back", "goes back to the page before", lambda: _one("back")),
    ("go_forward", "goes forward again", lambda: _one("forward")),
    ("goto", "opens an address", lambda url: _one("goto", url=url)),
    ("tab_close", "closes the tab that is shown", lambda: _one("close_tab")),
    ("tab_focus", "shows another tab, from 0", _tab_focus),
    ("new_tab", "opens an empty tab and shows it", lambda: _one("new_tab")),
)
"""All of `HighLevelActionSet`, in its order: name, what it does, and its calls in our vocabulary."""
FUNCTIONS = {name: calls for name, _, calls in _FUNCTIONS}
_NAMED = re.compile(rf"\b(?:{'|'.join(FUNCTIONS)})\s*\(")
_PARTS = re.compile(r"""[()]|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")


_CLICKS = {"left": "click", "right": "right_click", "middle": "middle_click"}


def _button(button: Any) -> str:
    if not isinstance(button, str) or button not in _CLICKS:
        raise Unreadable(f"ValueError: the button is 'left', 'middle' or 'right', got {shown(button, 40)}")
    return _CLICKS[button]


def _twice(button: Any, **where: Any) -> list[ToolCall]:
    name = _button(button)
    # a page sees no double click of another button than the left
    return _one("double_click", **where) if name == "click" else _one(name, **where) * 2


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
