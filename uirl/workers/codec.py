"""What two processes say to each other, as bytes and back: typed data, in which pictures are named by their hashes.

A message is plain data (msgpack), and becomes objects only as the receiver's own annotations say (`typed`). Nothing in
it can name code, and there is no more of it than its bytes hold.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import msgpack
import msgspec

from uirl.errors import ContractError, UirlError
from uirl.images import Screenshot
from uirl.runtime.limits import clip, in_words, shown

Find = Callable[[str], Screenshot]
"""Hash -> the picture. Raises KeyError."""

MAX_WORDS = 20_000
"""Characters of an error, or of its traceback, that travel."""
_PICTURE, _TUPLE, _INT = range(3)
"""Codes of what msgpack has no form for: a picture by its hash, the mark that makes a list a tuple, an int beyond 64
bits."""
_TEXT = "surrogatepass"
"""Models and pages say halves of characters."""


class RemoteError(UirlError):
    """What another process raised and only that process knows the class of, or a message that does not fit."""


@dataclass(frozen=True, slots=True)
class ToldError:
    """An exception as it travels."""

    kinds: tuple[str, ...]
    """Its class and those above it, each 'module.name'."""
    words: str
    trace: str = ""
    """Where it was raised, for a note; empty: nobody says."""

    @classmethod
    def of(cls, error: BaseException, where: str) -> ToldError:
        """Return `error`, which was raised in `where`."""
        trace = clip("".join(traceback.format_exception(error)), MAX_WORDS)
        said = in_words(error, MAX_WORDS).removeprefix(f"{type(error).__name__}: ")
        if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
            said = clip(error.args[0], MAX_WORDS)  # its own words have quotes around them
        kinds = tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)
        return cls(kinds, said, f"raised in {where}:\n{trace}")

    def made(self) -> Exception:
        """Return the exception that can be raised here: of the same class where it is Python's or this package's, else
        of the nearest that is this package's."""
        known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _kinds_of(UirlError)}
        known.pop(f"{UirlError.__module__}.{UirlError.__qualname__}")
        name = self.kinds[0] if self.kinds else "an error without a name"
        plain = getattr(builtins, name.removeprefix("builtins."), None) if name.startswith("builtins.") else None
        kind = next((known[kind] for kind in self.kinds if kind in known), None)
        if isinstance(plain, type) and issubclass(plain, Exception) and plain not in _UNFIT:
            kind = plain
        try:
            error = RemoteError(f"{name}: {self.words}") if kind is None else kind(self.words)
        except Exception:  # one that is made of more than words
            error = RemoteError(f"{name}: {self.words}")
        if self.trace:
            error.add_note(self.trace)
        return error


def _kinds_of(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for inner in kind.__subclasses__():
        if inner.__module__.startswith("uirl."):
            yield from _kinds_of(inner)


def encode(value: Any) -> tuple[bytes, dict[str, Screenshot]]:
    """Return `value` as bytes, and the pictures that are only named in them.

    It is what JSON holds, and tuples, bytes, pictures, and dataclasses of these. Raises ContractError for all else.
    """
    named: dict[str, Screenshot] = {}

    def plain(value: Any) -> Any:
        # of all that is no exact str, int, float, list, dict, ...
        if type(value) is tuple:  # first, as most are
            return [_MARK, *value]
        if type(value) is Screenshot:
            named[value.hash] = value
            return msgpack.ExtType(_PICTURE, value.hash.encode())
        if isinstance(value, int):
            number = int(value)
            packed = number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
            return number if len(packed) <= 8 else msgpack.ExtType(_INT, packed)
        if is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        for kind, convert in _BASES:
            if isinstance(value, kind):
                return convert(value)
        if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a number of NumPy
            return value.item()
        raise ContractError(
            f"{shown(value)} ({type(value).__name__}) cannot be told to another process; expected text, numbers, "
            "lists, tuples, and dicts with text keys"
        )

    try:
        data: bytes = msgpack.packb(value, default=plain, strict_types=True, unicode_errors=_TEXT)
    except (ValueError, TypeError, RecursionError) as error:  # too deep, or longer than msgpack has a form for
        raise ContractError(f"{shown(value)} cannot be told to another process: {error}") from error
    return data, named


def decode(data: bytes, find: Find) -> tuple[Any, dict[str, Screenshot]]:
    """Return the plain data of a message with its pictures in it, and these, in the order in which they are named.

    Raises what `find` raises, and ValueError for what `encode` does not make.
    """
    found: dict[str, Screenshot] = {}
    marks = 0

    def extension(code: int, content: bytes) -> Any:
        nonlocal marks
        if code == _TUPLE:
            marks += 1
            return _MARK
        if code == _INT:
            return int.from_bytes(content, "big", signed=True)
        if code != _PICTURE:
            raise ValueError(f"an extension of kind {code}")
        hash = content.decode("ascii")
        if hash not in found:
            found[hash] = find(hash)
        return found[hash]

    def sequence(items: list[Any]) -> Any:
        nonlocal marks
        if items and items[0] is _MARK:
            marks -= 1
            return tuple(items[1:])
        return items

    value = msgpack.unpackb(data, ext_hook=extension, list_hook=sequence, unicode_errors=_TEXT)
    if marks:
        raise ValueError("a mark of a tuple outside of one")
    return value, found


def typed(value: Any, kind: Any, what: str = "a message") -> Any:
    """Return the plain data of `decode` as a value of the annotation `kind`. Raises RemoteError where it is none."""
    try:
        return msgspec.convert(value, kind)
    except Exception as error:  # whatever a `__post_init__` raises
        raise RemoteError(
            f"{what} cannot be read by its receiver: {in_words(error)}; do both sides run the same code?"
        ) from error


_UNFIT = (StopIteration, StopAsyncIteration)
"""What a future does not take."""
_MARK = msgpack.ExtType(_TUPLE, b"")
_BASES: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (float, float),
    ((bytes, bytearray), bytes),
    (tuple, lambda value: [_MARK, *value]),
    (list, list),
    (Mapping, dict),
)
"""Kinds of values whose own kinds do not travel, and how their plain forms are made."""
