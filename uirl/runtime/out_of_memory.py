"""Whether an error says that memory ran out."""

from __future__ import annotations

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory of a GPU or of the machine ran out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # the allocator of the CPU raises a plain RuntimeError
    words = str(error)
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in words and "memory" in words
