"""Files of a run that may be anything: gone, closed to this user, a folder, a pipe, nested without end."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from uirl.errors import StorageError
from uirl.runtime.files import leads_out
from uirl.runtime.limits import InputError, Limits, read_json

LARGEST_TEXT, LARGEST_OBJECT = 1 << 20, 16 << 20
"""Bytes that are read of a text, and of a JSON object."""
_JSON = Limits(size=LARGEST_OBJECT, items=1_000_000, depth=40)


def is_file(path: Path) -> bool:
    """Return whether there is a plain file, as far as this user can see."""
    return os.path.isfile(path)  # `Path.is_file` raises where a folder on the way is closed


def is_folder(path: Path) -> bool:
    """Return whether there is a folder, as far as this user can see."""
    return os.path.isdir(path)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain file for reading. Raises FileNotFoundError where there is none, and StorageError for whatever else
    stands there, leads out of its folder or keeps this user out."""
    if leads_out(path, path.parent):
        raise StorageError(f"{path} is a link out of its run; expected the file itself: copy it there")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would block
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(error)) from None
    except OSError as error:
        raise closed_to_us(path, error) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StorageError(f"{path} is no plain file; expected one that a run wrote. Move it away")
    with os.fdopen(handle, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise closed_to_us(path, error) from error


def closed_to_us(path: Path, error: OSError) -> StorageError:
    """Return the error of a path that cannot be read."""
    why = error.strerror or str(error)
    return StorageError(f"cannot read {path}: {why}; let the user that `uirl view` runs as read it")


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """Return the beginning of a text file; empty: it is not there. Raises StorageError where it cannot be read."""
    try:
        with opened(path) as file:
            return file.read(most).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object of a file; None: there is no file. Raises StorageError where it is no such object, or
    nested too deep."""
    try:
        with opened(path) as file:
            found = read_json(file.read(LARGEST_OBJECT + 1), _JSON, path.name)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise StorageError(f"{path} cannot be shown: {error}") from error
    if not isinstance(found, dict):
        raise StorageError(f"{path} cannot be shown: it is no JSON object")
    return found
