"""Advantage estimators of ours that verl lacks, registered under names of their own.

verl hands an estimator rewards, mask and group of each row. Turns can be read off the mask: between two replies there
is always a token that was not sampled. States cannot, so `gigpo` has no place here. Policy losses need none of ours:
verl has the clipped one per token (`vanilla`) and per sequence (`gspo`), and `gpg` is the likelihood of what
`rejection_sampling` keeps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from uirl.algorithms import compute_rejection_sampling_advantage, compute_turn_level_advantage

TURN_LEVEL = "uirl_turn_level"
"""`algorithm.adv_estimator` of `turn_level`. It needs rewards on the turns that earned them, as the V1 trainer has
them; verl's legacy trainer puts the whole score on the last token."""

REJECTION_SAMPLING = "uirl_rejection_sampling"
"""`algorithm.adv_estimator` of `rejection_sampling`; its loss is `policy_loss.loss_mode=gpg`."""
THRESHOLD = "uirl_reward_threshold"
"""Key that our trainers put into verl's section `algorithm`: our `algorithm.reward_threshold`."""


@register_adv_est(REJECTION_SAMPLING)
def rejection_sampling(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """Return (advantages, returns) [B, T] of `compute_rejection_sampling_advantage`.

    verl's loss is then the mean over all tokens of a batch, ours over the kept ones: with few successes its gradient is
    smaller by their share.
    """
    threshold = 0.0 if config is None else float(config.get(THRESHOLD, 0.0))
    return compute_rejection_sampling_advantage(token_level_rewards, response_mask, threshold)


@register_adv_est(TURN_LEVEL)
def turn_level(
    token_level_rewards: Tensor, response_mask: Tensor, index: Any, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """Return (advantages, returns) [B, T] of `compute_turn_level_advantage` with verl's `gamma` as discount per
    turn."""
    normalize = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    gamma = 1.0 if config is None else float(config.get("gamma", 1.0))
    return compute_turn_level_advantage(
        token_level_rewards, response_mask, index, turns_of(response_mask), gamma=gamma, normalize_by_std=normalize
    )


def tell_threshold(config: Any, threshold: float) -> None:
    """Put our `algorithm.reward_threshold` where verl hands it to estimators; `config` is verl's whole config."""
    from omegaconf import open_dict

    with open_dict(config):
        config.algorithm[THRESHOLD] = threshold


def turns_of(response_mask: Tensor) -> Tensor:
    """Return int64 [B, T]: the number of the turn, from 0, of each sampled token; -1 elsewhere."""
    sampled = response_mask > 0
    before = torch.nn.functional.pad(sampled, (1, 0))[:, :-1]
    return torch.where(sampled, (sampled & ~before).cumsum(-1) - 1, -1)
