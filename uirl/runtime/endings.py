"""How a process ended, in words."""

from __future__ import annotations

import signal


def how_it_ended(status: int) -> str:
    """Return how a process ended by its status: -n, or 128 + n as shells have it, where signal n ended it."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:  # no signal
        return f"it ended with status {status}"
    if number == signal.SIGKILL:
        return f"it was killed by {name}, as the system does where memory runs out (`dmesg` tells)"
    return f"it was killed by {name}"
