"""Per-token figures of an update for the record: advantages, log-probs and entropies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from uirl.learner.batch import Batch
from uirl.learner.credit import Credit
from uirl.learner.policy import TokenScores
from uirl.learner.scoring import BatchScores
from uirl.learner.view import ResponseView
from uirl.storage import LearnedTokens

OnLearned = Callable[[list[LearnedTokens], int], None]
"""Callback: called with the figures of each trajectory of an update, and the version of the weights at its start."""


class TokenPasses:
    """Log-probs and entropies of the response tokens in the newest pass over each sample of an update.

    They stay on the device of the policy until they are asked for.
    """

    def __init__(self, token_counts: Sequence[int]) -> None:
        """`token_counts`: response tokens of each sample."""
        self._counts = token_counts
        self._newest: dict[int, tuple[Tensor, Tensor]] = {}

    def note(self, batch: Batch, members: Sequence[int], scores: TokenScores) -> None:
        """Note the scores of a micro-batch, whose rows are the samples `members`."""
        assert scores.log_probs is not None
        assert scores.entropy is not None
        counts = [self._counts[i] for i in members]
        parts = [batch.flatten(one.detach()).split(counts) for one in (scores.log_probs, scores.entropy)]
        self._newest |= dict(zip(members, zip(*parts, strict=True), strict=True))

    def has(self, sample: int) -> bool:
        """Return whether there was a pass over a sample."""
        return sample in self._newest

    def flat(self) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies [tokens] of all samples, float32 on the CPU; 0 where there was no pass."""
        absent = [torch.zeros(count) for count in self._counts]
        columns = []
        for column in (0, 1):
            seen = {i: pair[column] for i, pair in self._newest.items()}
            moved = torch.cat(list(seen.values())).float().cpu().split([self._counts[i] for i in seen]) if seen else ()
            parts = dict(zip(seen, moved, strict=True))
            columns.append(torch.cat([parts.get(i, nothing) for i, nothing in enumerate(absent)]))
        return columns[0], columns[1]


def learned_tokens(
    view: ResponseView, credit: Credit, weights: Tensor | None, old: BatchScores, passes: TokenPasses
) -> list[LearnedTokens]:
    """Return what an update made of each trajectory of `view` that has an id; `weights` [N, R]: those of stale tokens.

    What nobody computed is None: the old log-probs where those of the engine stood for them, the newest where there was
    no pass over the trajectory.
    """
    log_probs, entropies = (view.spread(flat).numpy() for flat in passes.flat())
    passed = np.ones(len(view), bool)
    for sample, row in enumerate(view.sample_rows):
        passed[row] &= passes.has(sample)
    mask, advantages = view.mask.numpy(), credit.advantages.numpy()
    old_log_probs = None if old.log_probs is None or old.from_engine else old.log_probs.numpy()
    of_stale = None if weights is None else weights.numpy()
    return [
        LearnedTokens(
            trajectory_id=id,
            advantages=advantages[row][mask[row]],
            old_log_probs=None if old_log_probs is None else old_log_probs[row][mask[row]],
            log_probs=log_probs[row][mask[row]] if passed[row] else None,
            entropies=entropies[row][mask[row]] if passed[row] else None,
            weights=None if of_stale is None else of_stale[row][mask[row]],
        )
        for row, id in enumerate(view.trajectory_ids)
        if id
    ]
