"""Which processes belong to a run: what it says itself, and what /proc shows, which nobody can forget to write down."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from uirl.errors import ConfigError

MARK = "UIRL_CHAOS"
"""Environment variable that every process of a run under chaos inherits."""
TABLE = "processes.json"


@dataclass(frozen=True, slots=True)
class RunProcess:
    """One row of processes.json."""

    name: str
    role: str
    pid: int


def require_proc() -> None:
    """Raise ConfigError where processes cannot be found by what they inherited."""
    if not Path("/proc/self/environ").exists():
        raise ConfigError(f"make chaos finds processes in /proc, which {sys.platform} does not have; use Linux")


def read_table(run: Path) -> list[RunProcess]:
    """Return the processes of this machine that the run names and that live; none where it has named none yet."""
    try:
        rows = json.loads((run / TABLE).read_text(encoding="utf-8"))["processes"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        RunProcess(str(row["name"]), str(row["role"]), row["pid"])
        for row in rows
        if row.get("host") in (None, socket.gethostname()) and isinstance(row.get("pid"), int) and is_alive(row["pid"])
    ]


def writer_of(run: Path) -> int | None:
    """Return the process that writes to a run directory: it has its lock; None: nobody has yet."""
    try:
        return int((run / ".lock").read_text())
    except (OSError, ValueError):
        return None


def is_alive(pid: int) -> bool:
    """Return whether there is such a process; a zombie is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process inherited the mark of a run; False where it may not be asked, or is gone."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def marked(mark: str, *, besides: Iterable[int] = ()) -> list[int]:
    """Return the living processes that inherited the mark of a run, this one and those `besides` left out."""
    left_out = {os.getpid(), *besides}
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in sorted(pids) if pid not in left_out and is_marked(pid, mark) and is_alive(pid)]


def describe(pid: int) -> str:
    """Return '77 (python -m uirl ...)'."""
    words = b""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return f"{pid} ({words.replace(bytes(1), b' ').decode(errors='replace').strip()[:100] or 'gone'})"


def kill(pid: int, mark: str) -> bool:
    """Kill a process with SIGKILL; return whether it was one of the run: a number may belong to another by now."""
    if not is_marked(pid, mark):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
