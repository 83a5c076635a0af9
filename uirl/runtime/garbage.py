"""The garbage collector beside a long run: it need not look at libraries and models again and again."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

_LOCK = threading.Lock()
_inside = 0


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Return a context in which the garbage collector passes over whatever is there when it begins.

    A full collection looks at every container: with torch and transformers loaded that is half a million objects and
    a tenth of a second, about once in ten updates of a small model. Contexts may lie within each other and overlap;
    with the last of them the collector sees everything again.
    """
    global _inside
    with _LOCK:
        if not _inside:
            gc.collect()
            gc.freeze()
        _inside += 1
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if not _inside:
                gc.unfreeze()
