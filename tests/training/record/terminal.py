"""A terminal for tests: a program in a pseudo-terminal, and what stands on its screen in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.patience import PATIENCE

_SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")


@dataclass
class Screen:
    """What the sequences of `rich` leave: lines without end, the newest last."""

    columns: int
    lines: list[str] = field(default_factory=lambda: [""])
    cursor: bool = True
    colours: int = 0
    _x: int = 0
    _y: int = 0

    def feed(self, text: str) -> Screen:
        at = 0
        while at < len(text):
            found = _SEQUENCE.match(text, at)
            if found:
                self._obey(*found.groups())
                at = found.end()
            else:
                self._put(text[at])
                at += 1
        return self

    def _obey(self, argument: str, kind: str) -> None:
        if kind == "A":
            self._y = max(0, self._y - int(argument or 1))
        elif kind == "K":
            self.lines[self._y] = "" if argument == "2" else self.lines[self._y][: self._x]
        elif argument == "?25":
            self.cursor = kind == "h"
        elif kind == "m":
            self.colours += any(30 <= int(n or 0) < 38 for n in argument.split(";"))
        else:
            raise AssertionError(f"a sequence that this terminal does not know: {argument}{kind}")

    def _put(self, character: str) -> None:
        if character == "\r":
            self._x = 0
            return
        if character == "\n" or self._x >= self.columns:
            self._y += 1
            self._x = self._x if character == "\n" else 0
            self.lines += [""] * (self._y + 1 - len(self.lines))
        if character != "\n":
            line = self.lines[self._y].ljust(self._x)
            self.lines[self._y] = line[: self._x] + character + line[self._x + 1 :]
            self._x += 1


def played(
    program: str,
    columns: int = 100,
    *,
    environment: dict[str, str] | None = None,
    meanwhile: Callable[[int, int], None] | None = None,
) -> tuple[Screen, int]:
    """Run Python code in a pseudo-terminal of `columns` x 30; return its screen and exit status. `meanwhile(pid, file)`
    is called once the program has written 'GO'."""
    child, terminal = pty.fork()
    if child == 0:
        for name in ("COLUMNS", "LINES"):  # pytest's readline tells its children of another terminal
            os.environ.pop(name, None)
            os.unsetenv(name)
        os.environ.update({"TERM": "xterm-256color", "LANG": "C.UTF-8", **(environment or {})})
        os.execv(sys.executable, [sys.executable, "-c", program])
    resize(terminal, columns)
    written, told, until = b"", False, time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # Linux says so where the last writer is gone
            break
        if not data:
            break
        written += data
        if meanwhile is not None and not told and b"GO" in written:
            told = True
            meanwhile(child, terminal)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return Screen(columns).feed(written.decode()), os.waitstatus_to_exitcode(status)


def resize(terminal: int, columns: int, rows: int = 30) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
