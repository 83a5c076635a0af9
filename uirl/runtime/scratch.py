"""Temporary folders that go with their process, also where it is killed: the next one to make such a folder removes it.

Locks tell which folder is in use: a process id may be another container's, or may have been given out again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

RAM_DISK = Path("/dev/shm")
_LOCK = "lock"


class ScratchFolder:
    """A new folder named `prefix` and something random, in `home` (None: the system's temporary folder).

    It holds a file named `lock` besides what is put there. Call `sweep` before, where nobody else clears up.
    """

    def __init__(self, prefix: str, home: Path | None = None, *, mode: int = 0o700) -> None:
        # It gets the name that `sweep` looks for once it is locked.
        fresh = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=home))
        handle = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        self.path = fresh.with_name(fresh.name.removeprefix("."))
        fresh.rename(self.path)
        self.path.chmod(mode)
        self._gone = weakref.finalize(self, _remove, self.path, handle, os.getpid())

    def close(self) -> None:
        """Remove the folder and all in it. Twice is fine."""
        self._gone()


def sweep(prefix: str, home: Path | None = None) -> None:
    """Remove the folders of this user named `prefix...` in `home` whose process is gone."""
    for folder in (Path(tempfile.gettempdir()) if home is None else home).glob(prefix + "*"):
        try:
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or on its way out
        try:
            if os.fstat(handle).st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)


def home_with_room(size: int) -> Path:
    """Return the RAM disk where it has room for `size` bytes, else the system's temporary folder."""
    with contextlib.suppress(OSError):
        if os.access(RAM_DISK, os.W_OK) and shutil.disk_usage(RAM_DISK).free > size:
            return RAM_DISK
    return Path(tempfile.gettempdir())


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked process: the folder is its parent's
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
