"""What tools return -> plain data of bounded length. Anything else is ours to mend."""

from __future__ import annotations

import json
import math
from typing import Any

from uirl.errors import EnvironmentFailure

MAX_DEPTH = 64
_MOST_BITS = 14_000
"""Of an int: Python writes no more than 4300 digits."""


def read_result(value: Any, limit: int | None, where: str) -> Any:
    """`value` as plain data, cut to `limit` characters; tuples become lists.

    Raises `EnvironmentFailure` for what JSON does not hold, beginning with `where`. Data whose JSON is longer than
    `limit` becomes the beginning of that text.
    """
    plain = _plain(value, where, "", 0)
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return plain if limit is None or len(text) <= limit else cut(text, limit)


def cut(text: str, limit: int | None) -> str:
    """The first `limit` characters, and how many are missing; None: all of them."""
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}... (cut, {len(text) - limit} more characters)"


def _plain(value: Any, where: str, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise EnvironmentFailure(f"{where} returned data nested more than {MAX_DEPTH} deep; expected plain data")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _whole_text(value, where, path)
    if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item, where, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {
            _whole_text(k, where, path): _plain(v, where, f"{path}[{k!r:.40}]", depth + 1) for k, v in value.items()
        }
    raise EnvironmentFailure(
        f"{where} returned {_describe(value)}{f' at {path}' if path else ''}; expected what JSON holds: text, finite "
        "numbers, True, False, None, lists, and dicts with text keys"
    )


def _whole_text(value: str, where: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EnvironmentFailure(
            f"{where} returned text with half a character (a lone surrogate) at {path or 'position'} {error.start}; "
            "decode bytes with errors='replace'"
        ) from None
    return str(value)


def _describe(value: Any) -> str:
    if isinstance(value, int):
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, dict):
        key = next(key for key in value if not isinstance(key, str))
        return f"a dict with the key {key!r:.40}"
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__})"
