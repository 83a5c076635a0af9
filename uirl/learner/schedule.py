"""Which samples every optimizer step of an update learns from, and how long the steps of an update are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from uirl.learner.credit import Credit
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView


@dataclass(frozen=True, slots=True)
class MinibatchSchedule:
    """Trajectories that carry a signal, dealt anew into minibatches in every epoch."""

    sample_rows: tuple[int, ...]
    """The trajectory of each sample."""
    live: tuple[int, ...]
    """Trajectories that carry a signal."""
    per_epoch: int
    """Minibatches, and so optimizer steps, in an epoch. Fewer live trajectories make fewer minibatches, not smaller
    ones: Adam steps by the same length on a few."""
    shares: int
    """Into how many even shares the loss of the whole batch is cut; a step minimises one."""
    scale: float
    """What the learning rate of a step is multiplied by."""

    @staticmethod
    def of(settings: LearnerSettings, view: ResponseView, credit: Credit) -> MinibatchSchedule:
        """Return the schedule of one update. At least one trajectory must be live."""
        live = tuple(row for row, alive in enumerate(credit.live.tolist()) if alive)
        shares = min(settings.training.minibatches, len(view))
        per_epoch = max(1, round(shares * len(live) / len(view)))
        return MinibatchSchedule(
            sample_rows=view.sample_rows,
            live=live,
            per_epoch=per_epoch,
            # a likelihood is a mean over what was kept, however many episodes there were
            shares=per_epoch if settings.spec.loss == "rejection_sampling" else shares,
            scale=len(live) / len(view) if settings.algorithm.scale_step_by_live else 1.0,
        )

    def minibatches(self, epochs: int, seed: str) -> Iterator[list[int]]:
        """Yield indices of the samples of each minibatch, `per_epoch` in each epoch, in an order that `seed` makes."""
        for epoch in range(epochs):
            order = list(self.live)
            random.Random(f"{seed}/{epoch}").shuffle(order)
            for k in range(self.per_epoch):
                rows = set(order[len(order) * k // self.per_epoch : len(order) * (k + 1) // self.per_epoch])
                yield [i for i, row in enumerate(self.sample_rows) if row in rows]


def share_of_peak(
    schedule: Literal["constant", "linear", "cosine"], final_ratio: float, update: int, updates: int
) -> float:
    """Return the share of its peak that a learning rate or a coefficient has in `update` (from 1) of a run of
    `updates`.

    With `x = (update - 1) / updates`: linear `1 - x`, cosine `(1 + cos(pi x)) / 2`, between 1 and `final_ratio`. The
    first update has the peak, the last one still a step above `final_ratio`, so that it learns; updates beyond the run
    have what its last had.

    Paper: SGDR (1608.03983), equation 5, for the cosine.
    """
    done = (min(update, updates) - 1) / updates
    share = {"constant": 1.0, "linear": 1.0 - done, "cosine": (1.0 + math.cos(math.pi * done)) / 2}[schedule]
    return final_ratio + (1.0 - final_ratio) * share
