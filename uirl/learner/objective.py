"""The loss of a part of a minibatch: which terms, over which tokens, divided by what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from uirl.algorithms import (
    aggregate_loss,
    aggregation_denominator,
    compute_kl_loss,
    compute_policy_loss,
    compute_rejection_sampling_loss,
    compute_value_loss,
    kept_mask,
)
from uirl.errors import NonFiniteError
from uirl.learner.batch import Batch
from uirl.learner.credit import Credit
from uirl.learner.policy import TokenScores
from uirl.learner.scoring import BatchScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView
from uirl.types import Sample

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class UpdateTensors(Generic[T]):
    """What is fixed before the first step of an update.

    `UpdateTensors[list[Tensor]]` is that of all samples, one flat tensor [tokens] each; `UpdateTensors[Tensor]` that of
    the rows of a micro-batch, [B, T] and 0 where no response token is.
    """

    advantages: T
    returns: T
    rollout_log_probs: T
    old_log_probs: T | None = None
    """None: the loss does not ask for them (rejection sampling)."""
    ref_log_probs: T | None = None
    """None: no reference takes part in the loss."""
    values: T | None = None
    """None: no critic."""

    @staticmethod
    def of(view: ResponseView, credit: Credit, old: BatchScores, reference: BatchScores) -> UpdateTensors[list[Tensor]]:
        """Return the tensors of the samples of `view`, from credit and scores of whole trajectories [N, R]."""
        compact = UpdateTensors(
            credit.advantages, credit.returns, view.rollout_log_probs, old.log_probs, reference.log_probs, old.values
        )
        return compact.map(lambda tensor: view.split(view.flatten(tensor)))

    def map(self, change: Callable[[T], U]) -> UpdateTensors[U]:
        """Return the same with `change` applied to every tensor that is there."""
        return UpdateTensors(
            change(self.advantages),
            change(self.returns),
            change(self.rollout_log_probs),
            None if self.old_log_probs is None else change(self.old_log_probs),
            None if self.ref_log_probs is None else change(self.ref_log_probs),
            None if self.values is None else change(self.values),
        )


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
    tensors: UpdateTensors[list[Tensor]]
    denominator: float
    """What one minibatch divides by: its even share of the batch."""
    loss_length: int | None
    """The constant of 'seq-mean-token-sum-norm'; None with the other aggregations."""
    entropy_coef: float
    """Weight of the entropy bonus in this update; 0: none."""
    kl_loss_coef: float
    """Weight of the KL to the reference in this update; 0: none."""

    @staticmethod
    def of(
        settings: LearnerSettings,
        tensors: UpdateTensors[list[Tensor]],
        minibatches: int,
        *,
        entropy_coef: float,
        kl_loss_coef: float,
    ) -> Objective:
        """Return the objective of a batch, whose tensors are [tokens] per sample and whose loss is spread over
        `minibatches`."""
        counted = tensors.advantages
        if settings.spec.loss == "rejection_sampling":
            counted = [advantages[advantages > 0] for advantages in counted]
        aggregation = settings.loss["aggregation"]
        total = aggregation_denominator(_mask_of([len(part) for part in counted]), aggregation)
        length = settings.loss.get("loss_length")
        if aggregation == "seq-mean-token-sum-norm" and length is None:
            length = max(len(part) for part in tensors.advantages)
        return Objective(settings, tensors, total / minibatches, length, entropy_coef, kl_loss_coef)

    def rows(self, batch: Batch, members: Sequence[int]) -> UpdateTensors[Tensor]:
        """Return the tensors [B, T] of the samples `members`, which are the rows of `batch`."""
        return self.tensors.map(
            lambda parts: batch.scatter(torch.cat([parts[i] for i in members]).to(batch.input_ids.device))
        )

    def terms(self, scores: TokenScores, rows: UpdateTensors[Tensor], response_mask: Tensor) -> list[Term]:
        """Return every term of the loss of one micro-batch; scores, rows and mask are [B, T]."""
        mask = response_mask
        if self.settings.spec.loss == "rejection_sampling":
            mask = kept_mask(rows.advantages, response_mask)
        terms = (
            self._policy(scores, rows, response_mask, mask),
            self._entropy(scores, mask),
            self._value(scores, rows, response_mask),
            self._kl(scores, rows, mask),
        )
        return [term for term in terms if term is not None]

    def _policy(self, scores: TokenScores, rows: UpdateTensors[Tensor], response_mask: Tensor, counted: Tensor) -> Term:
        """Return the term of the policy; the metric of its entropy is a mean over the tokens that are `counted`."""
        assert scores.log_probs is not None
        assert scores.entropy is not None
        if self.settings.spec.loss == "rejection_sampling":
            loss, metrics = compute_rejection_sampling_loss(
                scores.log_probs, rows.advantages, response_mask, **self._shares()
            )
            named = {"nll": metrics["policy/nll"]}
        else:
            assert rows.old_log_probs is not None
            loss, metrics = compute_policy_loss(
                rows.old_log_probs,
                scores.log_probs,
                rows.advantages,
                response_mask,
                options=self.settings.loss.get("options"),
                rollout_log_probs=rows.rollout_log_probs,
                **self._shares(),
            )
            named = {name.removeprefix("policy/"): value for name, value in metrics.items() if name != "policy/tokens"}
            named["clip_fraction"] = named["clip_fraction_low"] + named["clip_fraction_high"]
        tokens = metrics["policy/tokens"]
        named["entropy"] = float(scores.entropy.detach()[counted].sum()) / max(tokens, 1)
        return Term("policy_loss", loss, 1.0, named, tokens)

    def _entropy(self, scores: TokenScores, mask: Tensor) -> Term | None:
        coefficient = self.entropy_coef
        if coefficient <= 0:
            return None
        entropy = scores.entropy if scores.likely_entropy is None else scores.likely_entropy
        assert entropy is not None
        loss = aggregate_loss(entropy, mask, **self._shares())
        tokens = float(mask.sum())
        seen = {"bonus_entropy": float(entropy.detach()[mask].sum()) / max(tokens, 1.0)}
        return Term("entropy_loss", loss, -coefficient, seen, tokens)

    def _value(self, scores: TokenScores, rows: UpdateTensors[Tensor], response_mask: Tensor) -> Term | None:
        if scores.values is None or rows.values is None:
            return None
        loss, metrics = compute_value_loss(
            scores.values, rows.returns, rows.values, response_mask, self.settings.value_clip, **self._shares()
        )
        clipped = {"value_clip_fraction": metrics["value/clip_fraction"]}
        return Term("value_loss", loss, self.settings.training.value_coef, clipped, metrics["value/tokens"])

    def _kl(self, scores: TokenScores, rows: UpdateTensors[Tensor], mask: Tensor) -> Term | None:
        coefficient = self.kl_loss_coef
        if coefficient <= 0 or rows.ref_log_probs is None:
            return None
        assert scores.log_probs is not None
        loss, metrics = compute_kl_loss(
            scores.log_probs, rows.ref_log_probs, mask, estimator=self.settings.algorithm.kl_type, **self._shares()
        )
        return Term("kl_loss", loss, coefficient, {"kl_reference": metrics["kl/mean"]}, int(mask.sum()))

    def _shares(self) -> dict[str, Any]:
        return {
            "aggregation": self.settings.loss["aggregation"],
            "denominator": self.denominator,
            "loss_length": self.loss_length,
        }


def _mask_of(counts: Sequence[int]) -> Tensor:
    """Return booleans [B, longest] with `counts[b]` True in row b."""
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]


def require_finite(name: str, loss: Tensor, samples: Sequence[Sample]) -> None:
    """Raise NonFiniteError that names the samples where the loss `[]` on them is not finite."""
    if not torch.isfinite(loss):
        ids = sorted({sample.trajectory_id for sample in samples})
        raise NonFiniteError(
            f"the {name} is {loss.item()} on {len(samples)} samples of the trajectories {', '.join(ids[:4])}"
            f"{', ...' if len(ids) > 4 else ''}; the step was refused. Were the weights still finite? A lower learning "
            "rate or training.max_grad_norm may have prevented it."
        )
