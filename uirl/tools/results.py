"""What tools return -> plain data of bounded length. Anything else is ours to mend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from uirl.errors import EnvironmentFailure
from uirl.runtime.limits import InputError, LimitError, as_plain
from uirl.tools.base import ToolError


def read_result(value: Any, limit: int | None, where: str) -> Any:
    """Return `value` as plain data (`as_plain`), cut to `limit` characters.

    Data whose JSON is longer than `limit` becomes the beginning of that text. Raises `EnvironmentFailure`, beginning
    with `where`, for what JSON does not hold, and `ToolError` for data beyond the limits of `uirl.runtime.limits`:
    how much a tool finds is the policy's choice.
    """
    try:
        plain = as_plain(value, "the result", whole=True)
    except LimitError as error:
        raise ToolError(f"{error}; ask for less") from None
    except InputError as error:
        raise EnvironmentFailure(f"{where} returned what cannot be kept: {error}") from None
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return plain if limit is None or len(text) <= limit else cut(text, limit)


def structured_value(structured: Any) -> Any:
    """Return the structured content of an MCP result: servers wrap what is no object as {'result': value}."""
    alone = isinstance(structured, Mapping) and structured.keys() == {"result"}
    return structured["result"] if alone else structured


def cut(text: str, limit: int | None) -> str:
    """Return the first `limit` characters, and how many are missing; None: all of them."""
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]}... (cut, {len(text) - limit} more characters)"
