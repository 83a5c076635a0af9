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
from uirl.learner.batch import Batch
from uirl.learner.credit import Credit
from uirl.learner.policy import TokenScores
from uirl.learner.scoring import BatchScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.view import ResponseView
from uirl.metrics import Metrics


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
        """The tensors of the samples of `view`: `credit` [N, R], scores of the old policy and the reference."""

        def split(flat: Tensor | None) -> list[Tensor] | None:
            return None if flat is None else view.split(flat)

        return UpdateTensors(
            advantages=view.split(view.flatten(credit.advantages)),
            returns=view.split(view.flatten(credit.returns)),
            rollout_log_probs=view.split(view.flatten(view.rollout_log_probs)),
            old_log_probs=split(old.log_probs),
            ref_log_probs=split(reference.log_probs),
            values=split(old.values),
        )


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

    def terms(
        self, scores: TokenScores, batch: Batch, chosen: Sequence[int], metrics: Metrics
    ) -> dict[str, tuple[float, Tensor]]:
        """(weight, loss) of every term of the samples `chosen`, which are the rows of `batch`."""
        settings, tensors = self.settings, self.tensors
        advantages = self._rows(tensors.advantages, batch, chosen)
        mask = batch.response_mask
        assert scores.log_probs is not None
        if settings.spec.loss == "rejection_sampling":
            mask = mask & (advantages > 0)
        policy = self._policy(scores.log_probs, advantages, batch, chosen, metrics)
        terms = {"policy_loss": (1.0, policy)}
        assert scores.entropy is not None
        tokens = int(mask.sum())
        if settings.entropy_coef > 0:
            entropy = aggregate_loss(scores.entropy, mask, **self._shares())
            terms["entropy_loss"] = (-settings.entropy_coef, entropy)
        metrics.add("entropy", float(scores.entropy.detach()[mask].sum()) / max(tokens, 1), tokens)
        if scores.values is not None and tensors.values is not None:
            loss, statistics = compute_value_loss(
                scores.values,
                self._rows(tensors.returns, batch, chosen),
                self._rows(tensors.values, batch, chosen),
                batch.response_mask,
                settings.value_clip,
                **self._shares(),
            )
            terms["value_loss"] = (settings.value_coef, loss)
            metrics.add("value_clip_fraction", statistics["value/clip_fraction"], statistics["value/tokens"])
        if settings.kl_loss_coef > 0 and tensors.ref_log_probs is not None:
            ref = self._rows(tensors.ref_log_probs, batch, chosen)
            loss, statistics = compute_kl_loss(
                scores.log_probs,
                ref,
                mask,
                estimator=settings.kl_type,
                **self._shares(),
            )
            terms["kl_loss"] = (settings.kl_loss_coef, loss)
            metrics.add("kl_reference", statistics["kl/mean"], tokens)
        return terms

    def _policy(
        self, log_probs: Tensor, advantages: Tensor, batch: Batch, chosen: Sequence[int], metrics: Metrics
    ) -> Tensor:
        options = self.settings.policy_loss | self._shares()
        if self.settings.spec.loss == "rejection_sampling":
            loss, statistics = compute_rejection_sampling_loss(log_probs, advantages, batch.response_mask, **options)
            metrics.add("nll", statistics["policy/nll"], statistics["policy/tokens"])
            return loss
        assert self.tensors.old_log_probs is not None
        loss, statistics = compute_policy_loss(
            self._rows(self.tensors.old_log_probs, batch, chosen),
            log_probs,
            advantages,
            batch.response_mask,
            rollout_log_probs=self._rows(self.tensors.rollout_log_probs, batch, chosen),
            **options,
        )
        weight = statistics.pop("policy/tokens")
        statistics["policy/clip_fraction"] = (
            statistics["policy/clip_fraction_low"] + statistics["policy/clip_fraction_high"]
        )
        for name, value in statistics.items():
            metrics.add(name.removeprefix("policy/"), value, weight)
        return loss

    def _shares(self) -> dict[str, Any]:
        return {
            "aggregation": self.settings.policy_loss["aggregation"],
            "denominator": self.denominator,
            "loss_length": self.loss_length,
        }

    @staticmethod
    def _rows(parts: list[Tensor], batch: Batch, chosen: Sequence[int]) -> Tensor:
        """The parts of the chosen samples as [B, T]."""
        return batch.scatter(torch.cat([parts[i] for i in chosen]).to(batch.input_ids.device))


def _mask_of(counts: Sequence[int]) -> Tensor:
    """Booleans [B, longest] with `counts[b]` True in row b."""
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]
