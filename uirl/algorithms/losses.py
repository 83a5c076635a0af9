"""The losses: of the policy gradient, composed of parts that each come from one paper, of the critic, and of supervised
learning on successes.

Losses return `(loss, metrics)`: a scalar tensor with gradient, and plain floats that are means over the
tokens of this call (whatever the denominator), so weigh them by `.../tokens` when averaging micro-batches.
"""

from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor

from uirl.algorithms.aggregation import Aggregation, aggregate_loss, masked_mean, metrics_as_floats
from uirl.algorithms.checks import as_bool_mask, check_aligned, zero_outside

RatioLevel = Literal["token", "sequence"]

# exp(20) = 5e8: far outside any clip range, far inside float32. Beyond it the gradient is 0.
_LARGEST_LOG_RATIO = 20.0


def token_log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the importance ratio of each token, `[B, T]` in nats: `log_probs - old_log_probs`.

    Both are `[B, T]` in nats. 0 where `mask` is 0, clamped to 20 nats so that exp stays finite.

    Paper: PPO (1707.06347).
    """
    check_aligned(log_probs=log_probs, old_log_probs=old_log_probs, mask=mask)
    difference = zero_outside(log_probs - old_log_probs, as_bool_mask(mask, "mask"))
    return difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


@torch.no_grad()
def mismatch_log_weight(old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the importance weight learner / engine of each token, `[B, T]` in nats, without a gradient.

    `exp` of it, capped, corrects for tokens that a stale or differently rounded policy sampled.

    Source: truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training").
    """
    check_aligned(old_log_probs=old_log_probs, rollout_log_probs=rollout_log_probs, mask=mask)
    return token_log_ratio(old_log_probs, rollout_log_probs, mask)


@torch.no_grad()
def level_log_weight(log_weight: Tensor, mask: Tensor, level: RatioLevel = "token") -> Tensor:
    """Return the log of the weight at a level, `[B, T]` in nats, 0 where `mask` is 0.

    'token': `log_weight` `[B, T]` itself. 'sequence': for every token of a row the geometric mean of the row's weights,
    as in GSPO (2507.18071, equation 7). The product would be unbiased, but its log grows with the length: 200 tokens
    that are off by 0.02 nats each weigh e^4.
    """
    check_aligned(log_weight=log_weight, mask=mask)
    counted = as_bool_mask(mask, "mask")
    if level == "token":
        return zero_outside(log_weight, counted)
    of_row = masked_mean(log_weight, counted, dim=-1).unsqueeze(-1).expand_as(log_weight)
    return zero_outside(of_row, counted)


@torch.no_grad()
def mismatch_mask(log_weight: Tensor, mask: Tensor, low: float, high: float, level: RatioLevel = "token") -> Tensor:
    """Find the tokens whose importance weight learner / engine is at least `low` and at most `high`: booleans `[B, T]`.

    `log_weight`: from `mismatch_log_weight`, `[B, T]` in nats. `level` 'sequence' judges every token of a row by the
    geometric mean of the row's weights. Where truncated importance sampling lowers the weight of an outlier, the mask
    leaves it out: what the engine all but never samples under these weights may be no more than its rounding.

    Sources: masked importance sampling (Liu, Li et al. 2025, "When speed kills stability: demystifying RL collapse from
    the training-inference mismatch"); `rollout_rs` of verl's rollout correction.
    """
    weight = level_log_weight(log_weight, mask, level).exp()
    return as_bool_mask(mask, "mask") & (weight >= low) & (weight <= high)


@torch.no_grad()
def truncated_weight(log_weight: Tensor, mask: Tensor, cap: float, level: RatioLevel = "token") -> Tensor:
    """Return the importance weights of a level, at most `cap`, `[B, T]`; 1 where `mask` is 0.

    `log_weight`: of the tokens, `[B, T]` in nats.

    Source: truncated importance sampling, see `mismatch_log_weight`.
    """
    return level_log_weight(log_weight, mask, level).exp().clamp(max=cap).masked_fill(~as_bool_mask(mask, "mask"), 1.0)


@torch.no_grad()
def masked_weight(log_weight: Tensor, mask: Tensor, low: float, high: float, level: RatioLevel = "token") -> Tensor:
    """Return the importance weights of a level inside [`low`, `high`] and 0 outside, `[B, T]`; 1 where `mask` is 0.

    `log_weight`: of the tokens, `[B, T]` in nats.

    Sources: masked importance sampling, see `mismatch_mask`; IcePop (2510.18855).
    """
    weight = level_log_weight(log_weight, mask, level).exp()
    kept = weight * mismatch_mask(log_weight, mask, low, high, level)
    return kept.masked_fill(~as_bool_mask(mask, "mask"), 1.0)


@torch.no_grad()
def effective_sample_size(weights: Tensor, mask: Tensor) -> Tensor:
    """Return the share of the samples under `mask` that is left after weighing, `[]`: 1 where all weigh the same.

    `(sum w)^2 / (n sum w^2)` over the `weights` `[B, T]` under `mask`; 1 / n where one outweighs all others. Without
    samples, and where all weigh 0, nothing is left: 0.

    Source: Kong (1992), "A note on importance sampling using standardized weights".
    """
    check_aligned(weights=weights, mask=mask)
    counted = as_bool_mask(mask, "mask")
    kept = zero_outside(weights, counted).double()
    squares = counted.sum() * kept.square().sum()
    return torch.where(squares > 0, kept.sum().square() / squares.clamp(min=1e-300), 0.0)


@dataclass(frozen=True, kw_only=True)
class PolicyLossOptions:
    """Which ratio is clipped where, and how the mismatch between engine and learner is corrected."""

    eps_low: float | None = None
    """Clip range below 1; None: `clip_ratio`."""
    eps_high: float | None = None
    """Clip range above 1; None: `clip_ratio`. Larger than `eps_low` keeps exploration alive (DAPO)."""
    clip_ratio_c: float | None = None
    """Dual clip, above 1 (3 is usual), see `dual_clip`; None: unbounded, as in PPO."""
    ratio_level: RatioLevel = "token"
    """'sequence' is GSPO, see `sequence_log_ratio`. Its clip ranges are near 3e-4; aggregate with
    'seq-mean-token-mean'."""
    tis_cap: float | None = None
    """Truncated importance sampling: largest weight (2 is usual) for tokens sampled by a stale or differently
    rounded policy; None: measured, if the engine's log-probs are given, but not corrected."""
    tis_level: RatioLevel = "token"
    """Whether `tis_cap` weighs each token by its own weight, or by the geometric mean of its sequence."""
    mismatch_range: tuple[float, float] | None = None
    """Lowest and highest importance weight learner / engine that is learned from, see `mismatch_mask`; None: all."""
    mismatch_level: RatioLevel = "token"
    """Whether `mismatch_range` drops single tokens or whole sequences."""

    def clip_range(self, clip_ratio: float) -> tuple[float, float]:
        """Return the distances of the lower and the upper clip from 1. Raises ValueError for a range that cannot be
        meant."""
        eps_low = clip_ratio if self.eps_low is None else self.eps_low
        eps_high = clip_ratio if self.eps_high is None else self.eps_high
        if not (0 <= eps_low <= 1 and eps_high >= 0):
            raise ValueError(
                f"the clip range is [1 - eps_low, 1 + eps_high]: got eps_low={eps_low}, eps_high={eps_high}, "
                "expected eps_low in [0, 1] and eps_high at least 0; 0.2 and 0.2 to 0.3 are usual"
            )
        return eps_low, eps_high

    def __post_init__(self) -> None:
        if self.clip_ratio_c is not None and self.clip_ratio_c <= 1:
            raise ValueError(f"clip_ratio_c must be above 1: got {self.clip_ratio_c}; 3 is usual, None switches it off")
        if self.tis_cap is not None and self.tis_cap <= 0:
            raise ValueError(f"tis_cap must be positive: got {self.tis_cap}; 2 is usual, None switches it off")
        if self.mismatch_range is not None and not 0 <= self.mismatch_range[0] < self.mismatch_range[1]:
            raise ValueError(
                f"mismatch_range must be (low, high) with 0 <= low < high: got {self.mismatch_range}; (0.5, 2) is "
                "usual, None switches it off"
            )
        for name in ("ratio_level", "tis_level", "mismatch_level"):
            if getattr(self, name) not in get_args(RatioLevel):
                raise ValueError(f"{name} must be 'token' or 'sequence': got {getattr(self, name)!r}")

    @property
    def corrects_mismatch(self) -> bool:
        """Whether the loss needs the engine's log-probs."""
        return self.tis_cap is not None or self.mismatch_range is not None


class LossOptions(TypedDict, total=False):
    """Keyword arguments of a loss, beside tensors and denominator."""

    options: PolicyLossOptions
    """Of `compute_policy_loss` alone."""
    aggregation: Aggregation
    loss_length: int | None


def compute_policy_loss(
    old_log_probs: Tensor,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_ratio: float = 0.2,
    options: PolicyLossOptions | None = None,
    *,
    rollout_log_probs: Tensor | None = None,
    aggregation: Aggregation = "token-mean",
    denominator: float | Tensor | None = None,
    loss_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Compute the clipped policy-gradient loss.

    `ratio = exp(log_probs - old_log_probs)`, of the token or of its sequence (`sequence_log_ratio`);
    `token_loss = clipped_surrogate(ratio, advantages, eps_low, eps_high)`, bounded by `dual_clip` and weighed by
    `mismatch_log_weight`, capped at `tis_cap`, 0 outside `mismatch_mask`; `loss = aggregate_loss(token_loss)`.

    Args:
        old_log_probs: Of the learner at the start of the update, `[B, T]`, in nats.
        log_probs: Of the learner now, with gradient, `[B, T]`, in nats.
        advantages: `[B, T]`.
        response_mask: 0 and 1, `[B, T]`: the tokens that count (the loss mask, where it is narrower).
        clip_ratio: Clip range on both sides, where `options` name none.
        options: Asymmetric clip, dual clip, level of the ratio, correction of the mismatch; None: PPO.
        rollout_log_probs: Of the engine at sampling, `[B, T]`; None means no mismatch is measured.
        aggregation: As in `aggregate_loss`.
        denominator: As in `aggregate_loss`: the full batch's count, so that micro-batches sum to the full
            loss.
        loss_length: As in `aggregate_loss`.

    Returns:
        `(loss, metrics)`: a scalar tensor with gradient, and plain floats that are means over the tokens of this
        call (weigh them by `policy/tokens` when averaging micro-batches), under `policy/`: `clip_fraction_high`,
        `clip_fraction_low`, `clip_fraction_dual`, `approx_kl`, `ratio_mean`, `ratio_max`, `tokens`; and with
        `rollout_log_probs` `mismatch_weight_mean`, `mismatch_weight_max`, `mismatch_kl`, `mismatch_capped_fraction` and
        `mismatch_masked_fraction`, the last two where `options` cap or mask.

    Raises:
        ValueError: Shapes that differ, a clip range that cannot be meant, `tis_cap` or `mismatch_range` without
            `rollout_log_probs`.

    In the first pass over a batch the ratio is 1 everywhere: nothing is clipped and the loss is minus the
    mean advantage; the gradient is not 0, only the value says little.
    """
    options = options or PolicyLossOptions()
    clip_range = options.clip_range(clip_ratio)
    check_aligned(old_log_probs=old_log_probs, log_probs=log_probs, advantages=advantages, response_mask=response_mask)
    mask = as_bool_mask(response_mask)
    advantages = advantages.detach()
    log_ratio = token_log_ratio(log_probs, old_log_probs.detach(), mask)
    of_level = sequence_log_ratio(log_ratio, log_probs, mask) if options.ratio_level == "sequence" else log_ratio
    ratio = of_level.exp()
    token_loss = clipped_surrogate(ratio, advantages, *clip_range)
    if options.clip_ratio_c is not None:
        token_loss = dual_clip(token_loss, advantages, options.clip_ratio_c)
    metrics = _policy_metrics(log_ratio, ratio, advantages, mask, clip_range, options.clip_ratio_c)
    if rollout_log_probs is not None:
        weight, mismatch_metrics = _mismatch_weight(old_log_probs, rollout_log_probs, mask, options)
        metrics |= mismatch_metrics
        if options.corrects_mismatch:
            token_loss = token_loss * weight
    elif options.corrects_mismatch:
        raise ValueError(
            f"tis_cap={options.tis_cap} and mismatch_range={options.mismatch_range} need rollout_log_probs: got None, "
            "expected the engine's log-probs [B, T]; pass them or drop the options"
        )
    loss = aggregate_loss(token_loss, mask, aggregation, denominator, loss_length)
    return loss, metrics_as_floats(metrics)


def sequence_log_ratio(log_ratio: Tensor, log_probs: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the geometric mean of a row's ratios, for every token of the row, `[B, T]` in nats.

    Each token keeps its own gradient, that of `log_probs` `[B, T]`. `log_ratio`: of the tokens, `[B, T]`.

    Paper: GSPO (2507.18071), the variant GSPO-token.
    """
    check_aligned(log_ratio=log_ratio, log_probs=log_probs, mask=mask)
    of_sequence = masked_mean(log_ratio.detach(), mask, dim=-1).unsqueeze(-1)
    token_log_probs = zero_outside(log_probs, as_bool_mask(mask, "mask"))
    return of_sequence + (token_log_probs - token_log_probs.detach())


def clipped_surrogate(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    """Return the pessimistic loss of each token, `[B, T]`, of ratios and advantages `[B, T]`.

    `max(-advantages * ratio, -advantages * clip(ratio, 1 - eps_low, 1 + eps_high))`

    Papers: PPO (1707.06347), equation 7; with two ranges DAPO (2503.14476).
    """
    check_aligned(ratio=ratio, advantages=advantages)
    clipped = ratio.clamp(1 - eps_low, 1 + eps_high)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def dual_clip(token_loss: Tensor, advantages: Tensor, clip_ratio_c: float) -> Tensor:
    """Return `token_loss` `[B, T]`, bounded by `-advantages * clip_ratio_c` where the advantage is negative.

    A token with a negative advantage that has become much likelier then has no gradient any more.

    Paper: dual-clip PPO (1912.09729).
    """
    check_aligned(token_loss=token_loss, advantages=advantages)
    return torch.where(advantages < 0, torch.minimum(token_loss, -advantages * clip_ratio_c), token_loss)


@torch.no_grad()
def _mismatch_weight(
    old_log_probs: Tensor, rollout_log_probs: Tensor, mask: Tensor, options: PolicyLossOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what the loss of each token is multiplied by, `[B, T]`, and the metrics of the weights before."""
    log_weight = mismatch_log_weight(old_log_probs, rollout_log_probs, mask)
    weight = log_weight.exp()
    metrics = {
        "policy/mismatch_weight_mean": masked_mean(weight, mask),
        "policy/mismatch_weight_max": _masked_max(weight, mask),
        "policy/mismatch_kl": masked_mean(torch.expm1(log_weight) - log_weight, mask),
    }
    factor = torch.ones_like(weight)
    if options.tis_cap is not None:
        of_level = level_log_weight(log_weight, mask, options.tis_level).exp()
        metrics["policy/mismatch_capped_fraction"] = masked_mean((of_level > options.tis_cap).float(), mask)
        factor = truncated_weight(log_weight, mask, options.tis_cap, options.tis_level)
    if options.mismatch_range is not None:
        kept = mismatch_mask(log_weight, mask, *options.mismatch_range, options.mismatch_level)
        metrics["policy/mismatch_masked_fraction"] = masked_mean((~kept).float(), mask)
        factor = factor * kept
    return factor, metrics


@torch.no_grad()
def _policy_metrics(
    log_ratio: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_range: tuple[float, float],
    clip_ratio_c: float | None,
) -> dict[str, Tensor]:
    """Return shares of tokens whose gradient is cut, and how far the policy has moved (k3 of old || new)."""
    eps_low, eps_high = clip_range
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


def _masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Return the largest non-negative value under the mask; 0 where there is none."""
    return zero_outside(values, mask).max() if values.numel() else values.new_zeros(())


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
        `(loss, metrics)`; metrics: `value/clip_fraction`, `value/tokens`.

    Paper: PPO (1707.06347) and its reference implementation.

    Clipping is in units of reward: with rewards of hundreds a range of 0.2 freezes the critic.
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
    metrics = {"value/clip_fraction": masked_mean((worst > error).float(), mask), "value/tokens": mask.sum()}
    return loss, metrics_as_floats(metrics)


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
