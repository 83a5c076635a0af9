"""What trying a model out needs: a moment without training mode, and ids that are plain words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Return a context in which `model` is in evaluation mode: HF's gradient checkpointing keeps no cache in training
    mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def plain_ids(loaded: Any) -> list[int]:
    """Return the tokens of a `LoadedModel` that may be sampled and end nothing."""
    banned = {*loaded.banned_ids, *loaded.end_ids}
    return [i for i in range(len(loaded.tokenizer)) if i not in banned]
