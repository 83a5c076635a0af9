"""Folders that cannot be written, as a mount that is read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[Path]:
    """Yield a copy of `folder` that can be read and not written; root may write everywhere, and is somebody else
    meanwhile."""
    outer = Path(tempfile.mkdtemp())
    outer.chmod(0o755)
    copy = Path(shutil.copytree(folder, outer / folder.name))
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield copy
    finally:
        os.seteuid(user)
        for path in (copy, *copy.rglob("*")):
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(outer)
