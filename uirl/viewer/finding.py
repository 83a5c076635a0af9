"""Where runs are: the folders and stores below the paths that were named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from uirl.errors import StorageError
from uirl.storage.database import APPLICATION_ID
from uirl.viewer.files import closed_to_us, is_file, is_folder, opened

DEPTH = 3
"""Folders below the one that was named in which runs are looked for: `runs/<name>/round_00`."""
_NO_RUNS = ("checkpoints", "tensorboard", "judgements", "lost+found")
_OF_A_RUN = ("config.yaml", "trajectories.sqlite")


def runs_under(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Return the runs at a path and below it. A folder that this user may not look into may be one: it counts, and
    `closed` says why nothing of it is shown."""
    if is_file(root):
        yield root
        return
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        yield root
        return
    if any(name in names and not is_folder(root / name) for name in _OF_A_RUN):
        yield root
    stores = sorted(name for name in names if name.endswith(".sqlite") and name not in _OF_A_RUN)
    yield from (root / name for name in stores if is_store(root / name))
    if depth > 0:
        for name in sorted(names):
            if not name.startswith(".") and name not in _NO_RUNS and is_folder(root / name):
                yield from runs_under(root / name, depth - 1)


def closed(path: Path) -> StorageError | None:
    """Return why this user may not look into a folder; None: that goes, or it is no folder."""
    try:
        if is_folder(path):
            with os.scandir(path):
                (path / ".").stat()  # to list it asks for r, to look at what stands in it for x
    except OSError as error:
        return closed_to_us(path, error)
    return None


def is_store(path: Path) -> bool:
    """Return whether a file is a trajectory store, by the number of the application in SQLite's header."""
    try:
        with opened(path) as file:
            header = file.read(72)
    except (OSError, StorageError):
        return False
    return header[68:72] == APPLICATION_ID.to_bytes(4, "big")


def name_of(path: Path, roots: Sequence[Path]) -> str:
    """Return the path below the folder that was named, or the folder's own name."""
    names = [path.relative_to(root).as_posix() for root in roots if path != root and path.is_relative_to(root)]
    return min(names, key=len, default=path.stem if is_file(path) else path.name)
