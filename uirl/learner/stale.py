"""Samples that older weights than the learner's sampled: how far they are off, and what each of their tokens weighs.

The loss compares the learner now with the learner at the start of the update. The step from there to the policy that
sampled is this weight: the decoupled objective of Hilton et al. (2110.00641), as AReaL (2505.24298) applies it to
asynchronous runs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from uirl.algorithms import (
    effective_sample_size,
    level_log_weight,
    masked_mean,
    masked_weight,
    mismatch_log_weight,
    truncated_weight,
)
from uirl.errors import AlignmentError
from uirl.learner.scoring import BatchScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView


def stale_weights(
    settings: LearnerSettings, view: ResponseView, old: BatchScores, version: int
) -> tuple[Tensor | None, dict[str, float]]:
    """Return the weight of every token [N, R] in an update of `version`, and the metrics of what is stale.

    A sample is stale as a whole where older weights sampled any token of it: what follows was sampled from their cache.
    All other tokens weigh exactly 1. None: nothing is stale, or it is not corrected. Raises AlignmentError where a
    stale sample that is to be corrected has no log-probs of the engine, or those of what a filter left.
    """
    stale = torch.tensor([sampled < version for sampled in view.sample_versions])
    if not stale.any():
        return None, {}
    metrics = _ages(view, stale, version)
    if old.log_probs is None or old.from_engine or not (settings.like_with_like or settings.corrects_stale):
        return None, metrics
    mask = _padded(view, view.mask) & stale[:, None]
    mask &= _known(settings, view, mask)
    log_weight = mismatch_log_weight(_padded(view, old.log_probs), _padded(view, view.rollout_log_probs), mask)
    metrics |= _distance(log_weight, mask)
    if not settings.corrects_stale:
        return None, metrics
    weights, corrected = _correction(settings, log_weight, mask)
    counted = torch.arange(weights.shape[1]) < torch.tensor(view.token_counts)[:, None]
    return view.spread(weights[counted]), metrics | corrected


def _correction(settings: LearnerSettings, log_weight: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, float]]:
    """Return the weights [S, T], 1 outside `mask`, and the shares of its tokens that are capped or left out."""
    finer = settings.algorithm
    level = finer.stale_level
    if finer.stale_correction == "masked":
        weights = masked_weight(log_weight, mask, *finer.stale_range, level)
        return weights, {"stale/masked": float(masked_mean((weights == 0).float(), mask))}
    weights = truncated_weight(log_weight, mask, finer.stale_cap, level)
    above = level_log_weight(log_weight, mask, level).exp() > finer.stale_cap
    return weights, {"stale/capped": float(masked_mean(above.float(), mask))}


def _distance(log_weight: Tensor, mask: Tensor) -> dict[str, float]:
    """Return how far the policy that sampled the tokens of `mask` [S, T] is from the learner's at the start."""
    of_sequence = level_log_weight(log_weight, mask, "sequence")[:, :1].exp()
    return {
        "stale/gap": float(masked_mean(log_weight.abs(), mask)),
        "stale/ess": float(effective_sample_size(log_weight.exp(), mask)),
        "stale/ess_sequence": float(effective_sample_size(of_sequence, mask.any(1, keepdim=True))),
    }


def _ages(view: ResponseView, stale: Tensor, version: int) -> dict[str, float]:
    """Return how much is stale, and by how many versions. `stale`: booleans [S]."""
    versions = [
        part for part, old in zip(view.split(view.flatten(view.policy_version)), stale.tolist(), strict=True) if old
    ]
    ages = version - torch.cat(versions)
    return {
        "stale/share": len(ages) / view.tokens,
        "stale/age_mean": float(ages.double().mean()),
        "stale/age_max": float(ages.max()),
        "stale/mixed": sum(bool(part.min() != part.max()) for part in versions) / len(versions),
    }


def _known(settings: LearnerSettings, view: ResponseView, mask: Tensor) -> Tensor:
    """Find the tokens of which the engine said how likely they were among all: booleans [S, T]."""
    known = _padded(view, view.rollout_log_probs).isfinite() & settings.like_with_like
    unknown = (mask & ~known).any(1)
    if settings.corrects_stale and unknown.any():
        row = view.sample_rows[int(unknown.nonzero()[0])]
        raise AlignmentError(
            f"trajectory {view.name(row)} was sampled by older weights and cannot be corrected for that: got no "
            "log-probs of the engine that compare with the learner's, expected one per token; use an engine that "
            "returns them, inference.top_p=1 and top_k=0, actors.staleness=0, or algorithm.stale_correction=off"
        )
    return known


def _padded(view: ResponseView, compact: Tensor) -> Tensor:
    """Return numbers of rows of trajectories [N, R] in rows of samples [S, T], 0 beyond their end."""
    return pad_sequence(view.split(view.flatten(compact)), batch_first=True)
