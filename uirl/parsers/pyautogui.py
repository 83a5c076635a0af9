"""Replies that are Python calls of pyautogui, as agents write them in OSWorld. Read as syntax, never executed."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from uirl.parsers.base import ActionParser, Tools
from uirl.parsers.json_calls import Unreadable, check_count, check_plain
from uirl.parsers.reply import Format, finder, illegible, read_reply, write_reply
from uirl.runtime.limits import shown
from uirl.thoughts import END_OF_THOUGHT, next_end_of_thought
from uirl.types import Action, ToolCall

LONGEST = 20_000
"""Characters of code in one reply: Python's own reader has limits of depth, and deep code needs length."""
_PLACE = ("x", "y")
FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "click": ("click", (*_PLACE, "clicks", "interval", "button", "duration")),
    "leftClick": ("click", (*_PLACE, "interval", "duration")),
    "doubleClick": ("double_click", (*_PLACE, "interval", "button", "duration")),
    "tripleClick": ("triple_click", (*_PLACE, "interval", "button", "duration")),
    "rightClick": ("right_click", (*_PLACE, "interval", "duration")),
    "middleClick": ("middle_click", (*_PLACE, "interval", "duration")),
    "moveTo": ("move", (*_PLACE, "duration")),
    "dragTo": ("drag", ("to_x", "to_y", "duration", "tween", "button")),
    "mouseDown": ("mouse_down", (*_PLACE, "button", "duration")),
    "mouseUp": ("mouse_up", (*_PLACE, "button", "duration")),
    "write": ("type", ("text", "interval")),
    "typewrite": ("type", ("text", "interval")),
    "press": ("keys", ("keys", "presses", "interval")),
    "hotkey": ("keys", ()),
    "keyDown": ("key_down", ("key",)),
    "keyUp": ("key_up", ("key",)),
    "scroll": ("scroll", ("clicks", *_PLACE)),
    "vscroll": ("scroll", ("clicks", *_PLACE)),
    "hscroll": ("scroll", ("clicks", *_PLACE)),
    "sleep": ("wait", ("seconds",)),
    "screenshot": ("screenshot", ()),
}
"""Function -> name of the action, and its arguments by position, where pyautogui's are called otherwise (`_RENAMED`) in
the words of the action."""
MODULES = ("pyautogui", "time")
WORDS = {
    "WAIT": ToolCall("wait"),
    "DONE": ToolCall("terminate", {"status": "success"}),
    "FAIL": ToolCall("terminate", {"status": "failure"}),
}
"""OSWorld's words for what is no call."""
_WRITTEN = {action: function for function, (action, _) in reversed(FUNCTIONS.items())}
_PRESSES = {
    ("left", 1): "click",
    ("left", 2): "double_click",
    ("left", 3): "triple_click",
    ("right", 1): "right_click",
    ("middle", 1): "middle_click",
}
_RENAMED = {"drag": {"x": "to_x", "y": "to_y"}, "type": {"message": "text"}}
_MANNER = ("interval", "duration", "tween")
"""How fast, and along which curve: an environment waits by itself until an action is done."""
_SIGNS = {"up": ("scroll", 1), "down": ("scroll", -1), "right": ("hscroll", 1), "left": ("hscroll", -1)}
_CODE = r"(?:(?:pyautogui|computer|time)\.\w|(?:WAIT|DONE|FAIL)[ \t]*+(?:```|$))"
_BEGIN = re.compile(rf"```(?:python|py)\b|```(?=\s*+{_CODE})|^[ \t]*+(?={_CODE})", re.MULTILINE)
_FENCE = re.compile(r"```(?:python|py)?")
_SOURCE = "<reply>"
warnings.filterwarnings("ignore", module=_SOURCE)  # what Python says of such code would fill the log of a run
_EXPECTED = "expected calls such as pyautogui.click(12, 34)"


class PyAutoGUIParser(ActionParser):
    """Reads calls of pyautogui, in a fence of Python or on lines of their own, as actions on a screen.

    `pyautogui.click(3, 4)` is the call `click` with `x` and `y`, `hotkey('ctrl', 'a')` is `keys` with 'ctrl+a'; the
    table is `FUNCTIONS`. `WAIT`, `DONE` and `FAIL` are `wait` and `terminate`. An action that pyautogui does not have
    is written `computer.NAME(ARGUMENT=VALUE)`. Arguments are literals. A `moveTo` just before a click, a button or a
    `dragTo` that names no place says where; imports, and pauses beside other calls, are passed over. Every other call
    is an action of its own, and an environment that takes one action a turn refuses more. Anything else in the code is
    a `parse_error`, and so is a fence that is not closed. A reply without code is plain text.
    """

    def parse(self, text: str) -> Action:
        """Return the action in `text`, in linear time; never raises."""
        return read_reply(_PYAUTOGUI, text)

    def render(self, action: Action) -> str:
        """Return the thought, then the calls in a fence of Python.

        Without a call it is the text of the action. Raises ValueError for names that are none in Python, and for an id.
        """
        return write_reply(_PYAUTOGUI, action)

    def describe(self) -> str:
        return _PYAUTOGUI.description


def _read(text: str, position: int, tools: Tools) -> tuple[list[ToolCall], int]:
    fence = _FENCE.match(text, position)
    start = fence.end() if fence else position
    stop = text.find("```", start)
    thought = next_end_of_thought(text, start, len(text) if stop < 0 else stop)
    if thought >= 0 or (fence and stop < 0):
        raise Unreadable("the code is not closed; expected ``` behind it")
    calls = _read_code(text[start : stop if stop >= 0 else len(text)])
    return calls, len(text) if stop < 0 else stop + 3 * bool(fence)


def _read_code(code: str) -> list[ToolCall]:
    if len(code) > LONGEST:
        raise Unreadable(f"code of {len(code)} characters; expected at most {LONGEST}")
    try:
        body = ast.parse(textwrap.dedent(code), _SOURCE).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "too deep or with a null character"
        raise Unreadable(f"no Python: {shown(why, 80)}; {_EXPECTED}") from None
    calls: list[ToolCall] = []
    pauses: list[ToolCall] = []
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        module, call = _read_statement(statement, calls)
        check_plain(dict(call.arguments), "the code")
        (pauses if call.name == "wait" and module in MODULES else calls).append(call)
        check_count(calls)
    return calls or pauses[:1]


def _read_statement(statement: ast.stmt, before: list[ToolCall]) -> tuple[str, ToolCall]:
    """Return the module whose function is called (of a word none), and the call; `before`: those before it."""
    match statement:
        case ast.Expr(ast.Name(word)) if word in WORDS:
            return "", WORDS[word]
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(module), function), positional, keywords)):
            pass
        case _:
            raise Unreadable(f"the code holds more than calls; {_EXPECTED}, with literals as arguments")
    if module not in (*MODULES, "computer"):
        raise Unreadable(f"unknown module {shown(module, 40)}; {_EXPECTED}")
    try:
        values = [ast.literal_eval(argument) for argument in positional]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise Unreadable(f"the arguments of {function:.40} are not all literals; {_EXPECTED}") from None
    if None in named:
        raise Unreadable(f"{function:.40} takes no **; {_EXPECTED}")
    arguments = {str(name): value for name, value in named.items()}
    if module == "computer":
        if values:
            raise Unreadable(f"computer.{function:.40} needs names before its arguments; {_EXPECTED}")
        return module, ToolCall(function, arguments)
    if function not in FUNCTIONS or (module == "time") != (function == "sleep"):
        known = ", ".join(name for name in FUNCTIONS if name != "sleep")
        raise Unreadable(f"no function {shown(f'{module}.{function}', 40)}; expected time.sleep or one of {known}")
    return module, _read_function(function, values, arguments, before)


def _read_function(function: str, values: list[Any], named: dict[str, Any], before: list[ToolCall]) -> ToolCall:
    action, parameters = FUNCTIONS[function]
    if function == "hotkey":
        keys = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        if not keys or not all(isinstance(key, str) for key in keys) or set(named) - set(_MANNER):
            raise Unreadable("hotkey needs names of keys; expected pyautogui.hotkey('ctrl', 'a')")
        return ToolCall(action, {"keys": "+".join(keys)})
    if len(values) > len(parameters):
        raise Unreadable(f"{function} takes at most {len(parameters)} arguments, got {len(values)}")
    given = dict(zip(parameters, values, strict=False))
    for name, value in named.items():
        name = _RENAMED.get(action, {}).get(name, name)
        if name in given:
            raise Unreadable(f"{function} got {shown(name, 40)} twice")
        given[name] = value
    given = {name: value for name, value in given.items() if name not in _MANNER and value is not None}
    if given.get("button") in ("primary", "secondary"):
        given["button"] = {"primary": "left", "secondary": "right"}[given["button"]]
    if action == "scroll":
        return _read_scroll(function, given)
    if action == "keys":
        return _read_press(given)
    if action.endswith("click"):
        action = _read_presses(function, action, given)
    if action == "drag" and given.pop("button", "left") != "left":
        raise Unreadable("dragTo drags with the left button; expected pyautogui.dragTo(x, y)")
    if _PLACE[0] in parameters or action == "drag":
        _find_place(function, action, given, before)
    return ToolCall(action, given)


def _find_place(function: str, action: str, given: dict[str, Any], before: list[ToolCall]) -> None:
    """Say where a pointer acts that was moved there by the call before, which then is none of its own."""
    if {"x", "y", "mark"} & set(given):
        return
    if before and before[-1].name == "move" and set(before[-1].arguments) == set(_PLACE):
        place = {**before.pop().arguments, **given}
        given.clear()
        given.update(place)
    elif action not in ("mouse_down", "mouse_up") and set(given) <= {"to_x", "to_y"}:
        raise Unreadable(f"{function} without a place; expected pyautogui.moveTo(x, y) before it, or x and y in it")


def _read_presses(function: str, action: str, given: dict[str, Any]) -> str:
    button, count = next(press for press, name in _PRESSES.items() if name == action)
    press = given.pop("button", button), given.pop("clicks", count)
    try:
        return _PRESSES[press]
    except (KeyError, TypeError):
        raise Unreadable(
            f"{function} of {shown(press, 60)}; expected one, two or three clicks, or one of the right or middle button"
        ) from None


def _read_press(given: dict[str, Any]) -> ToolCall:
    keys = given.pop("keys", None)
    if isinstance(keys, list) and len(keys) == 1:
        keys = keys[0]
    if not isinstance(keys, str) or given.pop("presses", 1) != 1 or given:
        raise Unreadable("press of other than one key; expected pyautogui.press('enter'), once a reply")
    return ToolCall("keys", {"keys": keys})


def _read_scroll(function: str, given: dict[str, Any]) -> ToolCall:
    notches = given.pop("clicks", None)
    if not isinstance(notches, int) or isinstance(notches, bool) or notches == 0:
        raise Unreadable(f"{function} needs a whole number of notches, up or right above 0; got {shown(notches, 40)}")
    sides = ("right", "left") if function == "hscroll" else ("up", "down")
    return ToolCall("scroll", {"direction": sides[notches < 0], **given, "amount": abs(notches)})


def _write(calls: Sequence[ToolCall], tools: Tools) -> str:
    lines = [_write_call(call, alone=len(calls) == 1) for call in calls]
    return "```python\n" + "\n".join(lines) + "\n```"


def _write_call(call: ToolCall, *, alone: bool) -> str:
    """Return the call in pyautogui's words where they read back, else as `computer.NAME`."""
    if call.id or not all(name.isidentifier() for name in (call.name, *call.arguments)):
        raise ValueError(f"Python holds names alone and no id, got {call}; use another action format")
    written = _in_words(call)
    if written is not None and (alone or not written.startswith("time.")):  # a pause beside others is passed over
        try:
            back = _read_code(written)
            if back == [call] and list(back[0].arguments) == list(call.arguments):
                return written
        except Unreadable:
            pass
    return f"computer.{call.name}({_arguments(call.arguments)})"


def _in_words(call: ToolCall) -> str | None:
    arguments = dict(call.arguments)
    word = next((word for word, meant in WORDS.items() if meant == call), None)
    if word is not None:
        return word
    if call.name == "wait":
        return f"time.sleep({_arguments(arguments, ('seconds',))})"
    if call.name == "keys" and isinstance(keys := arguments.get("keys"), str):
        parts = [*keys[:-2].split("+"), "+"] if keys.endswith("++") else keys.split("+")
        return (
            f"pyautogui.hotkey({', '.join(map(_literal, parts))})"
            if len(parts) > 1 and all(parts)
            else (f"pyautogui.press({_literal(keys)})")
        )
    if call.name == "scroll" and arguments.get("direction") in _SIGNS and isinstance(arguments.get("amount"), int):
        function, sign = _SIGNS[arguments.pop("direction")]
        arguments = {"clicks": sign * arguments.pop("amount"), **arguments}
        return f"pyautogui.{function}({_arguments(arguments, ('clicks',))})"
    if call.name == "drag" and {"x", "y", "to_x", "to_y"} == set(arguments):
        start, end = ([arguments[name] for name in names] for names in (("x", "y"), ("to_x", "to_y")))
        return f"pyautogui.moveTo({start[0]!r}, {start[1]!r})\npyautogui.dragTo({end[0]!r}, {end[1]!r})"
    function = _WRITTEN.get(call.name)
    if function is None:
        return None
    return f"pyautogui.{function}({_arguments(arguments, FUNCTIONS[function][1])})"


def _arguments(arguments: Mapping[str, Any], positions: Sequence[str] = ()) -> str:
    """Return the arguments in their order, by position as long as it is that of `positions`."""
    written, follows = [], True
    for number, (name, value) in enumerate(arguments.items()):
        follows = follows and number < len(positions) and positions[number] == name
        written.append(_literal(value) if follows else f"{name}={_literal(value)}")
    return ", ".join(written)


def _literal(value: object) -> str:
    r"""Return `value` as Python writes it, without what ends code or a thought: its first letter is a \u escape."""
    text = END_OF_THOUGHT.sub(lambda mark: illegible(mark[0]), repr(value))
    return text.replace("```", illegible("```"))


_PYAUTOGUI = Format(
    finder(_BEGIN),
    _read,
    _write,
    "Act by writing one call of pyautogui in a code block of Python, with literals as arguments; "
    "DONE says that the task is solved, FAIL that it cannot be.",
)
