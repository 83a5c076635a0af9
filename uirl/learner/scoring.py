"""What a policy says about all samples of an update, measured without a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uirl.errors import NonFiniteError
from uirl.learner.batch import SampleBatches, describe
from uirl.learner.policy import Policy
from uirl.learner.view import ResponseView


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Scores of every response token: float32 on the CPU, in the order of the samples. None: not asked for."""

    log_probs: Tensor | None = None
    """[tokens], in nats."""
    values: Tensor | None = None
    """[tokens], in units of reward: the critic before the token is chosen."""
    final_values: Tensor | None = None
    """[samples], in units of reward: the critic after the last token."""

    def require_finite(self, view: ResponseView, batches: SampleBatches) -> None:
        """Raises NonFiniteError that names the first sample whose log-probs or values are not finite."""
        for name, flat in (("old log-probs", self.log_probs), ("values", self.values)):
            if flat is not None and not flat.isfinite().all():
                index = next(i for i, part in enumerate(view.split(flat)) if not part.isfinite().all())
                raise NonFiniteError(
                    f"the {name} of {describe(batches.samples[index])} are not finite. A demonstration has no rollout "
                    "log-probs and belongs to Learner.supervised; otherwise the weights are broken."
                )


@torch.no_grad()
def score_samples(
    policy: Policy, batches: SampleBatches, temperature: float, *, log_probs: bool, values: bool
) -> BatchScores:
    """The scores of all samples under the weights of `policy`; `log_probs`, `values`: which of them."""
    if not (log_probs or values):
        return BatchScores()
    token_log_probs, token_values, final_values = ([torch.empty(0)] * len(batches) for _ in range(3))
    for batch, members in batches.of(range(len(batches))):
        scores = policy.log_probs_and_values(batch, temperature, log_probs=log_probs, values=values)
        counts = batch.response_mask.sum(1).tolist()
        if scores.log_probs is not None:
            _place(token_log_probs, members, batch.flatten(scores.log_probs).cpu().split(counts))
        if scores.values is not None and scores.final_values is not None:
            _place(token_values, members, batch.flatten(scores.values).cpu().split(counts))
            _place(final_values, members, scores.final_values.cpu().split(1))
    return BatchScores(
        log_probs=torch.cat(token_log_probs) if log_probs else None,
        values=torch.cat(token_values) if values else None,
        final_values=torch.cat(final_values) if values else None,
    )


def _place(parts: list[Tensor], members: Sequence[int], scores: Sequence[Tensor]) -> None:
    for index, part in zip(members, scores, strict=True):
        parts[index] = part
