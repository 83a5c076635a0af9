"""What an update made of its episodes, made again from what is stored: credit, weights, losses, its row of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from uirl.algorithms import KLController
from uirl.learner.credit import BatchScores, Credit, credit_of_update, stale_weights, trusts_engine
from uirl.learner.policy import TokenScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.steps import MinibatchSchedule, Objective, UpdateTensors
from uirl.learner.view import ResponseView, response_view
from uirl.metrics import Metrics
from uirl.rollout.samples import anchors_of, samples_of_all
from uirl.storage.learned import Learned
from uirl.training.audit.report import AuditReport
from uirl.types import Trajectory

SINGLE, HALF = 1e-4, 2e-3
"""Relative difference of what was made of numbers that are stored with four bytes, and with two."""
OF_HALF = {"entropy", "bonus_entropy", "entropy_loss"}

Figures = Mapping[str, Mapping[int, Learned]]
"""Trajectory id -> turn -> what the update made of it."""


def credit_is_seen(settings: LearnerSettings) -> str | None:
    """Return why the credit of a run cannot be made again; None: it can."""
    if settings.spec.needs_critic:
        return "the values of the critic are not stored"
    if settings.training.use_kl_in_reward:
        return "the log-probs of the reference are not stored"
    if settings.algorithm.step_credit != "off":
        return "algorithm.step_credit looks at pictures and plays episodes again"
    return None


def update_again(
    report: AuditReport, settings: LearnerSettings, step: int, episodes: Sequence[Trajectory], figures: Figures
) -> dict[str, float]:
    """Compare the stored advantages, weights and old log-probs of an update with those that follow from its episodes;
    return those of its metrics that do."""
    view = response_view(samples_of_all(episodes))
    stored = {name: _column(view, figures, name) for name in ("advantages", "old_log_probs", "log_probs", "entropies")}
    versions = {one.version for turns in figures.values() for one in turns.values()}
    (version,) = versions
    for one in episodes:
        sampled = {turn.policy_version for turn in one.turns}  # actors do not run ahead here
        report.same("versions", f"update {step}, the version that sampled episode {one.id}", sampled, {version})
    with_engine = trusts_engine(settings, view, version)
    reads = settings.reads_old_log_probs
    report.same(
        "old log-probs",
        f"update {step}, whose old log-probs",
        stored["old_log_probs"] is None,
        with_engine or not reads,
    )
    old_numbers = view.rollout_log_probs if with_engine else stored["old_log_probs"]
    old = BatchScores(old_numbers if reads else None, from_engine=reads and with_engine)
    anchors = anchors_of(episodes) if settings.spec.needs_anchors else None
    credit, of_credit = credit_of_update(settings, view, old, BatchScores(), KLController(0.0), anchors)
    advantages = stored["advantages"]
    assert advantages is not None
    for row, id in enumerate(view.trajectory_ids):
        mask = view.mask[row]
        pair = advantages[row][mask].tolist(), credit.advantages[row][mask].tolist()
        report.same("advantages of episodes", f"update {step}, advantages of episode {id}", *pair, near=SINGLE)
    weights, of_stale = stale_weights(settings, view, old, version)
    stepped = credit.is_signal(settings)
    metrics = Metrics()
    metrics.add_all(view.describe(version) | of_stale | of_credit)
    metrics.add("skipped", float(not stepped))
    if settings.spec.loss == "policy":
        metrics.add("old_log_probs_recomputed", float(not old.from_engine))
    if stepped:
        _add_losses(metrics, report, settings, step, view, credit.weighed(weights), old, version, stored)
    return {name: value for name, value in metrics.reduce().items() if value is not None}


def _add_losses(
    metrics: Metrics,
    report: AuditReport,
    settings: LearnerSettings,
    step: int,
    view: ResponseView,
    credit: Credit,
    old: BatchScores,
    version: int,
    stored: Mapping[str, Tensor | None],
) -> None:
    """Add the losses of an update and what was measured with them: of each token the pass that is stored."""
    once = settings.training.update_epochs == 1 and settings.algorithm.target_kl is None
    if not once or settings.kl_loss_coef > 0 or settings.spec.needs_critic or settings.training.entropy_min_p > 0:
        report.unseen["losses"] = "the record has the last pass over a token, and no reference, critic or other entropy"
        return
    log_probs, entropies = stored["log_probs"], stored["entropies"]
    schedule = MinibatchSchedule.of(settings, view, credit)
    tensors = UpdateTensors.of(view, credit, old, BatchScores())
    objective = Objective.of(settings, tensors, schedule.shares, entropy_coef=0.0, kl_loss_coef=0.0)
    report.same("passes", f"update {step}, whether there was a pass over its tokens", log_probs is not None, True)
    assert log_probs is not None
    assert entropies is not None
    scores = [view.split(view.flatten(one)) for one in (log_probs, entropies)]
    for number, chosen in enumerate(schedule.minibatches(1, f"{settings.training.seed}/{step}")):

        def rows(parts: Sequence[Tensor], chosen: Sequence[int] = chosen) -> Tensor:
            return pad_sequence([parts[i] for i in chosen], batch_first=True)

        mask = rows([torch.ones(count, dtype=torch.bool) for count in view.token_counts])
        of_chosen = TokenScores(rows(scores[0]), rows(scores[1]), None, None)
        for term in objective.terms(of_chosen, tensors.map(rows), mask):
            metrics.add(term.name, term.loss.item())
            metrics.add_all(term.metrics, term.tokens)
        if not number:
            _add_gap(metrics, view, chosen, scores[0], version)


def _add_gap(
    metrics: Metrics, view: ResponseView, chosen: Sequence[int], log_probs: Sequence[Tensor], version: int
) -> None:
    engine = view.split(view.flatten(view.rollout_log_probs))
    current = [i for i in chosen if view.sample_versions[i] == version]
    if current:
        gap = torch.cat([(log_probs[i] - engine[i]).abs() for i in current])
        metrics.add("log_prob_gap_max", float(gap.max()))


def near_of(name: str) -> float:
    """Return how near a metric that was made again comes to the one that is stored, relative to it."""
    return HALF if name in OF_HALF else SINGLE


def _column(view: ResponseView, figures: Figures, name: str) -> Tensor | None:
    """Return stored numbers of an update [N, R], 0 where an episode has none; None: none has."""
    out, found = torch.zeros(view.mask.shape), False
    for row, id in enumerate(view.trajectory_ids):
        parts: list[Any] = [getattr(one, name) for _, one in sorted(figures[id].items())]
        if any(part is not None for part in parts):
            out[row][view.mask[row]] = torch.tensor([number for part in parts for number in part])
            found = True
    return out if found else None
