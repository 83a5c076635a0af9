"""Estimators of ours, called as verl calls them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

from uirl.integrations.verl.trainer.estimators import REJECTION_SAMPLING, TURN_LEVEL, tell_threshold, turns_of

pytestmark = pytest.mark.verl


def test_turns_are_read_off_the_mask() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0]])
    expected = [[0, 0, -1, 1, -1, -1], [-1, 0, -1, -1, 1, 1], [-1, -1, -1, -1, -1, -1]]
    assert turns_of(mask).tolist() == expected


def test_each_turn_is_compared_with_the_same_turn_of_its_group() -> None:
    # rewards per turn: (1, 0), (0, 0) and (0, 3), (0, 1)
    mask = torch.tensor([[1, 0, 1, 1]] * 4)
    rewards = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3.0], [0, 0, 0, 1.0]])
    config = OmegaConf.create({"gamma": 0.5, "norm_adv_by_std_in_grpo": False})
    index = np.array(["a", "a", "b", "b"], dtype=object)
    estimate = get_adv_estimator_fn(TURN_LEVEL)
    advantages, returns = estimate(token_level_rewards=rewards, response_mask=mask, config=config, index=index)
    # reward to go of (turn 0, turn 1): (1, 0), (0, 0); (1.5, 3), (0.5, 1); minus the mean over the two of a group
    assert returns[:, [0, 2]].tolist() == [[1.0, 0.0], [0.0, 0.0], [1.5, 3.0], [0.5, 1.0]]
    assert advantages[:, [0, 2]].tolist() == [[0.5, 0.0], [-0.5, 0.0], [0.5, 1.0], [-0.5, -1.0]]
    assert advantages[:, 1].tolist() == [0.0] * 4
    assert torch.equal(advantages[:, 2], advantages[:, 3])


def test_imitation_keeps_what_is_above_the_threshold() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    rewards = torch.tensor([[0.25, 0, 0.25], [0, 0.75, 0]])
    config = OmegaConf.create({"algorithm": {"gamma": 1.0}})
    OmegaConf.set_struct(config, True)
    tell_threshold(config, 0.5)
    estimate = get_adv_estimator_fn(REJECTION_SAMPLING)
    advantages, returns = estimate(
        token_level_rewards=rewards, response_mask=mask, config=config.algorithm, index=np.array(["a", "a"])
    )
    # scores 0.5 (not above 0.5) and 0.75
    assert advantages.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert returns.tolist() == [[0.5, 0, 0.5], [0.75, 0.75, 0]]


def test_the_loss_of_imitation_is_the_likelihood_of_what_is_kept() -> None:
    loss = get_policy_loss_fn("gpg")
    log_probs = torch.tensor([[-1.0, -2.0], [-3.0, -5.0]])
    advantages, mask = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2)
    config = SimpleNamespace(global_batch_info={})
    made, _ = loss(log_probs + 9, log_probs, advantages, mask, "token-mean", config)
    assert made.item() == pytest.approx((1 + 2) / 4)
