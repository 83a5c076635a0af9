"""Bounds on what comes from outside, checked before the work that would follow.

A reply of a policy, a request of an agent, the answer of a page or a server may hold megabytes, a hundred thousand
items, a thousand levels, NaN, or a picture of gigapixels. Much of it is read on an event loop that other episodes
share, and what JSON lets through breaks stores and wires later. Everything here is linear in its input, looks at what
is cheap first (length, then structure, then values), stops at the first bound, and never recurses with the input.

An `InputError` says what was got, what is expected and what to do. Callers turn it into the error of their own boundary
(a 400, a `parse_error`, an `EnvironmentFailure`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from uirl.errors import UirlError, without_addresses

MAX_PIXELS = 50_000_000
"""Of one picture: 7000 x 7000. A screen of 4K has 8 million."""
MAX_CALLS = 100
"""Calls in one action: no model means more, and each costs a check and an answer."""
LARGEST_REWARD = 1e15
"""Rewards are float32, and learning takes the squares of their sums."""
MAX_BITS = 14_000
"""Of a whole number: Python writes no more than 4300 digits."""


class InputError(UirlError, ValueError):
    """Input that is refused before it is used: malformed, or with values that cannot be kept."""


class LimitError(InputError):
    """Input beyond a limit: too long, too many items, too deep, too many pixels."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one input may hold."""

    size: int = 64 * 2**20
    """Length of a text: bytes of bytes, characters of a str."""
    items: int = 2**18
    """Values of nested data, keys not counted. Reading so many takes some 0.2 s."""
    depth: int = 64
    """Levels of lists and objects inside each other."""


LIMITS = Limits()
"""For bodies of requests and answers."""


def read_json(
    text: bytes | bytearray | str, limits: Limits = LIMITS, where: str = "the JSON", *, constants: bool = False
) -> Any:
    """Return the value of a JSON text (bytes: UTF-8), within `limits` and fit to be kept (`check_plain`).
    `constants`: NaN and infinities, which Python's `json` writes, are read as None.

    Raises LimitError for what is too long, too many or too deep, before it is parsed where that can be told, and
    InputError for what is no JSON: NaN and infinities included, and numbers that Python reads as infinite.
    """
    check_size(text, limits.size, where)
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        _check_structure(decoded, limits.items, where)
        value = json.loads(decoded, parse_constant=(lambda _: None) if constants else _no_constant)
    except InputError:
        raise
    except RecursionError:
        raise _too_deep(where, limits.depth) from None
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {clip(str(error), 120)}") from None
    check_plain(value, limits, where)
    return value


def check_size(text: bytes | bytearray | str, max_length: int, where: str) -> None:
    """Raise LimitError for a text longer than `max_length`."""
    if len(text) > max_length:
        unit = "characters" if isinstance(text, str) else "bytes"
        raise LimitError(f"{where} has {len(text)} {unit}; expected at most {max_length}")


def check_plain(value: Any, limits: Limits = LIMITS, where: str = "the JSON", *, whole: bool = False) -> None:
    """Raise LimitError for more items or levels than `limits`, and InputError for infinite numbers; `whole`: also for
    text with half a character (`check_whole`).

    `value` is what `json.loads` makes; other kinds are not looked into (`as_plain` refuses them).
    """
    level, count = [value], 0
    for _ in range(limits.depth + 1):
        if not level:
            return
        count += len(level)
        if count > limits.items:
            raise _too_many(where, limits.items)
        kinds = set(map(type, level))
        if float in kinds and not all(math.isfinite(item) for item in level if type(item) is float):
            raise InputError(f"{where} holds a number beyond 1e308 or NaN; expected finite numbers")
        if whole and str in kinds:
            check_whole("".join(item for item in level if type(item) is str), where)
        if kinds.isdisjoint((dict, list)):
            return
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                if whole:
                    check_whole("".join(item), where)
                inner += item.values()
            elif type(item) is list:
                inner += item
            if len(inner) > limits.items:
                raise _too_many(where, limits.items)
        level = inner
    if level:
        raise _too_deep(where, limits.depth)


def check_whole(text: str, where: str) -> None:
    """Raise InputError for half a character: a lone surrogate, which a JSON escape makes and which neither UTF-8 nor a
    tokenizer takes."""
    if not is_whole(text):
        raise InputError(f"{where} holds half a character (a lone \\ud800-\\udfff escape); expected whole characters")


def is_whole(text: str) -> bool:
    """Return whether `text` has no lone surrogate: whether UTF-8 has it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_characters(text: str) -> str:
    """Return `text` with U+FFFD for every half of a surrogate pair, as tokenizers and browsers write what is no
    character; halves that stand together become the character they make."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def in_column(text: str) -> str:
    """Return `text` as a column has it: half of a surrogate pair, which UTF-8 has not, as its escape (`\\ud800`).

    Models and pages say such halves. The JSON of a record holds them as they are; a column is what is searched.
    """
    if text.isascii():
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")  # as JSON reads them
    return joined.encode("utf-8", "backslashreplace").decode()


def as_plain(
    value: Any,
    where: str,
    limits: Limits = LIMITS,
    *,
    whole: bool = False,
    finite: bool = True,
    arrays: bool = True,
    records: Mapping[type, Sequence[str]] = MappingProxyType({}),
) -> Any:
    """Return `value` as JSON has it: tuples become lists, mappings dicts, arrays and numbers of NumPy Python's.

    Raises LimitError beyond `limits`, and InputError for what has no such form, with the path to it.

    Args:
        value: nested data.
        where: what messages call it.
        limits: how much of it there may be.
        whole: refuse text with half a character.
        finite: refuse NaN and infinities, which Python's `json` writes and other readers do not take.
        arrays: take arrays as lists; else numbers of NumPy and tensors alone.
        records: class -> names of the attributes that make its instances a dict.
    """
    return _Copy(limits, whole, finite, arrays, records).of(value, (None, where), 0)


_SMALL = 2**63


@dataclass(slots=True)
class _Copy:
    """One walk of `as_plain`. A path is (path above, step), written out where something is wrong."""

    limits: Limits
    whole: bool
    finite: bool
    arrays: bool
    records: Mapping[type, Sequence[str]]
    items: int = 0

    def of(self, value: Any, path: tuple[Any, Any], depth: int) -> Any:
        self.items += 1
        if self.items > self.limits.items:
            raise _too_many(_written(path), self.limits.items)
        kind = type(value)
        if value is None or kind is bool or (kind is str and not self.whole):
            return value
        if (kind is float and not self.finite) or (kind is int and -_SMALL < value < _SMALL):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int) and value.bit_length() <= MAX_BITS:
            return int(value)
        if isinstance(value, float) and (not self.finite or math.isfinite(value)):
            return float(value)
        if depth > self.limits.depth:
            raise _too_deep(_written(path), self.limits.depth)
        if kind is dict or (kind not in self.records and isinstance(value, Mapping)):
            return {
                key if type(key) is str and not self.whole else self._key(key, path): self.of(
                    item, (path, key), depth + 1
                )
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.of(item, (path, i), depth + 1) for i, item in enumerate(value)]
        if names := self.records.get(type(value)):
            return {name: self.of(getattr(value, name), (path, name), depth + 1) for name in names}
        if hasattr(value, "tolist"):  # an array or a number of NumPy, without importing it
            return self._array(value, path, depth)
        expected = "text, finite numbers" if self.finite else "text, numbers"
        raise InputError(
            f"{_written(path)} is {shown(value)} ({type(value).__name__}); expected what JSON holds: {expected}, True, "
            "False, None, lists, and dicts with text keys"
        )

    def _array(self, value: Any, path: tuple[Any, Any], depth: int) -> Any:
        shape = getattr(value, "shape", None)
        if shape and not self.arrays:
            raise InputError(f"{_written(path)} is {shown(value)} ({type(value).__name__}); use .tolist()")
        if shape and math.prod(shape) > self.limits.items:
            raise _too_many(_written(path), self.limits.items)
        return self.of(value.tolist(), path, depth + 1)

    def _key(self, key: Any, path: tuple[Any, Any]) -> str:
        if not isinstance(key, str):
            raise InputError(
                f"{_written(path)} has the key {shown(key, 40)} ({type(key).__name__}); expected text keys"
            )
        return self._text(key, path)

    def _text(self, text: str, path: tuple[Any, Any]) -> str:
        if self.whole and not is_whole(text):
            check_whole(text, _written(path))  # a path is written out only where it is told
        return str(text)


def check_pixels(width: int, height: int, where: str, max_pixels: int = MAX_PIXELS) -> None:
    """Raise LimitError for a picture of more than `max_pixels` pixels. Call it with the size in the header, before the
    pixels are decoded."""
    if width * height > max_pixels:
        raise LimitError(f"{where} has {width} x {height} pixels; expected at most {max_pixels}: send it smaller")


def is_finite(value: Any) -> bool:
    """Return whether `value` is a finite number that fits a float: 1e400 written out as a whole number does not, and
    neither True nor False is a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def read_score(value: Any, where: str) -> float:
    """Return a reward or score of somebody else's code as a float: `float(value)`, whatever type it is of.

    Raises ValueError for NaN and for more than `LARGEST_REWARD`, beyond the range of a float included, and TypeError or
    ValueError for what is no number; the message begins with `where` ('the reward function').
    """
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not abs(score) <= LARGEST_REWARD:
        raise ValueError(f"{where} returned {shown(value)}; expected a finite number of at most {LARGEST_REWARD:g}")
    return score


def clip(text: str, max_chars: int = 60) -> str:
    """Return `text` for a message: whole, or its beginning with dots, `max_chars` characters long."""
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def shown(value: Any, max_chars: int = 60) -> str:
    """Return `repr(value)` without addresses, at most `max_chars` long; no more of a large value is written."""
    try:
        return clip(without_addresses(repr(sample(value, max_chars + 1))), max_chars)
    except Exception as error:  # somebody else's __repr__ may raise anything
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def in_words(error: BaseException, max_chars: int = 2000) -> str:
    """Return 'ValueError: why' for an exception of somebody else's, whose words may fail, be half characters, or fill
    the disk: whole characters, at most `max_chars` of its own."""
    name = type(error).__name__
    try:
        return f"{name}: {whole_characters(clip(str(error), max_chars))}"
    except Exception as other:  # somebody else's __str__ may raise anything
        return f"{name}: its words cannot be shown ({type(other).__name__})"


def sample(value: Any, max_chars: int) -> Any:
    """Return the beginning of nested data: enough that its first `max_chars` characters, written by `repr` or
    `json.dumps`, are those of the whole."""
    return _Sample(max_chars).of(value, 0)


@dataclass(slots=True)
class _Sample:
    left: int

    def of(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if isinstance(value, (str, bytes)):
            cut = value[: max(self.left, 0) + 1]
            self.left -= len(cut)
            return cut
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            return f"<an int of {value.bit_length()} bits>"
        if type(value) is dict:
            return self._pairs(value, depth)
        if type(value) in (list, tuple):
            return type(value)(self._items(value, depth))
        return value

    def _items(self, values: Any, depth: int) -> list[Any]:
        taken = []
        for item in values:
            if self.left < 0 or depth > 50:
                break
            taken.append(self.of(item, depth + 1))
        return taken

    def _pairs(self, values: dict[Any, Any], depth: int) -> dict[Any, Any]:
        taken = {}
        for key, item in values.items():
            if self.left < 0 or depth > 50:
                break
            short = self.of(key, depth + 1)  # before the value: that is how they are written
            taken[short] = self.of(item, depth + 1)
        return taken


# -- structure ------------------------------------------------------------------------------------------------------

# It always matches where a quote stands, closed or not, and gives nothing back: linear for every text.
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def _check_structure(text: str, max_items: int, where: str) -> None:
    """Raise LimitError for more than `max_items` values, before they are made."""
    if _marks(text) < max_items:
        return
    # Some of them may stand in strings, of which there are two to a value at most.
    bare, strings = _STRING.subn("", text, 2 * max_items + 1)
    if strings > 2 * max_items or _marks(bare) > 2 * max_items:
        raise _too_many(where, max_items)


def _marks(text: str) -> int:
    """Return at least the number of values in a JSON text, less one: all but the first follow a comma or an opening."""
    return text.count(",") + text.count("[") + text.count("{")


def _no_constant(name: str) -> NoReturn:
    raise InputError(f"{name} is not JSON; use a finite number")


def _too_many(where: str, max_items: int) -> LimitError:
    return LimitError(f"{where} holds too many values; expected at most {max_items}")


def _too_deep(where: str, max_depth: int) -> LimitError:
    return LimitError(f"{where} is nested too deep; expected at most {max_depth} levels of lists and objects")


def _written(path: tuple[Any, Any]) -> str:
    steps = []
    above: tuple[Any, Any] | None = path
    while above is not None:
        above, step = above
        steps.append(step)
    start, *inner = reversed(steps)
    return clip(str(start) + "".join(f"[{i}]" if isinstance(i, int) else f".{clip(str(i), 40)}" for i in inner), 200)
