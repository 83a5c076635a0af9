"""Memory of this machine, or of the container that the process is in where that has less."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


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
