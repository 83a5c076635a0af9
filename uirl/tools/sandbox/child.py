"""What runs in the child: give up rights, say that it is done, then run the code."""

from __future__ import annotations

import ast
import builtins
import ctypes
import errno
import json
import linecache
import os
import platform
import resource
import signal
import struct
import sys
import traceback
from typing import Any

from uirl.tools.sandbox import landlock, seccomp

SOURCE = "<code>"
"""File name of the code in its tracebacks."""
READY = b"ready"

_RESERVE = 4 << 20
_MOST_THREADS = 4096
"""Of the user together, programs of other episodes included: a machine has numbers for 32 768."""
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITIES_3 = 0x20080522


def main() -> None:
    """Read settings from the command line and the code from stdin, and exit with 0 where the code ran through."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source = sys.stdin.buffer.read()
    os.environ.pop("PWD", None)  # bubblewrap's
    _close_stdin()
    _limit(settings)
    if sys.platform == "linux":
        _confine(settings)
    _seed(settings["seed"])
    os.write(settings["ready_fd"], READY)
    os.close(settings["ready_fd"])
    _forget_ourselves(settings)
    sys.exit(run(source))


def run(source: bytes) -> int:
    """Return 0 where the code ran through, else 1; its output, last value and traceback go to stdout.

    Raises SystemExit where the code does.
    """
    text = source.decode()
    linecache.cache[SOURCE] = (len(text), None, text.splitlines(keepends=True), SOURCE)
    namespace = vars(sys.modules["__main__"])
    namespace.clear()
    namespace.update(__name__="__main__", __builtins__=builtins)
    reserve = [bytearray(_RESERVE)]  # to say so, where the memory runs out
    try:
        tree = ast.parse(text, SOURCE)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, SOURCE, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), SOURCE, "eval"), namespace)
            if value is not None:
                print(repr(value))
        sys.stdout.flush()
    except SystemExit:
        raise
    except BaseException as error:  # whatever the program raises is what its author is shown
        reserve.clear()
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != SOURCE:
        frames = frames.tb_next
    sys.stdout.flush()
    # Where memory runs out, the interpreter fails again while it unwinds; that chain tells nothing.
    chain = not isinstance(error, MemoryError)
    traceback.print_exception(type(error), error, frames, file=sys.stdout, limit=-8, chain=chain)


def _close_stdin() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _limit(settings: dict[str, Any]) -> None:
    for name, soft, hard in (
        # The soft one says which limit it was; the hard one cannot be caught.
        ("CPU", settings["cpu_seconds"], settings["cpu_seconds"] + 1),
        ("AS", settings["memory_bytes"], settings["memory_bytes"]),
        ("FSIZE", settings["file_bytes"], settings["file_bytes"]),
        ("NOFILE", 64, 64),
        ("NPROC", _MOST_THREADS, _MOST_THREADS),
        ("CORE", 0, 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def _confine(settings: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if settings["guards_parent"]:
        libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != settings["parent"]:
            os._exit(1)  # the parent died before the line above
    if not settings["seccomp"]:
        return
    _drop_capabilities(libc)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)  # Landlock and seccomp ask for it
    if settings["landlock"] == "must" or (settings["landlock"] == "try" and landlock.abi() >= landlock.OLDEST_ABI):
        landlock.restrict(settings["readable"], [os.devnull], os.getcwd())
    seccomp.install(platform.machine(), settings["allow_network"], settings["allow_files"])


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack("Ii", _CAPABILITIES_3, 0)
    if libc.capset(header, bytes(24)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset failed: {errno.errorcode.get(code, code)}")


def _seed(seed: int | None) -> None:
    if seed is not None:
        import random

        random.seed(seed)


def _forget_ourselves(settings: dict[str, Any]) -> None:
    sys.argv[:] = [SOURCE]
    sys.path[:] = [path for path in sys.path if path != settings["root"]] + settings["packages"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "uirl"]:
        del sys.modules[name]
