"""Importance weights: how likely the tokens are to one policy beside another, and what weighing by that costs."""

from typing import Literal

import torch
from torch import Tensor

from uirl.algorithms.aggregation import masked_mean
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
