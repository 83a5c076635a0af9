"""Where the viewer keeps its copies: a folder of the user's, whose files can be deleted at any time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from uirl.runtime.files import cache_folder

UNUSED = 30 * 24 * 3600
"""Seconds after which an index that nobody opened is removed."""


def remove_unused(folder: Path, older_than: float = UNUSED) -> None:
    """Remove the indices in `folder` that nobody has opened for `older_than` seconds."""
    for path in folder.glob("*.sqlite"):
        with contextlib.suppress(OSError):
            times = [part.stat().st_mtime for part in files_of(path) if part.exists()]
            if times and time.time() - max(times) > older_than:
                remove(path)


def files_of(file: Path) -> list[Path]:
    """Return the files of an index, its log first."""
    return [Path(f"{file}{ending}") for ending in ("-wal", "-shm", "")]


def remove(file: Path) -> None:
    """Remove an index with its log: a log that is left would be played into the next file of that name."""
    for part in files_of(file):
        part.unlink(missing_ok=True)


def place_of(store: Path, version: int) -> Path:
    """Return the place of the index of a store: another file at the same place has another one, and another
    version of the index too."""
    status, place = store.stat(), store.resolve()
    parts = [str(version).encode(), os.fsencode(place), str(status.st_ino).encode(), str(status.st_dev).encode()]
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    return cache_folder("viewer") / f"{name}.sqlite"
