"""CalculatorTool: exact where it can be, and no expression costs more than a moment."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uirl.tools import CalculatorTool, ToolRegistry
from uirl.tools.calculator import MAX_BITS, MAX_CHARS

registry = ToolRegistry([CalculatorTool()])


def calculate(expression: str) -> tuple[bool, Any]:
    return registry.execute_tool("calculator", expression=expression)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", 14),
        ("-2 ** 2", -4),
        ("7 // 2 - 7 % 4", 0),
        ("1 / 4", 0.25),
        ("0.1 + 0.2", 0.3),
        ("2 ** 100", 1267650600228229401496703205376),
        ("2 ** -2", 0.25),
        ("(-8) ** 3", -512),
        (str(10**50) + " / " + str(10**49), 10),
        ("(10 ** 30 + 1) * 3 / 3", 10**30 + 1),
        (" +5\n", 5),
        ("1_000 + 0x10", 1016),
        ("1e300 * 10", 1e301),
        ("-0.0", 0),
        ("sqrt(16) + abs(-2)", 6),
        ("max(1, 2.5, 2)", 2.5),
        ("round(2.567, 1)", 2.6),
        ("factorial(20)", 2432902008176640000),
        ("gcd(12, 18)", 6),
        ("log(8, 2)", 3),
        ("cos(pi)", -1),
    ],
)
def test_values(expression: str, value: float) -> None:
    success, result = calculate(expression)
    assert (success, result, type(result)) == (True, value, type(value))


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "empty"),
        ("2 +", "cannot read '2 +': invalid syntax"),
        ("2 × 3", "invalid character '×'"),
        ("2 + 3 =", "cannot read"),
        ("x + 1", "'x' cannot be calculated; known names: abs"),
        ("__import__('os')", "cannot be calculated"),
        ("[1][0]", "cannot be calculated"),
        ("max(*[1, 2])", "cannot be calculated"),
        ("round(1, ndigits=2)", "cannot be calculated"),
        ("1 if 2 else 3", "cannot be calculated"),
        ("True + 1", "True is no number"),
        ("'a' * 3", "'a' is no number"),
        ("2 ^ 3", "a power is written **"),
        ("1 << 99999", "operator LShift is not known"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("(-8) ** 0.5", "no real number"),
        ("sqrt(-1)", "sqrt(-1): "),
        ("sqrt()", "sqrt got 0 arguments, expected 1"),
        ("max(1)", "max got 1 arguments, expected 2 or more"),
        ("gcd(1.5, 2)", "gcd(1.5, 2): "),
        ("factorial(401)", "expected an integer from 0 to 400"),
        ("round(1, -10 ** 9)", "from -100 to 100"),
        ("9 ** 9 ** 9", "too large"),
        ("10.0 ** 400", "too large"),
        ("exp(1000)", "too large"),
        ("2 ** 4000 * 2 ** 4000", "too large"),
        ("9" * 400 + "**2" * 20, "too large"),
        ("1" * (MAX_CHARS + 1), f"has {MAX_CHARS + 1} characters; expected at most {MAX_CHARS}"),
        ("(" * 250 + ")" * 250, "cannot read"),
        ("\0", "cannot read"),
    ],
)
def test_refusals_teach(expression: str, words: str) -> None:
    success, text = calculate(expression)
    assert not success
    assert words in text
    assert len(text) < 400


@pytest.mark.parametrize("unit", ["(", "-", "1+", "9**", "2*(", "max(1,", "not ", "9**9**9*", "factorial(400)*"])
def test_no_expression_is_deep_or_large_enough_to_hurt(unit: str) -> None:
    text = (unit * MAX_CHARS)[: MAX_CHARS - 1] + "1"
    success, result = calculate(text)
    assert not success or abs(result).bit_length() <= MAX_BITS


def test_little_stack_is_the_expressions_problem() -> None:
    def deeper(levels: int) -> tuple[bool, Any]:
        return deeper(levels - 1) if levels else calculate("-" * (MAX_CHARS - 1) + "1")

    success, text = deeper(sys.getrecursionlimit() - MAX_CHARS)
    assert not success
    assert "too deep" in text


def test_the_largest_integer_fits_and_the_next_does_not() -> None:
    assert calculate(f"2 ** {MAX_BITS - 1}") == (True, 2 ** (MAX_BITS - 1))
    assert calculate(f"2 ** {MAX_BITS - 1} * 2")[0] is False


trees = st.recursive(
    st.integers(0, 1000).map(str),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(trees, st.integers(1, 50))
def test_integers_are_exact(expression: str, divisor: int) -> None:
    exact = eval(expression)
    assert calculate(expression) == (True, exact)
    quotient = Fraction(exact, divisor)
    success, result = calculate(f"{expression} / {divisor}")
    assert success
    assert result == quotient if quotient.denominator == 1 else result == pytest.approx(float(quotient), rel=1e-11)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789.+-*/%()e pimax,sqrtfo^", max_size=40))
def test_no_text_makes_it_ours(expression: str) -> None:
    success, result = calculate(expression)
    assert isinstance(result, int | float) if success else isinstance(result, str)
