"""The steps of an update: the loss of a part of a minibatch, passes over minibatches and over demonstrations, and
what was made of each token.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from uirl.algorithms import (
    aggregate_loss,
    aggregation_denominator,
    compute_kl,
    compute_kl_loss,
    compute_policy_loss,
    compute_rejection_sampling_loss,
    compute_value_loss,
    kept_mask,
)
from uirl.errors import NonFiniteError
from uirl.learner.batch import Batch, SampleBatches
from uirl.learner.credit import BatchScores, Credit
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy, TokenScores
from uirl.learner.settings import EngineGap, LearnerSettings
from uirl.learner.view import ResponseView
from uirl.metrics import Metrics, Reduction
from uirl.storage import LearnedTokens
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


@dataclass(frozen=True, slots=True)
class UpdateSteps:
    """Takes the optimizer steps of one update and measures them."""

    policy: Policy
    optimizer: Optimizer
    settings: LearnerSettings
    version: int
    """Of the policy when the update begins."""
    metrics: Metrics
    passes: TokenPasses | None = None
    """Where to note what each pass says of the tokens; None: nobody asks."""

    def take(
        self, batches: SampleBatches, objective: Objective, minibatches: Iterable[list[int]], scale: float
    ) -> None:
        """Take a step on each of the `minibatches` (indices of samples), its learning rate times `scale`.

        With `algorithm.target_kl` the first minibatch after the first step whose KL is above it ends the update; with
        `algorithm.max_update_kl` what the update did is then shortened.
        """
        finer = self.settings.algorithm
        start = None if finer.max_update_kl is None else self.optimizer.weights()
        steps, stopped, seen = 0, False, set[int]()
        for chosen in minibatches:
            seen |= set(chosen)
            # after the first step the learner's weights are no longer those that the engine sampled with
            stopped = not self._step(batches, chosen, objective, scale, first=not steps)
            if stopped:
                break
            steps += 1
        self.metrics.add("optimizer_steps", steps)
        if finer.target_kl is not None:
            self.metrics.add("kl_stop", float(stopped))
        if start is not None and finer.max_update_kl is not None:
            of_update = (batches, objective, sorted(seen))
            limit, temperature = finer.max_update_kl, self.settings.temperature
            self.metrics.add_all(shorten_update(self.policy, self.optimizer, start, limit, temperature, *of_update))

    def _step(
        self, batches: SampleBatches, chosen: Sequence[int], objective: Objective, scale: float, *, first: bool
    ) -> bool:
        """Take one step on the chosen samples; return False where their KL forbids it.

        `first`: the weights are those of the update's start, so there is no KL yet, and the gap between engine and
        learner is measured.
        """
        target = self.settings.algorithm.target_kl
        with training(self.policy, self.optimizer):
            found = batches.results(lambda: self._accumulate(batches, chosen, objective, compare=first), _Found)
            losses, figures = joined_figures(found)
            if self.passes is not None:
                self.passes.join(batches, chosen)
            self.metrics.merge(figures.collected())
            kl = figures.reduce().get("approx_kl")
            if target is not None and not first and (kl is None or kl > target):
                return False
            self.metrics.add_all(self.optimizer.step(scale))
        # the entropy itself is already a metric, as a mean per token
        self.metrics.add_all({name: loss for name, loss in losses.items() if name != "entropy_loss"})
        return True

    def _accumulate(
        self, batches: SampleBatches, chosen: Sequence[int], objective: Objective, *, compare: bool
    ) -> _Found:
        """Leave the gradient of the chosen samples in the optimizer, and nothing of an earlier attempt; return their
        losses and what was measured."""
        self.optimizer.zero_grad()
        losses: dict[str, float] = {}
        figures = Metrics()
        for batch, members in batches.of(chosen):
            rows = objective.rows(batch, members)
            scores = self.policy.log_probs_and_values(
                batch,
                self.settings.temperature,
                entropy=True,
                values=rows.values is not None,
                entropy_gradient=objective.entropy_coef > 0,
                entropy_min_p=self.settings.training.entropy_min_p,
            )
            if self.passes is not None:
                self.passes.note(batch, members, scores)
            samples = [batches.samples[i] for i in members]
            if compare and scores.log_probs is not None:
                self._compare_with_engine(scores.log_probs.detach(), batch, samples, figures)
            terms = objective.terms(scores, rows, batch.response_mask)
            for term in terms:
                require_finite(term.name, term.loss, samples)
                losses[term.name] = losses.get(term.name, 0.0) + term.loss.item()
                figures.add_all(term.metrics, term.tokens)
            torch.stack([term.weight * term.loss for term in terms]).sum().backward()
        return losses, figures.collected()

    def _compare_with_engine(
        self, log_probs: Tensor, batch: Batch, samples: Sequence[Sample], figures: Metrics
    ) -> None:
        """Measure |learner - engine| on tokens of the learner's own version. Raises AlignmentError where they cannot be
        the same tokens under the same weights."""
        gap = EngineGap.of(log_probs, batch, [sample.policy_version == self.version for sample in samples])
        if not gap.tokens:
            return
        figures.add("log_prob_gap_max", float(gap.nats.max()))
        figures.add("log_prob_gap_mean", float(gap.nats.sum()) / gap.tokens, gap.tokens)
        if self.settings.gap_limits is not None:
            gap.require(self.settings.gap_limits, samples, self.policy.loaded.dtype)


_Found = tuple[dict[str, float], dict[str, tuple[Reduction, list[tuple[float, float]]]]]
"""The losses of a part of a minibatch, and what was measured in it."""


def joined_figures(found: Sequence[_Found]) -> tuple[dict[str, float], Metrics]:
    """Return the losses and the measured figures of a minibatch, from those of its parts."""
    losses: dict[str, float] = {}
    figures = Metrics()
    for of_part, measured in found:
        for name, loss in of_part.items():
            losses[name] = losses.get(name, 0.0) + loss
        figures.merge(measured)
    return losses, figures


def imitate(policy: Policy, optimizer: Optimizer, batches: SampleBatches) -> dict[str, float]:
    """Take one step on the mean negative log-likelihood of all response tokens, in nats; return its metrics."""
    tokens = sum(sum(sample.response_mask) for sample in batches.samples)

    def accumulate() -> float:
        optimizer.zero_grad()
        total = 0.0
        for batch, members in batches.of(range(len(batches))):
            log_probs = policy.log_probs_and_values(batch).log_probs
            assert log_probs is not None
            loss = -log_probs.sum() / tokens
            require_finite("negative log-likelihood", loss, [batches.samples[i] for i in members])
            loss.backward()
            total += loss.item()
        return total

    with training(policy, optimizer):
        total = sum(batches.results(accumulate, float))
        metrics = optimizer.step()
    return {"loss": total, "tokens": float(tokens), "sequences": float(len(batches))} | metrics


@contextlib.contextmanager
def training(policy: Policy, optimizer: Optimizer) -> Iterator[None]:
    """Return a context for forward and backward passes; whatever happens, no gradient is left behind."""
    optimizer.zero_grad()
    policy.train(True)
    try:
        yield
    finally:
        policy.train(False)
        optimizer.zero_grad()


HALVINGS = 10
"""How often the change of an update is halved before it is undone."""


@torch.no_grad()
def update_kl(
    policy: Policy, temperature: float, batches: SampleBatches, objective: Objective, chosen: Sequence[int]
) -> float:
    """Return KL(policy before the update || policy now) over the response tokens of the samples `chosen`, as a mean per
    token in nats, by the estimator k3. It costs a forward pass.

    Reference: Schulman, "Approximating KL divergence" (2020).
    """

    def measure() -> tuple[float, float]:
        total, tokens = 0.0, 0.0
        for batch, members in batches.of(chosen):
            now = policy.log_probs_and_values(batch, temperature).log_probs
            before = objective.rows(batch, members).old_log_probs
            assert now is not None
            assert before is not None
            total += float(compute_kl(batch.flatten(before), batch.flatten(now), "k3").sum())
            tokens += float(batch.response_mask.sum())
        return total, tokens

    totals, tokens = zip(*batches.results(measure, tuple[float, float]), strict=True)
    return sum(totals) / max(sum(tokens), 1.0)


def shorten_update(
    policy: Policy,
    optimizer: Optimizer,
    start: Sequence[torch.Tensor],
    limit: float,
    temperature: float,
    batches: SampleBatches,
    objective: Objective,
    chosen: Sequence[int],
) -> dict[str, float]:
    """Halve the change of the weights since `start` (`Optimizer.weights`, [...] each) until the KL of the update is at
    most `limit`; after `HALVINGS` it is undone. Return `update_kl` (nats per token, of what is left),
    `update_halvings` and `update_undone`.

    The moments of Adam stay those of the steps as they were taken. A KL that is no number counts as one above the
    limit.

    Paper: TRPO (1502.05477), appendix C, the line search.
    """

    def measure() -> float:
        return update_kl(policy, temperature, batches, objective, chosen)

    halvings, undone = 0, False
    kl = measure()
    while not kl <= limit and not undone:
        undone = halvings == HALVINGS
        optimizer.go_back(start, 0.0 if undone else 0.5)
        halvings += not undone
        kl = measure()
    return {"update_kl": kl, "update_halvings": float(halvings), "update_undone": float(undone)}


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

    def join(self, batches: SampleBatches, chosen: Sequence[int]) -> None:
        """Note what other processes did of the samples `chosen`, over all of which there was a pass."""
        if batches.ranks is None:
            return
        mine = set(chosen[batches.ranks.share([len(batches.samples[i].token_ids) for i in chosen])])
        nothing = {i: (torch.zeros(self._counts[i]),) * 2 for i in chosen}
        pairs = [self._newest[i] if i in mine else nothing[i] for i in chosen]
        columns = (batches.joined(column) for column in zip(*pairs, strict=True))
        self._newest |= dict(zip(chosen, zip(*columns, strict=True), strict=True))

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
