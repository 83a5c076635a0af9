"""Bounds on what comes from outside: what is refused, in which words, and that it costs no more than its length."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from uirl.runtime.limits import (
    MAX_PIXELS,
    InputError,
    LimitError,
    Limits,
    as_plain,
    check_pixels,
    check_plain,
    check_size,
    clip,
    is_whole,
    read_json,
    sample,
    shown,
    whole_characters,
)

SMALL = Limits(size=1000, items=20, depth=4)
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@given(plain_data, st.booleans())
def test_json_within_the_limits_is_read_as_it_is(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert read_json(text) == value == read_json(text.encode())
    assert as_plain(value, "it") == value


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (b"x" * 1001, LimitError, "it has 1001 bytes; expected at most 1000"),
        ("x" * 1001, LimitError, "it has 1001 characters; expected at most 1000"),
        (json.dumps([0] * 20), LimitError, "too many values; expected at most 20"),
        (json.dumps({str(i): {} for i in range(20)}), LimitError, "too many values; expected at most 20"),
        (json.dumps(nested(5)), LimitError, "too deep; expected at most 4 levels"),
        ("[" * 900, LimitError, "too many values"),
        ("NaN", InputError, "NaN is not JSON; use a finite number"),
        ('{"a": [-Infinity]}', InputError, "-Infinity is not JSON"),
        ("[1e999]", InputError, "beyond 1e308"),
        ('{"a": 1', InputError, "it is not JSON: Expecting"),
        (b"\xff", InputError, "it is not JSON: 'utf-8' codec"),
        (b"", InputError, "it is not JSON"),
    ],
)
def test_what_is_refused(text: bytes | str, kind: type[InputError], message: str) -> None:
    with pytest.raises(InputError) as told:
        read_json(text, SMALL, "it")
    assert message in str(told.value)
    assert type(told.value) is kind


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    with pytest.raises(InputError, match="not JSON"):
        read_json("9" * 5000)


def test_a_thousand_levels_are_an_error_like_any_other() -> None:
    for text in ("[" * 200_000, json.dumps(nested(500)), '{"a":' * 200_000):
        with pytest.raises(LimitError, match="too deep"):
            read_json(text)
    with pytest.raises(LimitError, match="too deep"):
        as_plain(nested(5000), "it")


def test_commas_and_brackets_in_text_are_no_values() -> None:
    value = {"text": 'a, "b", [c], {d} \\' * 40}
    assert read_json(json.dumps(value), SMALL) == value


def test_limits_are_inclusive() -> None:
    assert read_json(json.dumps([0] * 19), SMALL) == [0] * 19  # and the list itself
    assert read_json(json.dumps(nested(4)), SMALL) == nested(4)
    check_size(b"x" * 1000, 1000, "it")
    check_pixels(1, MAX_PIXELS, "it")
    with pytest.raises(LimitError, match="it has 2 x 50000000 pixels; expected at most 50000000"):
        check_pixels(2, MAX_PIXELS, "it")


def test_half_characters_are_told_where_they_are_asked_for() -> None:
    for value in ("\ud800", {"a": ["\ud800"]}, {"\ud800": 1}):
        check_plain(value)
        assert as_plain(value, "it") == value
        with pytest.raises(InputError, match="half a character"):
            check_plain(value, whole=True)
        with pytest.raises(InputError, match="half a character"):
            as_plain(value, "it", whole=True)


def test_what_numpy_makes_becomes_plain() -> None:
    value = {"a": np.arange(3), "b": (np.float32(0.5), np.int64(7), np.bool_(True))}
    assert as_plain(value, "it") == {"a": [0, 1, 2], "b": [0.5, 7, True]}


def test_what_is_plain_for_a_store() -> None:
    @dataclass
    class Point:
        x: float
        tags: tuple[str, ...]

    value = {"at": Point(math.inf, ("a",)), "n": np.int64(3), "zero": np.array(2.5)}
    plain = as_plain(value, "it", finite=False, arrays=False, records={Point: ("x", "tags")})
    assert plain == {"at": {"x": math.inf, "tags": ["a"]}, "n": 3, "zero": 2.5}
    with pytest.raises(InputError, match=r"it\[0\] is array.* \(ndarray\); use \.tolist\(\)"):
        as_plain([np.zeros(2)], "it", arrays=False)
    with pytest.raises(InputError, match=r"it\.at is .*Point"):
        as_plain(value, "it", finite=False)


@pytest.mark.parametrize("flag", [True, np.bool_(True)])
def test_a_flag_stays_a_flag(flag: Any) -> None:
    assert as_plain([flag], "it") == [True]
    assert type(as_plain(flag, "it")) is bool


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [0, {"b": math.nan}]}, "it.a[1].b is nan (float); expected what JSON holds"),
        ({"a": {1: 2}}, "it.a has the key 1 (int); expected text keys"),
        ([object], "it[0] is <class 'object'>"),
        ({"x" * 1000: {1}}, "it.xxxx"),
        (np.zeros((1000, 1000)), "it holds too many values"),
        ([1 << 20_000], "it[0] is '<an int of 20001 bits>' (int)"),
    ],
)
def test_what_has_no_plain_form_is_named_by_its_path(value: Any, message: str) -> None:
    with pytest.raises(InputError) as told:
        as_plain(value, "it")
    assert str(told.value).startswith(message)
    assert len(str(told.value)) < 300


@example({"00": ["0000"]}, 7)
@given(plain_data, st.integers(4, 80))
def test_what_is_shown_is_the_beginning_of_the_whole(value: Any, most: int) -> None:
    assert shown(value, most) == clip(repr(value), most)
    assert clip(json.dumps(sample(value, most + 1)), most) == clip(json.dumps(value), most)


def test_showing_survives_what_cannot_be_written() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Broken()) == "a Broken that cannot be shown (RuntimeError)"
    assert len(shown(nested(5000))) == 60
    assert "20001 bits" in shown(1 << 20_000)


HOSTILE: dict[str, Callable[[int], str]] = {
    "lists": lambda n: "[" + "[]," * (n // 3) + "1]",
    "openings": lambda n: "[" * n,
    "objects": lambda n: "[" + '{"":1},' * (n // 7) + "1]",
    "quotes": lambda n: '"\\"' * (n // 3),
    "unclosed": lambda n: '"' + '\\"' * (n // 2),
    "strings": lambda n: '"a",' * (n // 4),
    "backslashes": lambda n: "\\" * n,
    "digits": lambda n: "1" * n,
    "fraction": lambda n: "0." + "1" * n,
    "keys": lambda n: "{" + ",".join(f'"{i}":0' for i in range(n // 10)) + "}",
    "text": lambda n: json.dumps("a, b [c] " * (n // 9)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_costs_no_more_than_the_length(name: str) -> None:
    """1 MB in far less than a second of CPU, whatever it is: super-linear work would take minutes."""
    text = HOSTILE[name](1_000_000)
    start = time.thread_time()
    with contextlib.suppress(InputError):
        value = read_json(text)
        as_plain(value, "it")
        assert len(shown(value)) <= 60
    assert time.thread_time() - start < 2.0


@pytest.mark.parametrize(
    ("text", "whole"), [("na\u00efve \U0001f600", None), ("a\ud83d", "a\ufffd"), ("\ud83d\ude00", "\U0001f600")]
)
def test_halves_of_characters_are_found_and_replaced(text: str, whole: str | None) -> None:
    assert is_whole(text) == (whole is None)
    assert whole_characters(text) == (text if whole is None else whole)
