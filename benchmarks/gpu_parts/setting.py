"""Where a part runs, and what it reads of the device there."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Setting:
    """`device`: 'cuda' or 'cpu'. `tiny`: shapes that a CPU takes in seconds. `folder`: for checkpoints and weights."""

    device: str
    tiny: bool
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def pick(self, real: Any, tiny: Any) -> Any:
        """The value for the real sizes, or for the tiny ones."""
        return tiny if self.tiny else real

    def forget_peak(self) -> None:
        """Count the largest use of memory from now on."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> float | None:
        """GiB of tensors when they were most; None: a CPU does not say."""
        return torch.cuda.max_memory_allocated() / GIB if self.on_gpu else None

    def seconds(self, work: Callable[[], Any]) -> float:
        """How long `work` takes until the device is done with it."""
        self.wait()
        started = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - started

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
