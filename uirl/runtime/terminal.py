"""Text that reaches a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_TURNS_TEXT_ROUND = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def visible(text: str) -> str:
    """Return the text with its control characters as '\\x1b', but for line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if _is_control(c) else c for c in text)


def short(path: Path) -> Path:
    """Return a path as a person writes it: below the folder where the process is, without that."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):  # it is elsewhere; the folder is gone
        return path


class Output:
    """A stream of this process whose other end may go: a pager that was left, a terminal that hung up, a full disk.
    What cannot be written is left out, and whoever writes goes on: a run is worth more than its lines."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.gone = False
        """Whether nobody reads any more."""

    def write(self, text: str) -> int:
        """Write a text, or leave it out."""
        with self._lossy():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts, or leave them out."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Write what waits, or leave it out."""
        with self._lossy():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _lossy(self) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError:
            raise
        except BrokenPipeError:
            self.gone = True
            with contextlib.suppress(OSError, ValueError):  # else what waits is tried again, and fails, at the end
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)
        except (OSError, ValueError):  # a full disk may have room again; a stream may be closed
            pass


@contextlib.contextmanager
def lasting_output() -> Iterator[list[Output]]:
    """Put an `Output` in the place of stdout and stderr, where there are any, and yield them. A descriptor that is
    closed is opened to nowhere: the next file that is opened would get its number, and what is printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    names = ("stdout", "__stdout__", "stderr", "__stderr__")
    before = {name: getattr(sys, name) for name in names}
    made = {id(stream): Output(stream) for stream in before.values() if stream is not None}
    for name, stream in before.items():
        if stream is not None:
            setattr(sys, name, made[id(stream)])
    try:
        yield list(made.values())
    finally:
        for output in made.values():
            output.flush()
        for name, stream in before.items():
            setattr(sys, name, stream)


def _is_control(c: str) -> bool:
    return c not in "\n\t" and (unicodedata.category(c) in ("Cc", "Cs") or c in _TURNS_TEXT_ROUND)
