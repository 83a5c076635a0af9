"""A strict reading of one JSON object of a request: errors name the field, nothing is dropped without a word."""

from __future__ import annotations

import json
from typing import Any

from uirl.errors import did_you_mean
from uirl.runtime import limits
from uirl.runtime.limits import InputError, LimitError, check_whole, clip, sample
from uirl.serving.problems import bad_request

_NAMES = {str: "a string", bool: "true or false", int: "a whole number", float: "a number", list: "a list"}
_ABSENT: Any = object()
MOST_NOTED = 20
"""Names of fields that are noted where they are passed over."""


class Fields:
    """The fields of an object, taken one by one; `close` refuses what nobody took. A null counts as absent."""

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise bad_request(f"expected an object, got {shown(value)}", where or None)
        self._where = where
        self._left = {str(name): item for name, item in value.items() if item is not None}
        self._known: set[str] = set()

    def take(self, name: str, kind: type, default: Any = _ABSENT) -> Any:
        """The value of `name`, of type `kind` (whole numbers pass for float, booleans never for numbers).

        Raises a 400 where the type is another, and where the field is missing and has no default.
        """
        self._known.add(name)
        if name not in self._left:
            if default is _ABSENT:
                raise bad_request("is missing", self.at(name), "missing_required_parameter")
            return default
        value = self._left.pop(name)
        wanted: Any = (int, float) if kind is float else kind
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
            raise bad_request(
                f"expected {_NAMES.get(kind, 'an object')}, got {shown(value)}", self.at(name), "invalid_type"
            )
        return whole_text(value, self.at(name)) if kind is str else value

    def raw(self, name: str) -> Any:
        """The value of `name` as it came; None: absent."""
        self._known.add(name)
        return self._left.pop(name, None)

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Raises a 400 with the reason `why` unless `name` is absent or says one of `allowed`, which change nothing."""
        value = self.raw(name)
        if value is not None and value not in allowed:
            raise bad_request(f"{shown(value)} is not supported: {why}", self.at(name), "unsupported_value")

    def ignore(self, *names: str) -> None:
        """Fields that have no meaning for a model of one's own (who asks, what a provider should keep)."""
        for name in names:
            self.raw(name)

    def rest(self) -> list[str]:
        """The names of the fields that nobody took, at most 20 of them, shortened: what is passed over is noted."""
        left = [clip(name).encode(errors="replace").decode() for name in list(self._left)[:MOST_NOTED]]
        self._left.clear()
        return left

    def at(self, name: str) -> str:
        """The path of a field, for errors."""
        return f"{self._where}.{name}" if self._where else name

    def close(self) -> None:
        """Raises a 400 for the first field that nobody took."""
        for name in self._left:
            raise bad_request(
                f"is not known here; {did_you_mean(name, self._known)}", self.at(clip(name)), "unknown_parameter"
            )


def whole_text(text: str, where: str) -> str:
    """`text` itself; raises a 400 for half characters (lone surrogates), which no tokenizer takes."""
    try:
        check_whole(text, where)
    except InputError as error:
        raise bad_request(str(error).removeprefix(f"{where} "), where) from None
    return text


def shown(value: Any) -> str:
    """A value for an error message, shortened, as the client wrote it."""
    text = repr(sample(value, 61)) if isinstance(value, str) else json.dumps(sample(value, 61))
    return clip(text)


def read_json(text: bytes | bytearray | str, param: str | None = None) -> Any:
    """The JSON of a request body, or of the text of the field `param`, within the limits of `uirl.runtime.limits`.
    Raises a 400 for anything else, NaN and Infinity included."""
    where = param or "the body"
    try:
        return limits.read_json(text, where=where)
    except InputError as error:
        code = "limit_exceeded" if isinstance(error, LimitError) else "invalid_json"
        raise bad_request(str(error).removeprefix(f"{param} "), param, code) from None
