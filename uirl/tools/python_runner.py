"""`PythonTool`: runs code of the policy in a process that can do little besides computing."""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys

from uirl.errors import ConfigError, EnvironmentFailure
from uirl.tools.base import Tool, ToolError
from uirl.tools.python_process import Ended, Limits, Walls, run_program, walls_to_try
from uirl.tools.results import cut
from uirl.tools.sandbox.seccomp import ARCHITECTURES

_LOG = logging.getLogger(__name__)


class PythonTool(Tool):
    """Runs a program in a fresh process; the result is what it printed and the value of its last line.

    The process starts with no environment variables of ours, an empty stdin and an empty working folder. It has
    limits of CPU time, wall time, memory, threads, disk and output, and sees no files but the standard library and its
    folder. Of the kernel's calls it has those that computing takes: no sockets, no further processes, no signals to
    others, no rights, owners or times of files, and none that this package does not know. `walls` says what else stands
    around it: bubblewrap where it is installed and works (`apt-get install bubblewrap`), else Landlock (Linux 6.2),
    which hides all other files from it.

    A program that raises, breaks a limit or ends its own process is a `ToolError` with what it had printed. Files it
    leaves are removed: no run sees another.
    """

    name = "python"
    description = (
        "Runs a Python program and returns what it prints and the value of its last line. No network, no input, "
        "nothing is kept between calls."
    )

    def __init__(
        self,
        *,
        cpu_seconds: int = 5,
        wall_seconds: float = 10.0,
        memory_mb: int = 512,
        file_mb: int = 1,
        disk_mb: int = 16,
        packages: bool = False,
        allow_network: bool = False,
        allow_files: bool = False,
    ) -> None:
        """Try one run, and raise ConfigError where this machine cannot confine it.

        Args:
            cpu_seconds: Of all threads together.
            wall_seconds: From the program's first line to its end.
            memory_mb: Of address space; numpy needs about 300.
            file_mb: Size of the largest file the program may write.
            disk_mb: Of all files it has at a time. Under bubblewrap a write beyond raises; elsewhere the program is
                stopped at the next look, which comes ten times a second or more often. With `allow_files` no limit.
            packages: True: installed packages can be imported; False: the standard library alone.
            allow_network: True: internet sockets are allowed, to this machine's own services as well.
            allow_files: True: the program can read and write what this user can, this program's own files included.
                With both, the kernel confines nothing (for code you trust, and for systems without its help): only
                the limits are left, and processes that left their group are not found.
        """
        if os.name != "posix":
            raise ConfigError("PythonTool needs a POSIX system for its limits; run it on Linux")
        for name, value in (("cpu_seconds", cpu_seconds), ("wall_seconds", wall_seconds), ("memory_mb", memory_mb)):
            if not value > 0:
                raise ConfigError(f"PythonTool({name}={value!r}): expected a positive number")
        _refuse_weak_platform(allow_network, allow_files)
        self.limits = Limits(
            int(cpu_seconds), wall_seconds, memory_mb, file_mb, disk_mb, packages, allow_network, allow_files
        )
        self.timeout = wall_seconds + 90  # ours, the start included; the policy feels wall_seconds
        self._seed: int | None = None
        self.walls: Walls = self._strongest_walls()
        """What stands around the programs on this machine."""
        _LOG.info("PythonTool: walls around programs of the policy: %s", self.walls)

    def execute(self, code: str) -> str:
        """Run a program.

        Args:
            code: The program.
        """
        try:
            source = code.encode()
        except UnicodeEncodeError:
            raise ToolError("the code holds half a character (a lone surrogate); expected whole ones") from None
        ended = run_program(source, self.limits, self.walls, self._seed)
        if not ended.confined:
            raise EnvironmentFailure(
                f"the Python process did not start: {ended.output.strip()[-500:] or ended.stopped}"
            )
        why = self._why(ended)
        output = ended.output.rstrip("\n")
        if why is None:
            return output or "(no output; print what you want to see)"
        raise ToolError(f"{_with_end(output, self.max_result_chars)}\n{why}".strip())

    def reset(self, seed: int | None = None) -> None:
        """Let `random` start from `seed` in every run from now on; None: from nowhere."""
        self._seed = seed

    def _why(self, ended: Ended) -> str | None:
        """Return which mistake of the program ended it, in words for the policy; None: none.

        Whatever ends a process that has begun with the code is the code's doing: it can end itself in many ways, and
        an episode that was excluded for it would be a way to lose without paying.
        """
        limits = self.limits
        if ended.stopped is not None:
            return ended.stopped
        too_long = ended.seconds * (os.cpu_count() or 1) >= limits.cpu_seconds
        if ended.status == -signal.SIGXCPU or (ended.status == -signal.SIGKILL and too_long):
            return f"stopped: more than {limits.cpu_seconds} s of computing"
        if ended.status == -signal.SIGKILL:
            _LOG.warning("a program of the policy was killed; is the machine out of memory?")
            return f"the program was killed (SIGKILL); the memory limit is {limits.memory_mb} MB"
        if ended.status < 0:
            return f"the program crashed ({_signal_name(-ended.status)}); the memory limit is {limits.memory_mb} MB"
        if ended.status == 0:
            return None
        if "MemoryError" in ended.output[-200:]:
            return f"stopped: more than {limits.memory_mb} MB of memory"
        # Status 1 is that of an exception, whose traceback says all.
        return "" if ended.status == 1 and ended.output else f"the program ended with status {ended.status}"

    def _strongest_walls(self) -> Walls:
        """Return the strongest isolation in which a small program runs. Raises ConfigError where none is."""
        for walls in walls_to_try(self.limits):
            ended = run_program(b"6 * 7", self.limits, walls, None)
            if ended.confined and ended.output.strip() == "42":
                return walls
            problem = ended.output.strip()[-300:] or ended.stopped or str(ended.status)
            _LOG.info("PythonTool: no %s: %s", walls, problem)
        raise ConfigError(
            f"code cannot be confined here: {problem}; "
            "PythonTool(allow_network=True, allow_files=True) does without the kernel's help, for code you trust"
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _with_end(output: str, limit: int | None) -> str:
    """Return `output` within `limit`, its end kept: there stands what went wrong."""
    room = None if limit is None else max(limit - 200, limit // 2)  # for the reason and the words of the cut
    if room is None or len(output) <= room:
        return output
    return f"{cut(output, room // 4)}\n{output[len(output) - (room - room // 4) :]}"


def _refuse_weak_platform(allow_network: bool, allow_files: bool) -> None:
    machine = platform.machine()
    if sys.platform == "linux" and machine in ARCHITECTURES:
        return
    if not (allow_network and allow_files):
        raise ConfigError(
            f"PythonTool can keep code from the network and from files on Linux ({', '.join(ARCHITECTURES)}) alone; "
            f"this is {sys.platform} on {machine}. Use Linux, or PythonTool(allow_network=True, allow_files=True) for "
            "code you trust"
        )
