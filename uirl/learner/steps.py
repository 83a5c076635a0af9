"""Optimizer steps: passes over minibatches of an update, and the passes of supervised learning."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from uirl.algorithms import compute_kl
from uirl.learner.batch import Batch, SampleBatches
from uirl.learner.credit import Credit
from uirl.learner.figures import TokenPasses
from uirl.learner.objective import Objective, require_finite
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy
from uirl.learner.settings import EngineGap, LearnerSettings
from uirl.learner.view import ResponseView
from uirl.metrics import Metrics
from uirl.types import Sample


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
            losses, figures = batches.room.within_memory(
                lambda: self._accumulate(batches, chosen, objective, compare=first)
            )
            self.metrics.merge(figures)
            kl = figures.reduce().get("approx_kl")
            if target is not None and not first and (kl is None or kl > target):
                return False
            self.metrics.add_all(self.optimizer.step(scale))
        # the entropy itself is already a metric, as a mean per token
        self.metrics.add_all({name: loss for name, loss in losses.items() if name != "entropy_loss"})
        return True

    def _accumulate(
        self, batches: SampleBatches, chosen: Sequence[int], objective: Objective, *, compare: bool
    ) -> tuple[dict[str, float], Metrics]:
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
        return losses, figures

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
        total = batches.room.within_memory(accumulate)
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
    total, tokens = 0.0, 0.0
    for batch, members in batches.of(chosen):
        now = policy.log_probs_and_values(batch, temperature).log_probs
        before = objective.rows(batch, members).old_log_probs
        assert now is not None
        assert before is not None
        total += float(compute_kl(batch.flatten(before), batch.flatten(now), "k3").sum())
        tokens += float(batch.response_mask.sum())
    return total / max(tokens, 1.0)


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
        return batches.room.within_memory(lambda: update_kl(policy, temperature, batches, objective, chosen))

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
