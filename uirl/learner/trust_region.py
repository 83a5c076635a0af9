"""How far one update may take the policy: the KL of its steps, and a change that went too far shortened."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from uirl.algorithms import compute_kl
from uirl.learner.batch import SampleBatches
from uirl.learner.objective import Objective
from uirl.learner.optimizer import Optimizer
from uirl.learner.policy import Policy

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
