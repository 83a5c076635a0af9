"""The loss of a part of a minibatch: which terms, over which tokens, divided by what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uirl.algorithms import (
    aggregate_loss,
    aggregation_denominator,
    compute_kl_loss,
    compute_policy_loss,
    compute_rejection_sampling_loss,
    compute_value_loss,
)
from uirl.errors import NonFiniteError
from uirl.learner.batch import Batch
from uirl.learner.credit import Credit
from uirl.learner.policy import TokenScores
from uirl.learner.scoring import BatchScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView
from uirl.types import Sample


@dataclass(frozen=True, slots=True)
class UpdateTensors:
    """What is fixed before the first step of an update: one flat tensor [tokens] per sample in each list."""

    advantages: list[Tensor]
    returns: list[Tensor]
    rollout_log_probs: list[Tensor]
    old_log_probs: list[Tensor] | None = None
    """None: the loss does not ask for them (rejection sampling)."""
    ref_log_probs: list[Tensor] | None = None
    """None: no reference takes part in the loss."""
    values: list[Tensor] | None = None
    """None: no critic."""

    @staticmethod
    def of(view: ResponseView, credit: Credit, old: BatchScores, reference: BatchScores) -> UpdateTensors:
        """The tensors of the samples of `view`, from the credit and the scores of whole trajectories [N, R]."""

        def parts(compact: Tensor) -> list[Tensor]:
            return view.split(view.flatten(compact))

        def optional(compact: Tensor | None) -> list[Tensor] | None:
            return None if compact is None else parts(compact)

        return UpdateTensors(
            advantages=parts(credit.advantages),
            returns=parts(credit.returns),
            rollout_log_probs=parts(view.rollout_log_probs),
            old_log_probs=optional(old.log_probs),
            ref_log_probs=optional(reference.log_probs),
            values=optional(old.values),
        )

    def rows(self, batch: Batch, members: Sequence[int]) -> UpdateRows:
        """The tensors of the samples `members`, which are the rows of `batch`."""

        def rows(parts: list[Tensor]) -> Tensor:
            return batch.scatter(torch.cat([parts[i] for i in members]).to(batch.input_ids.device))

        def optional(parts: list[Tensor] | None) -> Tensor | None:
            return None if parts is None else rows(parts)

        return UpdateRows(
            mask=batch.response_mask,
            advantages=rows(self.advantages),
            returns=rows(self.returns),
            rollout_log_probs=rows(self.rollout_log_probs),
            old_log_probs=optional(self.old_log_probs),
            ref_log_probs=optional(self.ref_log_probs),
            values=optional(self.values),
        )


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """`UpdateTensors` of the rows of one micro-batch, each [B, T], 0 where no response token is."""

    mask: Tensor
    """Booleans: the response tokens."""
    advantages: Tensor
    returns: Tensor
    rollout_log_probs: Tensor
    old_log_probs: Tensor | None
    ref_log_probs: Tensor | None
    values: Tensor | None


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the loss of a micro-batch."""

    name: str
    loss: Tensor
    """A scalar with gradient."""
    weight: float
    metrics: dict[str, float]
    """Means over the tokens of the term."""
    tokens: float
    """How many these are."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The losses of one update. Denominators are those of the whole batch, so that neither the size of micro-batches
    nor the number of live tokens in a minibatch changes the weight of a token."""

    settings: LearnerSettings
    tensors: UpdateTensors
    denominator: float
    """What one minibatch divides by: its even share of the batch."""
    loss_length: int | None
    """The constant of 'seq-mean-token-sum-norm'; None with the other aggregations."""

    @staticmethod
    def of(settings: LearnerSettings, tensors: UpdateTensors, minibatches: int) -> Objective:
        """The objective of a batch whose loss is spread over `minibatches`."""
        counted = tensors.advantages
        if settings.spec.loss == "rejection_sampling":
            counted = [advantages[advantages > 0] for advantages in counted]
        aggregation = settings.policy_loss["aggregation"]
        total = aggregation_denominator(_mask_of([len(part) for part in counted]), aggregation)
        length = settings.policy_loss.get("loss_length")
        if aggregation == "seq-mean-token-sum-norm" and length is None:
            length = max(len(part) for part in tensors.advantages)
        return Objective(settings, tensors, total / minibatches, length)

    def terms(self, scores: TokenScores, rows: UpdateRows) -> list[Term]:
        """Every term of the loss of one micro-batch, whose scores are [B, T] like `rows`."""
        mask = rows.mask
        if self.settings.spec.loss == "rejection_sampling":
            mask = mask & (rows.advantages > 0)
        terms = (
            self._policy(scores, rows, mask),
            self._entropy(scores, mask),
            self._value(scores, rows),
            self._kl(scores, rows, mask),
        )
        return [term for term in terms if term is not None]

    def _policy(self, scores: TokenScores, rows: UpdateRows, mask: Tensor) -> Term:
        assert scores.log_probs is not None
        assert scores.entropy is not None
        options = self.settings.policy_loss | self._shares()
        if self.settings.spec.loss == "rejection_sampling":
            loss, metrics = compute_rejection_sampling_loss(scores.log_probs, rows.advantages, rows.mask, **options)
            named = {"nll": metrics["policy/nll"]}
        else:
            assert rows.old_log_probs is not None
            loss, metrics = compute_policy_loss(
                rows.old_log_probs,
                scores.log_probs,
                rows.advantages,
                rows.mask,
                rollout_log_probs=rows.rollout_log_probs,
                **options,
            )
            named = {name.removeprefix("policy/"): value for name, value in metrics.items() if name != "policy/tokens"}
            named["clip_fraction"] = named["clip_fraction_low"] + named["clip_fraction_high"]
        tokens = metrics["policy/tokens"]
        named["entropy"] = float(scores.entropy.detach()[mask].sum()) / max(tokens, 1)
        return Term("policy_loss", loss, 1.0, named, tokens)

    def _entropy(self, scores: TokenScores, mask: Tensor) -> Term | None:
        coefficient = self.settings.entropy_coef
        if coefficient <= 0:
            return None
        assert scores.entropy is not None
        loss = aggregate_loss(scores.entropy, mask, **self._shares())
        return Term("entropy_loss", loss, -coefficient, {}, float(mask.sum()))

    def _value(self, scores: TokenScores, rows: UpdateRows) -> Term | None:
        if scores.values is None or rows.values is None:
            return None
        loss, metrics = compute_value_loss(
            scores.values, rows.returns, rows.values, rows.mask, self.settings.value_clip, **self._shares()
        )
        clipped = {"value_clip_fraction": metrics["value/clip_fraction"]}
        return Term("value_loss", loss, self.settings.value_coef, clipped, metrics["value/tokens"])

    def _kl(self, scores: TokenScores, rows: UpdateRows, mask: Tensor) -> Term | None:
        coefficient = self.settings.kl_loss_coef
        if coefficient <= 0 or rows.ref_log_probs is None:
            return None
        assert scores.log_probs is not None
        loss, metrics = compute_kl_loss(
            scores.log_probs, rows.ref_log_probs, mask, estimator=self.settings.kl_type, **self._shares()
        )
        return Term("kl_loss", loss, coefficient, {"kl_reference": metrics["kl/mean"]}, int(mask.sum()))

    def _shares(self) -> dict[str, Any]:
        return {
            "aggregation": self.settings.policy_loss["aggregation"],
            "denominator": self.denominator,
            "loss_length": self.loss_length,
        }


def _mask_of(counts: Sequence[int]) -> Tensor:
    """Booleans [B, longest] with `counts[b]` True in row b."""
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]


def require_finite(name: str, loss: Tensor, samples: Sequence[Sample]) -> None:
    """Raises NonFiniteError that names the samples where the loss `[]` on them is not finite."""
    if not torch.isfinite(loss):
        ids = sorted({sample.trajectory_id for sample in samples})
        raise NonFiniteError(
            f"the {name} is {loss.item()} on {len(samples)} samples of the trajectories {', '.join(ids[:4])}"
            f"{', ...' if len(ids) > 4 else ''}; the step was refused. Were the weights still finite? A lower learning "
            "rate or training.max_grad_norm may have prevented it."
        )
