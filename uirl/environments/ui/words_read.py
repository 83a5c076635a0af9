"""The words on a picture, as rapidocr reads them: for a policy that reads texts and sees nothing."""

from __future__ import annotations

import functools
import threading
from typing import Any

from uirl.errors import ConfigError

_LOCK = threading.Lock()


@functools.cache
def reader() -> Any:
    """Return rapidocr with the models inside its wheel, on one thread. Raises ConfigError where it is missing."""
    try:
        from rapidocr import RapidOCR
    except ImportError as error:
        raise ConfigError(f"ocr: cannot import rapidocr ({error}); pip install 'uirl[ocr]'") from error
    threads = "EngineConfig.onnxruntime.{}_op_num_threads"
    return RapidOCR(params={threads.format("intra"): 1, threads.format("inter"): 1, "Global.log_level": "error"})


def words_read(picture: Any, limit: int) -> str:
    """Return the words on a PIL picture as lines of at most `limit` characters in all, such as '120,15 "Pay now"': x
    and y of the middle of each, in pixels, in reading order. It takes half a second or more."""
    import numpy as np

    with _LOCK:  # its sessions are shared
        found = reader()(np.asarray(picture.convert("RGB"))[:, :, ::-1])
    written = ""
    for text, box in zip(found.txts or (), () if found.boxes is None else found.boxes, strict=True):
        x, y = (round(float(side)) for side in box.mean(axis=0))
        line = f'{x},{y} "{text}"\n'
        if len(written) + len(line) > limit:
            break
        written += line
    return written.rstrip("\n")
