"""A process watched while it runs: what it writes, and the limits that no kernel keeps."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

MAX_OUTPUT_BYTES = 1 << 20
"""Of one run. A program that writes more is stopped."""
LOOK_SECONDS = 0.05
"""Between two looks."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended."""

    output: str
    status: int
    """Exit status; of a shell 128 and the number of a signal."""
    seconds: float
    """Since its time began."""
    stopped: str | None = None
    """Which limit of ours stopped it; None: it ended by itself, or by a limit of the kernel."""
    began: bool = True
    """False: the process did not get as far as the program."""


class Watch:
    """Reads what a process writes until it ends or breaks a limit."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        seconds: float,
        look: Callable[[], str | None] | None = None,
        start: tuple[IO[bytes], float] | None = None,
    ) -> None:
        """Watch a process that may take `seconds`.

        `look` is asked again and again which limit is broken, in words. `start`: a pipe into which the process says
        that its time begins, and the seconds that it has until then.
        """
        self.output = bytearray()
        self.stopped: str | None = None
        """Which limit it broke, in words."""
        self.late = False
        """That limit is one of time."""
        self._process, self._limit, self._look, self._start = process, seconds, look, start
        self._started = time.monotonic()
        self.began = self._started if start is None else None
        """When its time began; None: it did not say so."""
        self._next_look = self._started

    @property
    def seconds(self) -> float:
        """Since its time began."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def wait(self) -> None:
        """Wait until the process has ended, or must be ended."""
        assert self._process.stdout is not None
        waiting = select.poll()  # unlike select.select it takes descriptors beyond 1023
        output = self._process.stdout.fileno()
        waiting.register(output, select.POLLIN)
        if self._start is not None:
            waiting.register(self._start[0], select.POLLIN)
        is_open = True
        while is_open and self.stopped is None:
            # the word that it begins comes first: its time counts from there
            for end, _ in sorted(waiting.poll(self._seconds_to_wait() * 1000), key=lambda at: at[0] == output):
                if end == output:
                    is_open = self._read(end)
                elif self._start is not None:
                    waiting.unregister(end)
                    self.began = time.monotonic() if self._start[0].read(100) else None
            self._check()
        while self.stopped is None:  # it closed its output; mostly because it ended
            try:
                self._process.wait(self._seconds_to_wait())
                break
            except subprocess.TimeoutExpired:
                self._check()

    def _read(self, end: int) -> bool:
        piece = os.read(end, 1 << 16)
        self.output += piece
        if len(self.output) > MAX_OUTPUT_BYTES:
            del self.output[MAX_OUTPUT_BYTES:]
            self.stopped = f"stopped: more than {MAX_OUTPUT_BYTES} bytes of output"
        return bool(piece)

    def _deadline(self) -> float:
        if self.began is None and self._start is not None:
            return self._started + self._start[1]
        return (self.began or self._started) + self._limit

    def _seconds_to_wait(self) -> float:
        until = self._deadline() if self._look is None else min(self._deadline(), self._next_look)
        return max(0.0, until - time.monotonic())

    def _check(self) -> None:
        if self.stopped is not None:
            return
        now = time.monotonic()
        if now >= self._deadline():
            self.late = True
            seconds = self._start[1] if self.began is None and self._start is not None else self._limit
            self.stopped = f"stopped: not finished after {seconds:g} s"
        elif self._look is not None and now >= self._next_look:
            self.stopped = self._look()
            self._next_look = time.monotonic() + LOOK_SECONDS  # a look may take longer than that
