"""`uirl evolve` in a process that kills itself with SIGKILL at a named place: `python -m tests.pipelines.mortal PLACE
NUMBER WHEN ...` dies at call NUMBER of the function PLACE, 'before' or 'after' it; the rest are words for `uirl`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import uirl.training.saving as saving
from uirl.cli.main import main


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make_mortal(
    place: str, number: int, when: str, *, die: Callable[[], None] = kill, put: Callable[..., None] = setattr
) -> None:
    """Make call `number` of a function the last thing that this process does; `put` puts it in the other's place."""
    path, _, name = place.rpartition(".")
    try:
        owner: Any = importlib.import_module(path)
    except ImportError:
        package, _, kind = path.rpartition(".")
        owner = getattr(importlib.import_module(package), kind)
    original, calls = getattr(owner, name), [0]

    def mortal(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] >= number and when == "before":
            die()
        result = original(*args, **options)
        if calls[0] >= number:
            die()
        return result

    put(owner, name, mortal)


if __name__ == "__main__":
    saving.LARGEST_SHARE = 1e9  # checkpoints by the clock may take all of the time
    place, number, when, *words = sys.argv[1:]
    if place != "never":
        make_mortal(place, int(number), when)
    sys.exit(main(words))
