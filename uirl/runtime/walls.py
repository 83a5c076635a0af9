"""What all sandboxes of bubblewrap share: walls, what is shown within, a user that owns nothing, and the processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from uirl.errors import EnvironmentFailure

START_SECONDS = 30.0
"""In which a sandbox stands, on a busy machine too."""
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
    *("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"),
)
"""The folders and files of this machine's programs."""
ALONE = ("--unshare-user", "--disable-userns", "--die-with-parent")
"""Options for walls that nobody enters later: none within has a user namespace of its own, in which it had rights
(bubblewrap 0.8), and they end with who put them up (a thread, too)."""
_NUMBERS = itertools.count()


def bubblewrap(environment: Mapping[str, str] | None, *options: str) -> list[str]:
    """Return a command of bubblewrap that shows nothing: namespaces of its own, no terminal, no rights. What is shown
    follows, and then `--` and what runs. `environment`: its variables; None: those with which bubblewrap is started."""
    command = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--new-session", "--cap-drop", "ALL", *options]
    if environment is not None:
        command.append("--clearenv")
    for name, value in (environment or {}).items():
        command += ["--setenv", name, value]
    return command


def showing(paths: Iterable[str], devices: Iterable[str] = ()) -> list[str]:
    """Return the options that show paths, read-only, and devices. Paths that do not exist are passed over."""
    options = []
    for path in dict.fromkeys(paths):
        options += ["--ro-bind-try", path, path]
    for device in devices:
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    return options


def python_and_library() -> tuple[str, list[str]]:
    """Return the path of the interpreter that runs this, and those of its standard library."""
    paths = sysconfig.get_paths()
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    return python, [paths["stdlib"], paths["platstdlib"], str(Path(sys.base_prefix) / "lib")]


def works(command: Sequence[str]) -> bool:
    """Return whether this machine has bubblewrap, and what `command` runs behind its walls ends well.

    Raises EnvironmentFailure after `START_SECONDS`: a busy machine is no reason to do without walls.
    """
    if shutil.which("bwrap") is None:
        return False
    try:
        return subprocess.run(command, check=False, timeout=START_SECONDS).returncode == 0
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFailure(
            f"bubblewrap ran no program within {START_SECONDS:g} s; expected one that starts at once: is the machine "
            "out of memory?"
        ) from error


def owns_nothing() -> dict[str, Any]:
    """Return how `subprocess` starts a process as a user that owns nothing, another one each time.

    Root inside of a user namespace is root before files. Whoever is not root has no other user to take, and needs none.
    """
    number = 20_000 + (os.getpid() * 16 + next(_NUMBERS)) % 40_000
    return {"user": number, "group": number, "extra_groups": []} if os.getuid() == 0 else {}


@contextlib.contextmanager
def saying() -> Iterator[tuple[int, int]]:
    """Yield the ends of a pipe for a program that is started meanwhile: one to hear, one to hand to it. The first is
    closed where none could be started."""
    told, said = os.pipe()
    try:
        yield told, said
    except BaseException:
        os.close(told)
        raise
    finally:
        os.close(said)


def number_told(pipe: int, seconds: float = START_SECONDS) -> int | None:
    """Return the number that a program writes into a pipe once it stands, and close the pipe; None: it ended, or took
    longer. bubblewrap (`--info-fd`) is heard out, as it ends where nobody reads on."""
    text, end = b"", time.monotonic() + seconds
    with open(pipe, "rb", buffering=0) as answers:
        waiting = select.poll()  # unlike select.select it takes descriptors beyond 1023
        waiting.register(answers, select.POLLIN)
        while not text.endswith(b"\n") or (text.startswith(b"{") and b"}" not in text):
            ready = waiting.poll(max(0.0, end - time.monotonic()) * 1000)
            part = answers.read(1000) if ready else b""
            if not part:
                return None
            text += part
    return int(re.findall(rb"\d+", text)[0])


def entering(process: int) -> list[str]:
    """Return the command that runs what follows it behind the walls around a process."""
    spaces = ("--user", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup")
    return ["nsenter", f"--target={process}", *spaces, "--preserve-credentials"]


def tree(process: int) -> Iterator[int]:
    """Yield a process and all that come from it."""
    yield process
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split():
                    yield from tree(int(child))


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, with all that come from it. Twice is fine.

    The first process of a namespace takes all others with it; one that is not ready yet outlives its parent.
    """
    if process.poll() is None:
        for one in [*tree(process.pid)][::-1]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
