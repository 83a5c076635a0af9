"""`CalculatorTool`: arithmetic, exact where it can be, bounded everywhere. `CalendarTool`: days from a date."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from datetime import date as Date
from datetime import timedelta
from typing import Any

from uirl.tools.base import Tool, ToolError

MAX_CHARS = 500
MAX_BITS = 4096
"""Of an exact integer: about 1200 digits."""
MAX_FACTORIAL = 400

Number = int | float

_CONSTANTS = {"pi": math.pi, "e": math.e}
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class CalculatorTool(Tool):
    """Exact for integers, 12 significant digits for the rest; what would take long or grow large is refused at once."""

    name = "calculator"
    description = (
        "Evaluates an arithmetic expression: + - * / // % ** ( ), sqrt, abs, round, floor, ceil, min, max, exp, log, "
        "log2, log10, sin, cos, tan, factorial, gcd, pi, e."
    )
    runs_inline = True

    def execute(self, expression: str) -> Number:
        """Return the value of an expression.

        Args:
            expression: For example (2 + 3) * 4.
        """
        return _trimmed(_value_of(_parse(expression)))

    def __deepcopy__(self, memo: dict[int, Any]) -> CalculatorTool:
        return self  # it keeps nothing: parallel episodes share it


class CalendarTool(Tool):
    """Dates as YYYY-MM-DD, of the Gregorian calendar."""

    name = "calendar"
    description = "Returns the date so many days after another."
    runs_inline = True

    def execute(self, date: str, days: int) -> str:
        """Return the date `days` after `date`.

        Args:
            date: As YYYY-MM-DD.
            days: Negative for the date before.
        """
        try:
            return (Date.fromisoformat(date.strip()) + timedelta(days=days)).isoformat()
        except ValueError:
            raise ToolError(f"cannot read the date {date[:40]!r}; expected YYYY-MM-DD") from None
        except OverflowError:
            raise ToolError(f"there is no date {days} days from {date[:40]}; years have 1 to 4 digits") from None

    def __deepcopy__(self, memo: dict[int, object]) -> CalendarTool:
        return self  # it keeps nothing: parallel episodes share it


def _parse(expression: str) -> ast.expr:
    text = expression.strip()
    if not text:
        raise ToolError("the expression is empty; expected e.g. 2 + 3")
    if len(text) > MAX_CHARS:
        raise ToolError(f"the expression has {len(text)} characters; expected at most {MAX_CHARS}")
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "too deep or too long"
        raise ToolError(f"cannot read {text[:60]!r}: {reason}; expected numbers, + - * / // % ** and ( )") from None


def _value_of(node: ast.expr) -> Number:
    try:
        return _evaluate(node)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except OverflowError:
        raise ToolError("the result is too large") from None
    except RecursionError:
        raise ToolError("the expression is nested too deep") from None


def _evaluate(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=bool() | str() | bytes() | complex() | None):
            raise ToolError(f"{ast.unparse(node)[:40]} is no number")
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _evaluate(operand)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_combine(op, _evaluate(left), _evaluate(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_call(name, [_evaluate(argument) for argument in args]))
    raise ToolError(f"{ast.unparse(node)[:60]!r} cannot be calculated; known names: {', '.join(_KNOWN)}")


def _combine(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.Pow):
        return _power(left, right)
    if isinstance(op, ast.Div):
        exact = isinstance(left, int) and isinstance(right, int) and left % right == 0
        return left // right if exact else left / right
    if type(op) in _OPERATORS:
        result: Number = _OPERATORS[type(op)](left, right)
        return result
    hint = "; a power is written **" if isinstance(op, ast.BitXor) else ""
    raise ToolError(f"the operator {type(op).__name__} is not known; expected + - * / // % **{hint}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0 and abs(base) > 1:
        # Known before it is computed: b bits to the n-th power have more than (b - 1) * n bits.
        if (base.bit_length() - 1) * exponent > MAX_BITS:
            raise ToolError(f"the result is too large; integers have at most {MAX_BITS} bits")
        return int(base**exponent)
    result = base**exponent
    if isinstance(result, complex):
        raise ToolError("a negative number to a broken power is no real number")
    value: Number = result
    return value


def _call(name: str, values: list[Number]) -> Number:
    low, high, function = _FUNCTIONS[name]
    if not low <= len(values) <= high:
        count = f"{low}" if low == high else f"{low} or more" if high > 9 else f"{low} to {high}"
        raise ToolError(f"{name} got {len(values)} arguments, expected {count}")
    try:
        result: Number = function(*values)
    except (ValueError, TypeError) as error:
        raise ToolError(f"{name}({', '.join(_shown(value) for value in values)}): {error}") from None
    return result


def _bounded(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ToolError(f"the result is too large; integers have at most {MAX_BITS} bits")
    elif not math.isfinite(value):
        raise ToolError("the result is too large or no number")
    return value


def _trimmed(value: Number) -> Number:
    """Return the number without the rounding errors of binary fractions: 0.1 + 0.2 is 0.3, and 6.0 is 6."""
    if isinstance(value, int):
        return value
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _shown(value: Number) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:20]


def _round(value: Number, digits: Number = 0) -> Number:
    # int.__round__ computes 10 ** -digits.
    if not isinstance(digits, int) or abs(digits) > 100:
        raise ValueError("the digits must be an integer from -100 to 100")
    return round(value, digits) if digits else round(value)


def _factorial(n: Number) -> int:
    if not isinstance(n, int) or not 0 <= n <= MAX_FACTORIAL:
        raise ValueError(f"expected an integer from 0 to {MAX_FACTORIAL}")
    return math.factorial(n)


_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "abs": (1, 1, abs),
    "ceil": (1, 1, math.ceil),
    "cos": (1, 1, math.cos),
    "exp": (1, 1, math.exp),
    "factorial": (1, 1, _factorial),
    "floor": (1, 1, math.floor),
    "gcd": (1, 100, math.gcd),
    "log": (1, 2, math.log),
    "log10": (1, 1, math.log10),
    "log2": (1, 1, math.log2),
    "max": (2, 100, max),
    "min": (2, 100, min),
    "round": (1, 2, _round),
    "sin": (1, 1, math.sin),
    "sqrt": (1, 1, math.sqrt),
    "tan": (1, 1, math.tan),
}
"""Name -> least and most arguments, function."""
_KNOWN = sorted([*_CONSTANTS, *_FUNCTIONS])
