"""What two processes say to each other, as bytes and back: pickles in which pictures are named by their hashes.

Unpickling runs code, so both ends must have shown that they know the token of the run before (`greeting`).
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from uirl import errors
from uirl.errors import UirlError
from uirl.images import Screenshot
from uirl.runtime.limits import clip, in_words

Find = Callable[[str], Screenshot]
"""Hash -> the picture. Raises KeyError."""

MAX_WORDS = 20_000
"""Characters of an error, or of its traceback, that travel."""
MAX_PICKLED = 1 << 20
"""Bytes of an error that travels as it is; of a larger one only the words do."""


class RemoteError(UirlError):
    """What another process raised and only that process knows the class of."""


class MissingPictures(Exception):
    """A message names pictures that nobody here knows."""

    def __init__(self, missing: set[str], found: dict[str, Screenshot]) -> None:
        super().__init__(f"{len(missing)} pictures are missing")
        self.missing, self.found = missing, found


def encode(value: Any) -> tuple[bytes, dict[str, Screenshot]]:
    """Return `value` as bytes, and the pictures that are only named in them. Raises what pickling raises."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return buffer.getvalue(), pickler.named


def decode(data: bytes, find: Find) -> tuple[Any, bool]:
    """Return the value, and whether it names any picture.

    Raises MissingPictures where `find` does not know all it names, else what unpickling raises.
    """
    unpickler = _Unpickler(data, find)
    try:
        value = unpickler.load()
    except Exception:
        if not unpickler.missing:
            raise
    finally:
        unpickler.memo = {}  # it holds the method that looks for pictures, so itself, and with it all that were found
    if unpickler.missing:
        raise MissingPictures(unpickler.missing, unpickler.found)
    return value, bool(unpickler.found)


def portable(error: BaseException, where: str) -> BaseException:
    """Return `error` as another process can raise it: itself where it belongs to Python or to this package, else the
    nearest class of `uirl.errors` with its words. The traceback of `where` it was raised goes along as a note."""
    trace = clip("".join(traceback.format_exception(error)), MAX_WORDS)
    plain = _plain(error)
    plain.add_note(f"raised in {where}:\n{trace}")
    return plain


def _plain(error: BaseException) -> BaseException:
    known = type(error).__module__ == "builtins" or type(error).__module__.startswith("uirl.")
    if known and isinstance(error, Exception):  # a SystemExit of another process must not end this one
        try:
            pickled = pickle.dumps(error)
            copy = pickle.loads(pickled) if len(pickled) <= MAX_PICKLED else None
        except Exception:
            copy = None
        if type(copy) is type(error):
            copy.__dict__.pop("__notes__", None)
            return copy
    said = in_words(error, MAX_WORDS)
    for cls in type(error).__mro__:
        if cls.__module__ == errors.__name__ and cls is not UirlError:
            return cls(said.removeprefix(f"{type(error).__name__}: "))
    return RemoteError(f"{type(error).__module__}.{said}")


def _named(hash: str) -> Screenshot:
    """Stand in a pickle for a picture; every unpickler has its own."""
    raise KeyError(hash)


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, protocol=5)
        self.named: dict[str, Screenshot] = {}

    def reducer_override(self, value: Any) -> Any:
        # called for objects alone, not for each number of a thousand tokens, as `persistent_id` is
        if type(value) is not Screenshot:
            return NotImplemented
        self.named[value.hash] = value
        return _named, (value.hash,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, find: Find) -> None:
        super().__init__(io.BytesIO(data))
        self._find = find
        self.missing: set[str] = set()
        self.found: dict[str, Screenshot] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == _named.__name__:
            return self._look
        return super().find_class(module, name)

    def _look(self, hash: str) -> Screenshot | None:
        try:
            self.found[hash] = found = self._find(hash)
        except KeyError:
            self.missing.add(hash)
            return None
        return found
