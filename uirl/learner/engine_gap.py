"""How far the log-probs of engine and learner are apart, and when that is no rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uirl.config import ConfigStore
from uirl.errors import AlignmentError
from uirl.inference.models.precision import dtype_of
from uirl.learner.batch import Batch, describe
from uirl.types import Sample


@dataclass(frozen=True, slots=True)
class GapLimits:
    """|engine - learner| in nats beyond which it is no rounding: other tokens, other pictures, other weights, or
    attention that the engine does not know."""

    largest: float
    """Of one token."""
    mean: float
    """Over the tokens of one sample, where it has `MEAN_OF` or more."""


MEAN_OF = 16
FLOAT32 = GapLimits(largest=0.1, mean=0.01)
"""Engine and learner agree to 1e-4, on a GPU to 1e-3."""
HALF = GapLimits(largest=2.0, mean=0.2)
"""bfloat16 and float16. Measured with the embedded engine over tiny models of seven families with flat and with peaked
distributions: at most 0.2 for one token and 0.022 as a mean over a sample. An engine that ignores a window made 4 to 11
and 0.8 to 3.5 where the distributions were peaked."""
OTHER_ENGINE = GapLimits(largest=math.inf, mean=0.5)
"""Other kernels, possibly of other precision: single tokens may differ widely, a whole sample may not."""


def gap_limits(config: ConfigStore) -> GapLimits | None:
    """Return the limits for the engine of `config`; None: engine and learner are not meant to agree."""
    inference, model = config.inference, config.model
    dropping = model.use_lora and model.lora.lora_dropout > 0
    if inference.filtered or dropping or inference.temperature == 0 or inference.backend == "openai":
        return None
    if inference.backend != "transformers":
        return OTHER_ENGINE
    return FLOAT32 if dtype_of(model) == "float32" else HALF


@dataclass(frozen=True, slots=True)
class EngineGap:
    """|learner - engine| on the tokens that the learner's own weights sampled."""

    nats: Tensor
    """[B, T], 0 where nothing is compared."""
    counts: Tensor
    """int64 [B]: compared tokens of each row."""

    @staticmethod
    def of(log_probs: Tensor, batch: Batch, current: Sequence[bool]) -> EngineGap:
        """Return the gap between `log_probs` [B, T] and those of the engine, in rows that are `current` [B]."""
        rows = torch.tensor(current, device=log_probs.device)
        comparable = batch.response_mask & rows[:, None] & batch.rollout_log_probs.isfinite()
        nats = torch.where(comparable, log_probs - batch.rollout_log_probs, 0.0).abs()
        return EngineGap(nats, comparable.sum(1))

    @property
    def tokens(self) -> int:
        """Compared tokens of all rows."""
        return int(self.counts.sum())

    def require(self, limits: GapLimits, samples: Sequence[Sample], dtype: torch.dtype) -> None:
        """Raise AlignmentError where the gap is more than rounding in `dtype` explains; `samples` are the rows."""
        means = torch.where(self.counts >= MEAN_OF, self.nats.sum(1) / self.counts.clamp(min=1), 0.0)
        row, column = divmod(int(self.nats.argmax()), self.nats.shape[1])
        if float(self.nats.max()) > limits.largest:
            gap, limit = f"{float(self.nats.max()):.3g} nats on token {column}", limits.largest
        elif float(means.max()) > limits.mean:
            row, limit = int(means.argmax()), limits.mean
            gap = f"{float(means[row]):.3g} nats as a mean over {int(self.counts[row])} tokens"
        else:
            return
        raise AlignmentError(
            f"engine and learner disagree by {gap} of {describe(samples[row])} expected at most {limit:g}, far more "
            f"than {dtype} rounds: the engine saw other tokens, other pictures or other weights, or attends "
            "differently from the model. Did update_weights run after the last step? `uirl check` finds the turn."
        )
