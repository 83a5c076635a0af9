"""The size of micro-batches: that of the config, halved when memory runs out."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from uirl.errors import OutOfMemory
from uirl.runtime.memory import is_out_of_memory

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
REMEDY = (
    "set model.gradient_checkpointing=true, show smaller or fewer pictures (rollout.max_images), shorten the context "
    "(inference.max_context, rollout.token_budget), train adapters alone (model.use_lora=true), or take a smaller model"
)


@dataclass(slots=True)
class MicroBatchRoom:
    """Padded tokens of one forward and backward pass. One object serves all updates of a learner, so that what did not
    fit once is not tried again."""

    tokens: int
    """Rows x longest row, at most; a longer sample is alone."""
    rows: int = 0
    """Samples of the newest micro-batch."""
    width: int = 0
    """Tokens of its longest sample."""
    size: int = 0
    """What it takes, in tokens: rows x width, or less where prompts are shared."""
    recompute: Callable[[], bool] | None = None
    """Lets activations be computed again in the backward pass; False: they are already, or cannot be."""

    def within_memory(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns. Where memory runs out in it, halve the micro-batch and call it again, from its
        beginning: it must forget what an earlier call left half done. Of one sample activations are computed again.
        Raises OutOfMemory where that does not fit."""
        while True:
            try:
                return attempt()
            except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
                if not is_out_of_memory(error):
                    raise
                reason = str(error).partition("\n")[0]
            # behind the handler, whose traceback holds the tensors of the failed pass
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if self.rows > 1 or not self._recomputes(reason):
                self._halve(reason)

    def _recomputes(self, reason: str) -> bool:
        # without gradients no activations are kept
        if self.recompute is None or not torch.is_grad_enabled() or not self.recompute():
            return False
        _LOG.warning(
            "memory ran out in the learner on one sequence of %d tokens; from now on its activations are computed "
            "again in the backward pass. The gradient stays the same; model.gradient_checkpointing=true avoids the "
            "failed attempt (%s)",
            self.width,
            reason,
        )
        return True

    def _halve(self, reason: str) -> None:
        if self.rows <= 1:
            raise OutOfMemory(
                f"memory ran out in the learner on one sequence of {self.width} tokens, the smallest micro-batch: "
                f"{reason}. Expected room for it; {REMEDY}. `uirl plan` computes what fits"
            )
        self.tokens = self.size // 2
        _LOG.warning(
            "memory ran out in the learner on a micro-batch of %d sequences, %d tokens; from now on one has at most "
            "%d. The gradient stays the same; training.micro_batch_tokens=%d avoids the failed attempt (%s)",
            self.rows,
            self.size,
            self.tokens,
            self.tokens,
            reason,
        )
