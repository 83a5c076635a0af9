"""When a checkpoint is due by the clock."""

from __future__ import annotations

import time

LARGEST_SHARE = 0.05
"""Most of the time that checkpoints by the clock may take."""


class SaveClock:
    """Says when `checkpoint.save_seconds` have gone by, and longer where saving is slow.

    A checkpoint that takes c seconds is due every max(`seconds`, c / 0.05) seconds.
    """

    def __init__(self, seconds: float | None) -> None:
        """`seconds` None: never due."""
        self._seconds = seconds
        self._cost = 0.0
        self._last = time.monotonic()

    def due(self, now: float | None = None) -> bool:
        """Return whether it is time to save; `now` None: the time it is."""
        now = time.monotonic() if now is None else now
        return self._seconds is not None and now - self._last >= max(self._seconds, self._cost / LARGEST_SHARE)

    def saved(self, started: float, ended: float | None = None) -> None:
        """Note a checkpoint that took from `started` to `ended` (None: now), in seconds of `time.monotonic`."""
        self._last = time.monotonic() if ended is None else ended
        self._cost = self._last - started
