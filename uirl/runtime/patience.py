"""How long reading a file of somebody else's may take: SQLite goes through pages that lead in circles for ever."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator

from uirl.errors import StorageError

LOOK = 0.1
"""Seconds between looks at what is being read."""
IDLE = 100
"""Looks without anything to look at after which the thread ends."""


class Patience:
    """Interrupts reads that take more than `seconds`, whatever SQLite is doing then. Any thread may use it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._reading: dict[object, tuple[sqlite3.Connection, float]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    @contextlib.contextmanager
    def watch(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Return a context whose statements are interrupted once time is up. Raises StorageError after `end`."""
        key = object()
        with self._lock:
            if self._ended:
                raise StorageError("nothing is read any more: this process ends")
            if self._thread is None:
                thread = threading.Thread(target=self._look, name="uirl-patience", daemon=True)
                thread.start()
                self._thread = thread
            self._reading[key] = connection, time.monotonic() + self.seconds
        try:
            yield
        finally:
            with self._lock:
                del self._reading[key]

    def end(self) -> None:
        """Interrupt what is being read, and let nothing more be read: the process is to end. For handlers of signals
        too, so it waits for no lock."""
        self._ended = True

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(LOOK)
            now = time.monotonic()
            with self._lock:
                late = [one for one, until in self._reading.values() if self._ended or now > until]
                idle = 0 if self._reading else idle + 1
                if idle > IDLE:
                    self._thread = None
                    return
            for connection in late:
                with contextlib.suppress(sqlite3.Error):  # it is closed by now
                    connection.interrupt()


COMMANDS = Patience(60.0)
"""That of commands: a person who waits is told within a minute."""
