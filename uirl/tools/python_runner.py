"""`PythonTool`: runs code of the policy in a process that can do little besides computing."""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from uirl.errors import ConfigError, EnvironmentFailure
from uirl.runtime.scratch import ScratchFolder, sweep
from uirl.runtime.walls import bubblewrap, end_tree, python_and_library, showing
from uirl.tools.base import Tool, ToolError
from uirl.tools.registry import cut
from uirl.tools.sandbox.seccomp import ARCHITECTURES
from uirl.tools.sandbox.watch import Ran, Watch

_LOG = logging.getLogger(__name__)
Walls = Literal["bubblewrap", "this user", "none"]
"""Around a process: a sandbox of its own with a small disk in memory; the rules of this package's own (Landlock,
seccomp); none."""

NOBODY = 65534
"""User and group inside of bubblewrap."""

_LONGEST_START = 60.0
"""Seconds. A busy machine starts Python in seconds, which says nothing about the program."""
_SMALLEST_FILE = 4096
_ROOT = str(Path(__file__).parents[2])
_BOOT = "import sys; sys.path.insert(0, {root!r}); from uirl.tools.sandbox.child import main; main()"
_FOLDER = "uirl-python-"
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("urandom", "random", "zero")


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
                stopped at the next look, which comes twenty times a second. With `allow_files` no limit.
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
        self.cpu_seconds, self.wall_seconds = int(cpu_seconds), wall_seconds
        self.memory_mb, self.file_mb, self.disk_mb = memory_mb, file_mb, disk_mb
        self.packages, self.allow_network, self.allow_files = packages, allow_network, allow_files
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
        ended = run_program(source, self, self.walls, self._seed)
        if not ended.began:
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

    def _why(self, ended: Ran) -> str | None:
        """Return which mistake of the program ended it, in words for the policy; None: none.

        Whatever ends a process that has begun with the code is the code's doing: it can end itself in many ways, and
        an episode that was excluded for it would be a way to lose without paying.
        """
        if ended.stopped is not None:
            return ended.stopped
        too_long = ended.seconds * (os.cpu_count() or 1) >= self.cpu_seconds
        if ended.status == -signal.SIGXCPU or (ended.status == -signal.SIGKILL and too_long):
            return f"stopped: more than {self.cpu_seconds} s of computing"
        if ended.status == -signal.SIGKILL:
            _LOG.warning("a program of the policy was killed; is the machine out of memory?")
            return f"the program was killed (SIGKILL); the memory limit is {self.memory_mb} MB"
        if ended.status < 0:
            return f"the program crashed ({_signal_name(-ended.status)}); the memory limit is {self.memory_mb} MB"
        if ended.status == 0:
            return None
        if "MemoryError" in ended.output[-200:]:
            return f"stopped: more than {self.memory_mb} MB of memory"
        # Status 1 is that of an exception, whose traceback says all.
        return "" if ended.status == 1 and ended.output else f"the program ended with status {ended.status}"

    def _strongest_walls(self) -> Walls:
        """Return the strongest isolation in which a small program runs. Raises ConfigError where none is."""
        for walls in walls_to_try(self):
            ended = run_program(b"6 * 7", self, walls, None)
            if ended.began and ended.output.strip() == "42":
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


# -- the process -----------------------------------------------------------------------------------------------------


def walls_to_try(tool: PythonTool) -> list[Walls]:
    """Return the kinds of isolation to try for such a program on this machine, the strongest first."""
    if tool.allow_files:
        return ["none" if tool.allow_network else "this user"]
    return ["this user"] if shutil.which("bwrap") is None else ["bubblewrap", "this user"]


def run_program(source: bytes, tool: PythonTool, walls: Walls, seed: int | None) -> Ran:
    """Run a program in a process of its own, of which nothing is left afterwards. A signal is a negative status."""
    with _folder(flat=not tool.allow_files) as folder, tempfile.TemporaryFile() as code, _pipe() as (ready, begins):
        code.write(source)
        code.seek(0)
        settings = _settings(tool, walls, seed, begins.fileno())
        process = subprocess.Popen(
            _command(tool, walls, folder, settings),
            stdin=code,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(folder),
            pass_fds=(begins.fileno(),),
            start_new_session=True,
        )
        begins.close()
        without = walls == "bubblewrap" or tool.allow_files  # the kernel sees to it, or it may write anywhere
        look = None if without else _Disk(folder, process.pid, tool.disk_mb << 20).too_much
        watch = Watch(process, tool.wall_seconds, look, (ready, _LONGEST_START))
        try:
            watch.wait()
        finally:
            end_tree(process)
    status = process.returncode
    if walls == "bubblewrap" and 128 < status <= 128 + signal.SIGRTMAX:
        status = 128 - status  # which signal ended the program inside
    return Ran(watch.output.decode(errors="replace"), status, watch.seconds, watch.stopped, watch.began is not None)


class _Disk:
    """How much disk a program holds in its working folder, files that it removed and keeps open included."""

    def __init__(self, folder: str, process: int, max_bytes: int) -> None:
        self._folder, self._process, self._max_bytes = folder, process, max_bytes

    def too_much(self) -> str | None:
        """Return that the program holds more than it may; None: it does not."""
        used = self._visible() + self._removed()
        return f"stopped: more than {self._max_bytes >> 20} MB of files" if used > self._max_bytes else None

    def _visible(self) -> int:
        used = 0
        with os.scandir(self._folder) as entries:  # it has no folders
            for entry in entries:
                with suppress(OSError):
                    used += _size(entry.stat(follow_symlinks=False))
        return used

    def _removed(self) -> int:
        sizes: dict[int, int] = {}
        with suppress(OSError):
            task, maps = self._living_task()
            for name in os.listdir(f"{task}/fd"):
                with suppress(OSError):
                    file = os.stat(f"{task}/fd/{name}")
                    if file.st_nlink == 0:
                        sizes[file.st_ino] = _size(file)
            for line in maps.split("\n"):  # splitlines would split in names of files as well
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(self._folder) and fields[5].endswith("(deleted)"):
                    begin, _, end = fields[0].partition("-")
                    sizes.setdefault(int(fields[4]), int(end, 16) - int(begin, 16))
        return sum(sizes.values())

    def _living_task(self) -> tuple[str, str]:
        """Return the folder in /proc of a thread that has not ended, and its maps. All share memory and files, and the
        first one may end before the others: then its folder shows neither. Raises OSError where all have ended."""
        threads = f"/proc/{self._process}/task"
        for name in os.listdir(threads):
            with suppress(OSError):
                maps = Path(f"{threads}/{name}/maps").read_text(errors="replace")
                if maps:
                    return f"{threads}/{name}", maps
        raise ProcessLookupError(f"no thread of {self._process} is left")


def _size(file: os.stat_result) -> int:
    return max(512 * file.st_blocks, _SMALLEST_FILE)


def _settings(tool: PythonTool, walls: Walls, seed: int | None, ready_fd: int) -> dict[str, Any]:
    paths = sysconfig.get_paths()
    packages = list(dict.fromkeys([paths["purelib"], paths["platlib"]])) if tool.packages else []
    _, library = python_and_library()
    return {
        "root": _ROOT,
        "parent": os.getpid(),
        "guards_parent": walls != "bubblewrap",  # which sees to it itself, and numbers processes anew
        "ready_fd": ready_fd,
        "cpu_seconds": tool.cpu_seconds,
        "memory_bytes": tool.memory_mb << 20,
        "file_bytes": tool.file_mb << 20,
        "packages": packages,
        "readable": [*_SYSTEM, *(f"/dev/{name}" for name in _DEVICES), *library, *packages],
        # bubblewrap shows what starts Python; Landlock hides that too, where the kernel is new enough to have it
        "landlock": "no" if tool.allow_files else "try" if walls == "bubblewrap" else "must",
        "seccomp": walls != "none",
        "allow_network": tool.allow_network,
        "allow_files": tool.allow_files,
        "seed": seed,
    }


def _command(tool: PythonTool, walls: Walls, folder: str, settings: dict[str, Any]) -> list[str]:
    boot = ["-s", "-S", "-P", "-B", "-c", _BOOT.format(root=_ROOT), json.dumps(settings)]
    if walls != "bubblewrap":
        return [sys.executable, *boot]
    python, _ = python_and_library()
    shared = ["--share-net"] if tool.allow_network else []
    command = bubblewrap(None, "--die-with-parent", "--uid", str(NOBODY), "--gid", str(NOBODY), *shared)
    devices = [f"/dev/{name}" for name in _DEVICES]  # other paths there are folders, such as /dev/shm
    shown = [path for path in settings["readable"] if path not in devices]
    command += showing([*shown, python, str(Path(_ROOT) / "uirl")], ("null", *_DEVICES))
    command += ["--size", str(tool.disk_mb << 20), "--tmpfs", folder, "--remount-ro", "/", "--chdir", folder]
    return [*command, "--", python, *boot]


def _environment(folder: str) -> dict[str, str]:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # A fixed hash seed: sets of words print in the same order in every run.
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", "TZ": "UTC"}
    return {"HOME": folder, "TMPDIR": folder, **fixed, **one_thread}


@contextmanager
def _folder(flat: bool) -> Iterator[str]:
    """Yield an empty working folder; its own parent holds the lock that says whose it is."""
    sweep(_FOLDER)
    scratch = ScratchFolder(_FOLDER)
    try:
        work = scratch.path / "work"
        work.mkdir(0o700)
        yield str(work)
    finally:
        if not flat:  # rmtree recurses, and holds a file open for every level: a program could make too many
            subprocess.run(["rm", "-rf", str(scratch.path / "work")], check=False)
        scratch.close()


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the ends of a pipe to read from and to write to."""
    # File objects, not numbers: closing one twice cannot close what another thread has opened meanwhile.
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", 0) as read_end, os.fdopen(writer, "wb", 0) as write_end:
        yield read_end, write_end
