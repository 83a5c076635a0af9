"""How far the policy is from a reference: estimators, the penalty, the coefficient's controller."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from uirl.algorithms.aggregation import Aggregation, aggregate_loss, masked_mean
from uirl.algorithms.checks import as_bool_mask, check_aligned, zero_outside

KLEstimator = Literal["k1", "k2", "k3", "abs"]

# exp(20) = 5e8: far outside any trust region, far inside float32.
_LARGEST_LOG_RATIO = 20.0


def compute_kl(log_probs: Tensor, ref_log_probs: Tensor, estimator: KLEstimator = "k3") -> Tensor:
    """Return a per-token estimate of KL(policy || reference) from tokens that the policy sampled.

    With `d = log_probs - ref_log_probs`: k1 = `d` (unbiased, may be negative), k2 = `d**2 / 2` (biased, low
    variance), k3 = `exp(-d) - 1 + d` (unbiased, never negative), abs = `|d|`.

    Args:
        log_probs: Of the policy, `[B, T]` or any other shape, in nats.
        ref_log_probs: Of the reference, the same shape.
        estimator: 'k1', 'k2', 'k3' or 'abs'.

    Returns:
        A tensor of that shape, with the gradient of `log_probs`.

    Reference: Schulman, "Approximating KL divergence" (2020).

    Good values are not good gradients: as a loss k1 has expected gradient 0 and only k2 has the gradient of the
    KL. In k3 the difference is clamped to +-20, where `exp` would leave float32 (verl cuts the estimate at 10).
    """
    if log_probs.shape != ref_log_probs.shape:
        raise ValueError(
            f"ref_log_probs must align with log_probs: got shape {tuple(ref_log_probs.shape)}, expected "
            f"{tuple(log_probs.shape)}; run the reference policy on the same token ids"
        )
    difference = log_probs - ref_log_probs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference.square()
    if estimator == "k3":
        clamped = difference.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
        return torch.expm1(-clamped) + clamped
    if estimator == "abs":
        return difference.abs()
    raise ValueError(f"estimator must be one of {', '.join(get_args(KLEstimator))}: got {estimator!r}")


@torch.no_grad()
def apply_kl_penalty(
    token_level_rewards: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    kl_coef: float,
    *,
    estimator: KLEstimator = "k1",
) -> tuple[Tensor, Tensor]:
    """Return rewards minus `kl_coef` times the KL of each token, and the mean KL.

    `penalized_rewards = (token_level_rewards - kl_coef * kl) * response_mask`, `kl_value = mean(kl)` over
    response tokens.

    Args:
        token_level_rewards: `[B, T]`.
        log_probs: Of the policy at the start of the update, `[B, T]`.
        ref_log_probs: Of the reference policy, `[B, T]`.
        response_mask: 0 and 1, `[B, T]`.
        kl_coef: Weight, for instance `KLController.kl_coef`.
        estimator: As in `compute_kl`; k1 makes the sum over a trajectory an unbiased KL.

    Returns:
        `(penalized_rewards, kl_value)`: `[B, T]`, 0 where the mask is 0, and a scalar tensor without
        gradient.

    Paper: Ziegler et al. 2019 (1909.08593).

    Single tokens may gain reward: k1 is negative where the policy is less sure than the reference.
    """
    check_aligned(
        token_level_rewards=token_level_rewards,
        log_probs=log_probs,
        ref_log_probs=ref_log_probs,
        response_mask=response_mask,
    )
    mask = as_bool_mask(response_mask)
    kl = compute_kl(log_probs, ref_log_probs, estimator)
    return zero_outside(token_level_rewards - kl_coef * kl, mask), masked_mean(kl, mask)


def compute_kl_loss(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    response_mask: Tensor,
    *,
    estimator: KLEstimator = "k3",
    aggregation: Aggregation = "token-mean",
    denominator: float | Tensor | None = None,
    loss_length: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the KL to the reference as a loss term, to be multiplied by a coefficient and added.

    `loss = aggregate(kl)`.

    Args:
        log_probs: Of the policy now, with gradient, `[B, T]`.
        ref_log_probs: Of the reference policy, `[B, T]`; no gradient goes there.
        response_mask: 0 and 1, `[B, T]`.
        estimator: 'k2', 'k3' or 'abs'.
        aggregation: As in `aggregate_loss`.
        denominator: As in `aggregate_loss`.
        loss_length: As in `aggregate_loss`.

    Returns:
        `(loss, metrics)`; metrics: `kl/mean`, `kl/max` over response tokens.

    Raises:
        ValueError: Estimator k1, whose expected gradient is 0; shapes that differ.
    """
    if estimator == "k1":
        raise ValueError(
            "estimator 'k1' cannot be a loss: got 'k1', expected 'k2', 'k3' or 'abs'; the expected gradient "
            "of log_probs - ref_log_probs under the policy is 0, so it would train on noise"
        )
    check_aligned(log_probs=log_probs, ref_log_probs=ref_log_probs, response_mask=response_mask)
    mask = as_bool_mask(response_mask)
    # Selected before exp: a garbage log-prob under mask 0 must not send NaN into the gradient.
    policy = zero_outside(log_probs, mask)
    reference = zero_outside(ref_log_probs.detach(), mask)
    kl = compute_kl(policy, reference, estimator)
    seen = kl.detach()
    largest = seen.max() if seen.numel() else seen.new_zeros(())
    mean, maximum = torch.stack([masked_mean(seen, mask), largest]).tolist()
    return aggregate_loss(kl, mask, aggregation, denominator, loss_length), {"kl/mean": mean, "kl/max": maximum}


class KLController:
    """The KL coefficient, constant or steered towards a target.

    Adaptive: `error = clip(current_kl / target_kl - 1, -0.2, 0.2)`, `kl_coef *= 1 + error * n_steps /
        horizon`.

    Paper: Ziegler et al. 2019 (1909.08593), section 2.2.
    """

    def __init__(
        self, init_kl_coef: float, target_kl: float = 0.1, adaptive: bool = False, horizon: int = 10_000
    ) -> None:
        """Start at `init_kl_coef`.

        Args:
            init_kl_coef: First coefficient, at least 0.
            target_kl: KL to steer towards, in the unit of what `update` is given (per token, if it is the
                `kl_value` of `apply_kl_penalty`). Read only if adaptive.
            adaptive: False keeps the coefficient constant.
            horizon: Episodes over which a 20 % error changes the coefficient by 20 %.
        """
        if not math.isfinite(init_kl_coef) or init_kl_coef < 0:
            raise ValueError(f"init_kl_coef must be a number of at least 0: got {init_kl_coef}; try 0.001")
        if adaptive and not (target_kl > 0 and horizon > 0 and init_kl_coef > 0):
            raise ValueError(
                f"an adaptive controller needs init_kl_coef, target_kl and horizon above 0: got "
                f"{init_kl_coef}, {target_kl}, {horizon}; it multiplies, so it can never leave 0"
            )
        self.kl_coef = float(init_kl_coef)
        self.target_kl = target_kl
        self.adaptive = adaptive
        self.horizon = horizon

    @property
    def value(self) -> float:
        """The coefficient, under the name that verl and TRL use."""
        return self.kl_coef

    def update(self, current_kl: float, n_steps: int) -> float:
        """Return the coefficient after seeing `current_kl`; it also stays in `kl_coef`.

        Args:
            current_kl: Measured KL, finite.
            n_steps: Episodes since the last update.

        Raises:
            ValueError: KL not finite, or so many steps (5 horizons or more) that the coefficient would reach
                0.
        """
        current_kl = float(current_kl)
        if not math.isfinite(current_kl):
            raise ValueError(f"current_kl must be finite: got {current_kl}; look at the log-probs of this batch")
        if self.adaptive:
            error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
            factor = 1.0 + error * n_steps / self.horizon
            if factor <= 0:
                raise ValueError(
                    f"n_steps must be below 5 horizons: got {n_steps} with horizon {self.horizon}; "
                    "raise the horizon, or count episodes instead of tokens"
                )
            self.kl_coef *= factor
        return self.kl_coef
