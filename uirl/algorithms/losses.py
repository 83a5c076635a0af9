"""What the optimiser minimises: policy, value and likelihood losses, and the entropy of the policy.

Losses return `(loss, metrics)`: a scalar tensor with gradient, and plain floats that are means over the
tokens of this call (whatever the denominator), so weigh them by `policy/tokens` when averaging micro-batches.
"""

from typing import Literal

import torch
from torch import Tensor

from uirl.algorithms.aggregation import Aggregation, aggregate_loss, masked_mean
from uirl.algorithms.checks import as_bool_mask, check_aligned, zero_outside

RatioLevel = Literal["token", "sequence"]

# exp(20) = 5e8: far outside any clip range, far inside float32. Beyond it the gradient is 0.
_LARGEST_LOG_RATIO = 20.0


def compute_policy_loss(
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_ratio: float = 0.2,
    *,
    eps_low: float | None = None,
    eps_high: float | None = None,
    clip_ratio_c: float | None = None,
    ratio_level: RatioLevel = "token",
    rollout_log_probs: Tensor | None = None,
    tis_cap: float | None = None,
    aggregation: Aggregation = "token-mean",
    denominator: float | Tensor | None = None,
    loss_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The clipped policy-gradient loss.

    `ratio = exp(log_probs - old_log_probs)`,
    `token_loss = max(-advantages * ratio, -advantages * clip(ratio, 1 - eps_low, 1 + eps_high))`,
    where advantages < 0 also `token_loss = min(token_loss, -advantages * clip_ratio_c)`,
    `token_loss *= min(exp(old_log_probs - rollout_log_probs), tis_cap)`, `loss = aggregate(token_loss)`.

    Args:
        old_log_probs: Of the learner at the start of the update, `[B, T]`.
        log_probs: Of the learner now, with gradient, `[B, T]`.
        advantages: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`: the tokens that count (the loss mask, where it is narrower).
        clip_ratio: Clip range on both sides.
        eps_low: Clip range below 1; None means `clip_ratio`.
        eps_high: Clip range above 1; None means `clip_ratio`. Larger than `eps_low` keeps exploration alive
            (DAPO).
        clip_ratio_c: Dual clip, above 1 (3 is usual): bounds the loss where a token with a negative advantage
            has become likelier; None means unbounded, as in PPO.
        ratio_level: 'sequence' is GSPO: every token gets the geometric mean of its row's ratios, and its own
            gradient. Its clip ranges are near 3e-4; aggregate with 'seq-mean-token-mean'.
        rollout_log_probs: Of the engine at sampling, `[B, T]`; None means no mismatch is measured.
        tis_cap: Truncated importance sampling: largest weight (2 is usual) for tokens sampled by a stale or
            differently rounded policy; None means measured, if given, but not corrected.
        aggregation: As in `aggregate_loss`.
        denominator: As in `aggregate_loss`: the full batch's count, so that micro-batches sum to the full
            loss.
        loss_length: As in `aggregate_loss`.

    Returns:
        `(loss, metrics)`; metrics under `policy/`: `clip_fraction_high`, `clip_fraction_low`,
        `clip_fraction_dual`, `approx_kl`, `ratio_mean`, `ratio_max`, `tokens`; and with `rollout_log_probs`
        `mismatch_weight_mean`, `mismatch_weight_max`, `mismatch_kl`, `mismatch_capped_fraction`.

    Raises:
        ValueError: Shapes that differ, a clip range that cannot be meant, `tis_cap` without
            `rollout_log_probs`.

    Papers: PPO (1707.06347), dual clip (1912.09729), DAPO (2503.14476), GSPO (2507.18071), truncated
    importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training").

    In the first pass over a batch the ratio is 1 everywhere: nothing is clipped and the loss is minus the
    mean advantage; the gradient is not 0, only the value says little.
    """
    eps_low = clip_ratio if eps_low is None else eps_low
    eps_high = clip_ratio if eps_high is None else eps_high
    _check_ranges(eps_low, eps_high, clip_ratio_c, tis_cap)
    check_aligned(old_log_probs=old_log_probs, log_probs=log_probs, advantages=advantages, response_mask=response_mask)
    mask = as_bool_mask(response_mask)
    advantages = advantages.detach()
    log_ratio = _log_ratio(log_probs, old_log_probs.detach(), mask)
    ratio = _importance_ratio(log_ratio, log_probs, mask, ratio_level).exp()
    token_loss = _clipped_loss(ratio, advantages, eps_low, eps_high, clip_ratio_c)
    weights, mismatch_metrics = _mismatch(old_log_probs, rollout_log_probs, mask, tis_cap)
    if weights is not None:
        token_loss = token_loss * weights
    metrics = _policy_metrics(log_ratio, ratio, advantages, mask, eps_low, eps_high, clip_ratio_c)
    loss = aggregate_loss(token_loss, mask, aggregation, denominator, loss_length)
    return loss, _to_floats(metrics | mismatch_metrics)


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
    """Half the squared error of the critic, clipped like the policy.

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
    return loss, _to_floats(_value_metrics(vpreds, returns, worst > error, mask))


def kept_mask(advantages: Tensor, response_mask: Tensor) -> Tensor:
    """The response tokens with a positive advantage, booleans `[B, T]`: what rejection sampling trains on."""
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
    """The negative log-likelihood of the kept trajectories: supervised learning on one's own successes.

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
    return aggregate_loss(nll, kept, aggregation, denominator, loss_length), _to_floats(metrics)


def _check_ranges(eps_low: float, eps_high: float, clip_ratio_c: float | None, tis_cap: float | None) -> None:
    if not (0 <= eps_low <= 1 and eps_high >= 0):
        raise ValueError(
            f"the clip range is [1 - eps_low, 1 + eps_high]: got eps_low={eps_low}, eps_high={eps_high}, "
            "expected eps_low in [0, 1] and eps_high at least 0; 0.2 and 0.2 to 0.3 are usual"
        )
    if clip_ratio_c is not None and clip_ratio_c <= 1:
        raise ValueError(f"clip_ratio_c must be above 1: got {clip_ratio_c}; 3 is usual, None switches it off")
    if tis_cap is not None and tis_cap <= 0:
        raise ValueError(f"tis_cap must be positive: got {tis_cap}; 2 is usual, None switches it off")


def _log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """`numerator - denominator` where mask is True, 0 elsewhere, clamped so that exp stays finite."""
    difference = zero_outside(numerator - denominator, mask)
    return difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def _importance_ratio(log_ratio: Tensor, log_probs: Tensor, mask: Tensor, ratio_level: str) -> Tensor:
    """The log of the ratio that multiplies each advantage."""
    if ratio_level == "token":
        return log_ratio
    if ratio_level != "sequence":
        raise ValueError(f"ratio_level must be 'token' or 'sequence': got {ratio_level!r}")
    of_sequence = masked_mean(log_ratio.detach(), mask, dim=-1).unsqueeze(-1)
    own = zero_outside(log_probs, mask)
    return of_sequence + (own - own.detach())  # value of the sequence, gradient of the token


def _clipped_loss(
    ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float, clip_ratio_c: float | None
) -> Tensor:
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high)
    token_loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if clip_ratio_c is None:
        return token_loss
    return torch.where(advantages < 0, torch.minimum(token_loss, -advantages * clip_ratio_c), token_loss)


@torch.no_grad()
def _mismatch(
    old_log_probs: Tensor, rollout_log_probs: Tensor | None, mask: Tensor, tis_cap: float | None
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Importance weights learner / engine, capped (None: do not correct), and what to report about them."""
    if rollout_log_probs is None:
        if tis_cap is None:
            return None, {}
        raise ValueError(
            f"tis_cap={tis_cap} needs rollout_log_probs: got None, expected the engine's log-probs [B, T]; "
            "pass them or drop tis_cap"
        )
    check_aligned(old_log_probs=old_log_probs, rollout_log_probs=rollout_log_probs)
    log_weight = _log_ratio(old_log_probs, rollout_log_probs, mask)
    weight = log_weight.exp()
    metrics = {
        "policy/mismatch_weight_mean": masked_mean(weight, mask),
        "policy/mismatch_weight_max": _masked_max(weight, mask),
        "policy/mismatch_kl": masked_mean(torch.expm1(log_weight) - log_weight, mask),
    }
    if tis_cap is None:
        return None, metrics
    metrics["policy/mismatch_capped_fraction"] = masked_mean((weight > tis_cap).float(), mask)
    return weight.clamp(max=tis_cap), metrics


@torch.no_grad()
def _policy_metrics(
    log_ratio: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    eps_low: float,
    eps_high: float,
    clip_ratio_c: float | None,
) -> dict[str, Tensor]:
    """Shares of tokens whose gradient is cut, and how far the policy has moved (k3 of old || new)."""
    high = (ratio > 1 + eps_high) & (advantages > 0)
    low = (ratio < 1 - eps_low) & (advantages < 0)
    dual = (ratio > (torch.inf if clip_ratio_c is None else clip_ratio_c)) & (advantages < 0)
    return {
        "policy/clip_fraction_high": masked_mean(high.float(), mask),
        "policy/clip_fraction_low": masked_mean(low.float(), mask),
        "policy/clip_fraction_dual": masked_mean(dual.float(), mask),
        "policy/approx_kl": masked_mean(torch.expm1(log_ratio) - log_ratio, mask),
        "policy/ratio_mean": masked_mean(ratio, mask),
        "policy/ratio_max": _masked_max(ratio, mask),
        "policy/tokens": mask.sum(),
    }


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


def _masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """The largest non-negative value under the mask; 0 where there is none."""
    return zero_outside(values, mask).max() if values.numel() else values.new_zeros(())


def _to_floats(metrics: dict[str, Tensor]) -> dict[str, float]:
    """The same dict with floats, fetched from the device in one transfer."""
    numbers = torch.stack([metric.detach().double() for metric in metrics.values()]).tolist()
    return dict(zip(metrics, numbers, strict=True))
