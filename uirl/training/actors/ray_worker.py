"""What Ray runs for one actor of ours: a process that is restarted wherever there is room, and works when it is told.

The actor itself is a child with a keeper (`keeper`). Ray's own ways to end what a worker has started miss programs in
sessions of their own, which browsers are; a keeper finds them, also when the worker was killed with -9.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import suppress

from uirl.peers.way import Place, Way, write_errand

_PR_SET_CHILD_SUBREAPER = 36
_CODE = """
import sys
sys.path[:] = {path!r}
from uirl.training.actors.keeper import keep_one
keep_one({pipe}, {output}, {errand}, {parent})
"""


class RayWorker:
    """The class of the Ray actors."""

    def __init__(self) -> None:
        with suppress(OSError, AttributeError):
            # where Ray has its workers adopt orphans, this one would adopt keepers, and kill them when it ends
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0)

    def place(self) -> Place:
        """Return where this process is."""
        return Place.here()

    def work(self, way: Way, made: bytes | None) -> tuple[int, str]:
        """Have an actor for the learner until that is gone or done; return its exit status and its last lines."""
        from uirl.training.actors.launch_processes import Output

        # what is printed here comes out where the learner runs, with the name of this process
        output = Output(way.name, lambda _, line: print(line, file=sys.stderr, flush=True))
        read, write = os.pipe()  # its end tells the keeper that this process is gone
        ends = [read, output.end, write_errand(way, made)]
        code = _CODE.format(path=sys.path, pipe=ends[0], output=ends[1], errand=ends[2], parent=os.getpid())
        try:
            child = subprocess.Popen([sys.executable, "-c", code], pass_fds=ends, stdin=subprocess.DEVNULL)
        finally:
            for end in ends:
                os.close(end)
        try:
            status = child.wait()
        finally:
            os.close(write)
        output.join()
        return status, "\n".join(output.last)
