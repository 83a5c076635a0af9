"""Memory of this machine, or of its container where that has less; the garbage collector; whether memory ran out."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_LOCK = threading.Lock()
_inside = 0


def free_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that this process can still take; None: the system does not say.

    The machine's, or its container's (cgroup v2) where that is less.
    """
    container = _number(cgroup / "memory.max")  # 'max' where there is none
    used = _number(cgroup / "memory.current")
    left = None if container is None or used is None else max(0, container - used)
    return _least(_of_machine(meminfo, "MemAvailable:"), left)


def whole_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that there are, whoever has them now; None: the system does not say."""
    return _least(_of_machine(meminfo, "MemTotal:"), _number(cgroup / "memory.max"))


def give_back_memory() -> None:
    """Return to the system what was freed: glibc keeps it between what is still there. Does nothing elsewhere."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _of_machine(meminfo: Path, name: str) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Return a context in which the garbage collector passes over whatever is there when it begins.

    A full collection looks at every container: with torch and transformers loaded that is half a million objects and
    a tenth of a second, about once in ten updates of a small model. Contexts may lie within each other and overlap;
    with the last of them the collector sees everything again.
    """
    global _inside
    with _LOCK:
        if not _inside:
            gc.collect()
            gc.freeze()
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if not _inside:
                gc.unfreeze()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory of a GPU or of the machine ran out."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # the allocator of the CPU raises a plain RuntimeError
    words = str(error)
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in words and "memory" in words
