"""Log-probs and values of the policy and its reference on the samples of an update, before its first step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from uirl.errors import NonFiniteError
from uirl.learner.batch import SampleBatches
from uirl.learner.policy import Policy
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Scores of the response tokens of an update, float32 on the CPU, in rows of trajectories. None: not asked for."""

    log_probs: Tensor | None = None
    """[N, R], in nats."""
    from_engine: bool = False
    """`log_probs` are those that the engine sampled with."""
    values: Tensor | None = None
    """[N, R], in units of reward: the critic before the token is chosen."""
    final_values: Tensor | None = None
    """[N], in units of reward: the critic after the last token of the trajectory."""


def score_old(
    policy: Policy, settings: LearnerSettings, view: ResponseView, batches: SampleBatches, version: int
) -> BatchScores:
    """Return log-probs and values under the weights of `version`, the policy's, as far as credit and loss read them.

    The engine's log-probs stand for the policy's where the settings trust them. Raises NonFiniteError where a score is
    not finite.
    """
    from_engine = trusts_engine(settings, view, version)
    scores = score_samples(
        policy,
        settings.temperature,
        view,
        batches,
        log_probs=settings.reads_old_log_probs and not from_engine,
        values=settings.spec.needs_critic,
    )
    if settings.reads_old_log_probs and from_engine:
        scores = replace(scores, log_probs=view.rollout_log_probs, from_engine=True)
    _require_finite(view, scores)
    return scores


def score_reference(
    policy: Policy, settings: LearnerSettings, view: ResponseView, batches: SampleBatches
) -> BatchScores:
    """Return the log-probs of the reference policy, where a KL is measured; else nothing."""
    if not settings.needs_reference:
        return BatchScores()
    with policy.reference():
        return score_samples(policy, settings.temperature, view, batches, log_probs=True, values=False)


def trusts_engine(settings: LearnerSettings, view: ResponseView, version: int) -> bool:
    """Return whether the engine's log-probs may stand for the learner's at the start of an update of `version`."""
    if settings.training.old_log_probs != "auto":
        return settings.training.old_log_probs == "rollout"
    return settings.engine_is_exact and all(sampled == version for sampled in view.sample_versions)


@torch.no_grad()
def score_samples(
    policy: Policy, temperature: float, view: ResponseView, batches: SampleBatches, *, log_probs: bool, values: bool
) -> BatchScores:
    """Return the scores of all samples under the weights that `policy` has now; `log_probs`, `values`: which of
    them."""
    if not (log_probs or values):
        return BatchScores()
    token_log_probs, token_values, final_values = ([torch.empty(0)] * len(batches) for _ in range(3))

    def score() -> None:
        for batch, members in batches.of(range(len(batches))):
            scores = policy.log_probs_and_values(batch, temperature, log_probs=log_probs, values=values)
            counts = batch.response_mask.sum(1).tolist()
            if scores.log_probs is not None:
                _place(token_log_probs, members, batch.flatten(scores.log_probs).cpu().split(counts))
            if scores.values is not None and scores.final_values is not None:
                _place(token_values, members, batch.flatten(scores.values).cpu().split(counts))
                _place(final_values, members, scores.final_values.cpu().split(1))

    batches.room.within_memory(score)
    return BatchScores(
        log_probs=view.spread(torch.cat(token_log_probs)) if log_probs else None,
        values=view.spread(torch.cat(token_values)) if values else None,
        final_values=torch.cat(final_values)[list(view.last_samples)] if values else None,
    )


def _place(parts: list[Tensor], members: Sequence[int], scores: Sequence[Tensor]) -> None:
    for index, part in zip(members, scores, strict=True):
        parts[index] = part


def _require_finite(view: ResponseView, scores: BatchScores) -> None:
    for name, compact in (("old log-probs", scores.log_probs), ("values", scores.values)):
        if compact is not None and not compact.isfinite().all():
            row = int((~compact.isfinite()).any(1).nonzero()[0])
            raise NonFiniteError(
                f"the {name} of trajectory {view.name(row)} are not finite. A demonstration has no rollout log-probs "
                "and belongs to Learner.supervised; otherwise the weights are broken."
            )
