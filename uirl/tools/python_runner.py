"""`PythonTool`: runs code of the policy in a process that can do little besides computing."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from uirl.errors import ConfigError, EnvironmentFailure
from uirl.tools.base import Tool, ToolError
from uirl.tools.results import cut
from uirl.tools.sandbox.seccomp import ARCHITECTURES

MAX_OUTPUT_BYTES = 1 << 20
"""Of one run. A program that writes more is stopped."""

_LONGEST_START = 60.0
"""Seconds."""
_ROOT = str(Path(__file__).parents[2])
_BOOT = "import sys; sys.path.insert(0, {root!r}); from uirl.tools.sandbox.child import main; main()"
_READY = b"ready"


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a run ended."""

    output: str
    status: int
    """Exit status; the negative number of a signal."""
    seconds: float
    stopped: str | None = None
    """Which limit of the parent stopped it; None: it ended by itself or by a limit of the kernel."""
    confined: bool = True
    """False: the process did not get as far as the code."""


class PythonTool(Tool):
    """Runs a program in a fresh process; the result is what it printed and the value of its last line.

    The process starts with no environment variables of ours, an empty stdin and an empty working folder. It has
    limits of CPU time, wall time, memory and output, and the kernel (seccomp, Landlock) refuses it sockets, further
    processes, signals to others, and files outside the standard library and its folder. A program that raises or
    breaks a limit is a `ToolError` with what it had printed. Files it leaves are removed: no run sees another.
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
        packages: bool = False,
        allow_network: bool = False,
        allow_files: bool = False,
    ) -> None:
        """Tries one run, and raises ConfigError where this machine cannot confine it.

        Args:
            cpu_seconds: Of all threads together.
            wall_seconds: From start to end.
            memory_mb: Of address space; numpy needs about 300.
            file_mb: Size of the largest file the program may write.
            packages: True: installed packages can be imported; False: the standard library alone.
            allow_network: True: sockets are allowed.
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
        self.memory_mb, self.file_mb, self.packages = memory_mb, file_mb, packages
        self.allow_network, self.allow_files = allow_network, allow_files
        self.timeout = wall_seconds + 30  # ours; the policy feels wall_seconds
        self._seed: int | None = None
        self._try()

    def execute(self, code: str) -> str:
        """Runs a program.

        Args:
            code: The program.
        """
        try:
            source = code.encode()
        except UnicodeEncodeError:
            raise ToolError("the code holds half a character (a lone surrogate); expected whole ones") from None
        ended = self._run(source)
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
        """From now on `random` starts from `seed` in every run; None: from nowhere."""
        self._seed = seed

    def _why(self, ended: _Ended) -> str | None:
        """Which mistake of the program ended it, in words for the policy; None: none."""
        if ended.stopped is not None:
            return ended.stopped
        if ended.status == -signal.SIGKILL and ended.seconds * (os.cpu_count() or 1) < self.cpu_seconds:
            raise EnvironmentFailure("the Python process was killed from outside; is the machine out of memory?")
        if ended.status in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"stopped: more than {self.cpu_seconds} s of computing"
        if ended.status < 0:
            return (
                f"the program crashed ({signal.Signals(-ended.status).name}); the memory limit is {self.memory_mb} MB"
            )
        if ended.status == 0:
            return None
        if "MemoryError" in ended.output[-200:]:
            return f"stopped: more than {self.memory_mb} MB of memory"
        # Status 1 is that of an exception, whose traceback says all.
        return "" if ended.status == 1 and ended.output else f"the program ended with status {ended.status}"

    def _run(self, source: bytes) -> _Ended:
        with (
            _folder(flat=not self.allow_files) as folder,
            tempfile.TemporaryFile() as code,
            _pipe() as (ready, ready_write),
        ):
            code.write(source)
            code.seek(0)
            settings = json.dumps(self._settings(ready_write.fileno()))
            started = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-B", "-c", _BOOT.format(root=_ROOT), settings],
                stdin=code,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(folder),
                pass_fds=(ready_write.fileno(),),
                start_new_session=True,
            )
            try:
                output, stopped = self._read(process)
            finally:
                _kill(process)
            ready_write.close()
            confined = ready.read(len(_READY)) == _READY
        seconds = time.monotonic() - started
        return _Ended(output.decode(errors="replace"), process.returncode, seconds, stopped, confined)

    def _read(self, process: subprocess.Popen[bytes]) -> tuple[bytes, str | None]:
        """What the process wrote, until it ended or broke a limit; then which."""
        assert process.stdout is not None
        deadline = time.monotonic() + self.wall_seconds
        output = bytearray()
        late = f"stopped: not finished after {self.wall_seconds:g} s"
        waiting = select.poll()  # unlike select.select it takes descriptors beyond 1023
        waiting.register(process.stdout, select.POLLIN)
        while True:
            if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return bytes(output), late
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            output += piece
            if len(output) > MAX_OUTPUT_BYTES:
                return bytes(output[:MAX_OUTPUT_BYTES]), f"stopped: more than {MAX_OUTPUT_BYTES} bytes of output"
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # it closed its output and went on
            return bytes(output), late
        return bytes(output), None

    def _settings(self, ready_fd: int) -> dict[str, object]:
        paths = sysconfig.get_paths()
        packages = list(dict.fromkeys([paths["purelib"], paths["platlib"]])) if self.packages else []
        library = [paths["stdlib"], paths["platstdlib"], str(Path(sys.base_prefix) / "lib")]
        return {
            "root": _ROOT,
            "parent": os.getpid(),
            "ready_fd": ready_fd,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_mb << 20,
            "file_bytes": self.file_mb << 20,
            "packages": packages,
            "readable": library + packages,
            "allow_network": self.allow_network,
            "allow_files": self.allow_files,
            "seed": self._seed,
        }

    def _try(self) -> None:
        # a busy machine starts Python in seconds, which says nothing about what can be confined
        own, self.wall_seconds = self.wall_seconds, max(self.wall_seconds, _LONGEST_START)
        try:
            ended = self._run(b"6 * 7")
        finally:
            self.wall_seconds = own
        if not ended.confined or ended.output.strip() != "42":
            raise ConfigError(
                f"code cannot be confined here: {ended.output.strip()[-300:] or ended.stopped or ended.status}; "
                "PythonTool(allow_network=True, allow_files=True) does without the kernel's help, for code you trust"
            )


def _with_end(output: str, limit: int | None) -> str:
    """`output` within `limit`, its end kept: there stands what went wrong."""
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


def _environment(folder: str) -> dict[str, str]:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # A fixed hash seed: sets of words print in the same order in every run.
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LANG": "C.UTF-8", "TZ": "UTC"}
    return {"HOME": folder, "TMPDIR": folder, **fixed, **one_thread}


@contextmanager
def _folder(flat: bool) -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="uirl-python-")
    try:
        yield folder
    finally:
        if flat:
            shutil.rmtree(folder)
        else:  # rmtree recurses, and holds a file open for every level: a program could make too many
            subprocess.run(["rm", "-rf", folder], check=False)


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    # File objects, not numbers: closing one twice cannot close what another thread has opened meanwhile.
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", 0) as read_end, os.fdopen(writer, "wb", 0) as write_end:
        yield read_end, write_end


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
