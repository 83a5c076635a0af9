"""Two small processes between the learner and a worker on the same machine: the fork server, and the worker's keeper.

For each worker the server, which has imported what workers need, forks a keeper, and the keeper forks the worker. The
keeper does nothing but wait: when its worker ends, or the learner is gone, or the learner says so, it kills everything
that the worker started and ends. It is a "child subreaper", so that browsers and tools come to it when their parent
dies, in whatever session they are. It works when the learner or the worker is killed with -9, and while code of an
environment blocks the worker.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

MESSAGE = 64 * 1024
"""Bytes of one message to or from the server."""
KILL, STOP = b"k", b"s"
"""What the learner writes into the pipe of a keeper: kill at once, or after some seconds. So does the pipe's end."""
GRACE_SECONDS = 12.0
_SWEEP_SECONDS = 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(control: int, learner: int, preload: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Be the server: fork a keeper for each message on the socket `control`, until its other end is closed.

    A message from the learner is what the worker runs ('module:Class'), with three file descriptors: the pipe of the
    keeper, the output of the worker, its connection to the learner. Those to the learner are JSON: {"up": pid},
    {"started": pid} and {"ended": pid, "status": n}.
    """
    channel = socket.socket(fileno=control)
    os.environ.update(variables)
    for module in preload:
        importlib.import_module(module)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _tell(channel, {"up": os.getpid()})
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, MESSAGE)
            for pid, status in _reap():
                _tell(channel, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})
        if control in ready:
            program, files, _, _ = socket.recv_fds(channel, MESSAGE, 3)
            if not program:
                os._exit(0)  # the learner is gone; each keeper hears of it by its own pipe
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                os.close(woken)
                os.close(wake)
                channel.close()
                pipe, output, connection = files
                _be_keeper(program.decode(), pipe, output, connection, learner)
            for file in files:
                os.close(file)
            _tell(channel, {"started": pid})


def _tell(channel: socket.socket, words: dict[str, object]) -> None:
    try:
        channel.send(json.dumps(words).encode())
    except OSError:
        os._exit(0)


def _be_keeper(program: str, pipe: int, output: int, connection: int, learner: int) -> NoReturn:
    """Fork the worker, wait for its end or a reason to end it, and leave nothing behind."""
    status = 70
    try:
        os.setsid()  # Ctrl-C in the learner's terminal is the learner's affair
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(output)
        keeper = os.getpid()
        worker = os.fork()
        if worker == 0:
            os.close(pipe)
            _be_worker(program, connection, keeper)
        os.close(connection)  # its end has to tell that the worker has ended
        status = _wait(worker, pipe, learner)
    except BaseException:
        traceback.print_exc()
    finally:
        _sweep()
        os._exit(status & 0xFF)


def _be_worker(program: str, connection: int, keeper: int) -> NoReturn:
    status = 1
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        os.set_inheritable(connection, False)  # what environments start is not to keep it open
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _forget_random_states()
        from uirl.workers.worker import run

        run(program, socket.socket(fileno=connection))
        status = 0
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _forget_random_states() -> None:
    """Give the process draws of its own: what was forked would repeat those of its siblings."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
        sys.modules["torch"].set_num_threads(1)


def _wait(worker: int, pipe: int, learner: int) -> int:
    """Wait until the worker has ended, or has to; return its exit status, 128 + n where signal n ended it."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    ends = [os.pidfd_open(pid) for pid in (worker, learner)] if hasattr(os, "pidfd_open") else []
    for end in ends:
        poll.register(end, select.POLLIN)
    until = float("inf")
    while True:
        pid, status = os.waitpid(worker, os.WNOHANG)
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        left = until - time.monotonic()
        if left <= 0:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            return 128 + signal.SIGKILL
        # short where the system has no way to wait for the end of a process
        for handle, _ in poll.poll(min(left, 3600.0 if ends else 0.2) * 1000):
            said = os.read(handle, 1) if handle == pipe else b""
            if not said:  # the worker has ended, or the learner
                poll.unregister(handle)
            until = min(until, time.monotonic() + (0.0 if said == KILL else GRACE_SECONDS))


def _sweep() -> None:
    """Kill all descendants, those included that come here because their parent died, until none is left."""
    until = time.monotonic() + _SWEEP_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)


def _reap() -> list[tuple[int, int]]:
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(child)
    return ended


def descendants(pid: int) -> list[int]:
    """Return the processes that descend from `pid`, zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        new = [child for one in new for child in children.get(one, [])]
        found += new
    return found


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not on Linux: the pipe is all there is
        ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
