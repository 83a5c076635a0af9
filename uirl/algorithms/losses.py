"""The losses beside that of the policy gradient: of the critic, and of supervised learning on successes.

Losses return `(loss, metrics)`: a scalar tensor with gradient, and plain floats that are means over the
tokens of this call (whatever the denominator), so weigh them by `.../tokens` when averaging micro-batches.
"""

import torch
from torch import Tensor

from uirl.algorithms.aggregation import Aggregation, aggregate_loss, masked_mean, metrics_as_floats
from uirl.algorithms.checks import as_bool_mask, check_aligned, zero_outside


def compute_value_loss(
    vpreds: Tensor,
    returns: Tensor,
    old_values: Tensor,
    response_mask: Tensor,
    cliprange_value: float | None,
    *,
    aggregation: Aggregation = "token-mean",
    denominator: float | Tensor | None = None,
    loss_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return half the squared error of the critic, clipped like the policy.

    `clipped = clip(vpreds, old_values - cliprange_value, old_values + cliprange_value)`,
    `loss = aggregate(max((vpreds - returns)**2, (clipped - returns)**2)) / 2`.

    Args:
        vpreds: The critic now, with gradient, `[B, T]`.
        returns: What it shall predict, `[B, T]`.
        old_values: The critic at the start of the update, `[B, T]`.
        response_mask: 0 and 1, `[B, T]`.
        cliprange_value: How far a prediction may move in one update; None means unclipped.
        aggregation: As in `aggregate_loss`.
        denominator: As in `aggregate_loss`.
        loss_length: As in `aggregate_loss`.

    Returns:
        `(loss, metrics)`; metrics: `value/clip_fraction`, `value/mean`, `value/return_mean`,
        `value/explained_variance`, `value/tokens`.

    Paper: PPO (1707.06347) and its reference implementation.

    Clipping is in units of reward: with rewards of hundreds a range of 0.2 freezes the critic. The explained
    variance is 0 where the returns do not vary.
    """
    check_aligned(vpreds=vpreds, returns=returns, old_values=old_values, response_mask=response_mask)
    if cliprange_value is not None and cliprange_value <= 0:
        raise ValueError(f"cliprange_value must be positive: got {cliprange_value}; give None for no clipping")
    mask = as_bool_mask(response_mask)
    vpreds = zero_outside(vpreds, mask)
    returns = zero_outside(returns.detach(), mask)
    error = (vpreds - returns).square()
    worst = error
    if cliprange_value is not None:
        old = zero_outside(old_values.detach(), mask)
        clipped = torch.clamp(vpreds, old - cliprange_value, old + cliprange_value)
        worst = torch.maximum(error, (clipped - returns).square())
    loss = 0.5 * aggregate_loss(worst, mask, aggregation, denominator, loss_length)
    return loss, metrics_as_floats(_value_metrics(vpreds, returns, worst > error, mask))


def kept_mask(advantages: Tensor, response_mask: Tensor) -> Tensor:
    """Return the response tokens with a positive advantage, booleans `[B, T]`: what rejection sampling trains on."""
    check_aligned(advantages=advantages, response_mask=response_mask)
    return as_bool_mask(response_mask) & (advantages > 0)


def compute_rejection_sampling_loss(
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    aggregation: Aggregation = "token-mean",
    denominator: float | Tensor | None = None,
    loss_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the negative log-likelihood of the kept trajectories: supervised learning on one's own successes.

    `kept = response_mask * (advantages > 0)`, `loss = aggregate(-log_probs, kept)`.

    Args:
        log_probs: Of the learner now, with gradient, `[B, T]`.
        advantages: 1 for kept, 0 for rejected, `[B, T]`, from `compute_rejection_sampling_advantage`.
        response_mask: 0 and 1, `[B, T]`.
        aggregation: As in `aggregate_loss`, over the kept tokens.
        denominator: As in `aggregate_loss`: `aggregation_denominator(kept_mask(...), aggregation)` of the
            full batch.
        loss_length: As in `aggregate_loss`.

    Returns:
        `(loss, metrics)`; metrics: `policy/nll`, `policy/kept_fraction` (of tokens), `policy/tokens` (kept).

    With nothing kept the loss is 0 with a zero gradient; Adam still moves on its momentum, so look at
    `policy/kept_fraction` and skip the step.
    """
    check_aligned(log_probs=log_probs, advantages=advantages, response_mask=response_mask)
    kept = kept_mask(advantages, response_mask)
    nll = zero_outside(-log_probs, kept)
    metrics = {
        "policy/nll": masked_mean(nll.detach(), kept),
        "policy/kept_fraction": masked_mean(kept.float(), response_mask),
        "policy/tokens": kept.sum(),
    }
    return aggregate_loss(nll, kept, aggregation, denominator, loss_length), metrics_as_floats(metrics)


@torch.no_grad()
def _value_metrics(vpreds: Tensor, returns: Tensor, clipped: Tensor, mask: Tensor) -> dict[str, Tensor]:
    spread = masked_mean((returns - masked_mean(returns, mask)).square(), mask)
    residual = returns - vpreds
    unexplained = masked_mean((residual - masked_mean(residual, mask)).square(), mask)
    return {
        "value/clip_fraction": masked_mean(clipped.float(), mask),
        "value/mean": masked_mean(vpreds, mask),
        "value/return_mean": masked_mean(returns, mask),
        "value/explained_variance": torch.where(spread > 0, 1 - unexplained / spread, 0.0),
        "value/tokens": mask.sum(),
    }
