"""Group estimators: numbers by hand, shift invariance, groups of one, ids of every kind."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from uirl.algorithms import (
    compute_grpo_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rejection_sampling_advantage,
    compute_rloo_advantage,
)

MASK = torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1], [0, 1, 0]])


def rewards_of(*scores: float, mask: torch.Tensor = MASK) -> torch.Tensor:
    """Each score on the last response token of its row."""
    rewards = torch.zeros(mask.shape)
    for row, score in enumerate(scores):
        rewards[row, int(mask[row].nonzero().max())] = score
    return rewards


def per_row(advantages: torch.Tensor, mask: torch.Tensor = MASK) -> list[float]:
    """One number per row, after checking that it stands on every response token and nowhere else."""
    numbers = torch.stack([row[m.bool()][0] for row, m in zip(advantages, mask, strict=True)])
    assert torch.equal(advantages, numbers.unsqueeze(1) * mask)
    return numbers.tolist()


def test_grpo_by_hand():
    # group a: 1, 0 -> mean 0.5, unbiased std sqrt(0.5) = 0.70711 -> +-0.5 / 0.70711 = +-0.70711
    # group b: 3, 5 -> mean 4, std sqrt(2) = 1.41421 -> -+1 / 1.41421 = -+0.70711
    advantages, returns = compute_grpo_advantage(rewards_of(1, 0, 3, 5), MASK, ["a", "a", "b", "b"])
    assert per_row(advantages) == pytest.approx([0.70711, -0.70711, -0.70711, 0.70711], abs=1e-5)
    assert per_row(returns) == [1, 0, 3, 5]


@pytest.mark.parametrize("size", [2, 3, 5, 16])
def test_grpo_divides_by_the_unbiased_standard_deviation_of_a_group(size):
    scores = torch.randn(2 * size, generator=torch.Generator().manual_seed(size))
    rewards, groups = scores[:, None], np.array(["a"] * size + ["b"] * size)
    found, _ = compute_grpo_advantage(rewards, torch.ones(2 * size, 1), groups, epsilon=1e-6)
    expected = torch.cat([(part - part.mean()) / (part.std() + 1e-6) for part in scores.split(size)])
    torch.testing.assert_close(found[:, 0], expected)


def test_grpo_without_std_by_hand():
    advantages, _ = compute_grpo_advantage(rewards_of(1, 0, 3, 5), MASK, ["a", "a", "b", "b"], normalize_by_std=False)
    assert per_row(advantages) == [0.5, -0.5, -1.0, 1.0]


def test_rloo_by_hand():
    # group of three: 1, 0, 5. 1 - (0+5)/2 = -1.5;  0 - (1+5)/2 = -3;  5 - (1+0)/2 = 4.5.  A group of one: 0.
    advantages, _ = compute_rloo_advantage(rewards_of(1, 0, 5, 7), MASK, [4, 4, 4, 9])
    assert per_row(advantages) == pytest.approx([-1.5, -3.0, 4.5, 0.0])


def test_reinforce_plus_plus_baseline_by_hand():
    # centred scores 0.5, -0.5, -1, 1 stand on 2, 2, 3, 1 tokens: sum = 1 - 1 - 3 + 1 = -2 over 8 tokens, mean -0.25
    # squares about the mean: 2*0.75^2 + 2*0.25^2 + 3*0.75^2 + 1.25^2 = 1.125 + 0.125 + 1.6875 + 1.5625 = 4.5
    # std = sqrt(4.5 / 7) = 0.801784
    advantages, _ = compute_reinforce_plus_plus_baseline_advantage(rewards_of(1, 0, 3, 5), MASK, [0, 0, 1, 1])
    assert per_row(advantages) == pytest.approx([x / 0.801784 for x in (0.75, -0.25, -0.75, 1.25)], abs=1e-5)


def test_rejection_sampling_keeps_what_is_strictly_above():
    advantages, returns = compute_rejection_sampling_advantage(rewards_of(0.0, 0.1, -1, 2), MASK)
    assert per_row(advantages) == [0, 1, 0, 1]
    assert per_row(returns) == pytest.approx([0, 0.1, -1, 2])
    advantages, _ = compute_rejection_sampling_advantage(rewards_of(0.0, 0.1, -1, 2), MASK, reward_threshold=0.5)
    assert per_row(advantages) == [0, 0, 0, 1]


GROUPED = [
    lambda r, m, i: compute_grpo_advantage(r, m, i),
    lambda r, m, i: compute_grpo_advantage(r, m, i, normalize_by_std=False),
    compute_rloo_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
]


@pytest.mark.parametrize("estimate", GROUPED)
@given(seed=st.integers(0, 10**6), shift=st.sampled_from([-8.0, 0.5, 64.0]))
def test_a_constant_added_to_one_group_changes_no_advantage(estimate, seed, shift):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(-16, 17, (6,), generator=g) / 8  # exact in float32, so the shift is exact too
    index = torch.tensor([0, 1, 0, 1, 1, 0])
    rewards = torch.zeros(6, 4)
    rewards[:, 3] = scores
    shifted = rewards.clone()
    shifted[index == 1, 0] += shift  # spread over another token: only the sum may matter
    mask = torch.ones(6, 4)
    torch.testing.assert_close(estimate(shifted, mask, index)[0], estimate(rewards, mask, index)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("estimate", GROUPED)
def test_order_of_rows_padding_and_kind_of_ids_do_not_matter(estimate):
    rewards = rewards_of(1, 0, 3, 5)
    plain = estimate(rewards, MASK, [0, 0, 1, 1])[0]
    assert plain.abs().sum() > 1
    for ids in (
        torch.tensor([7, 7, -2, -2]),
        torch.tensor([7, 7, -2, -2], dtype=torch.int32),
        np.array([7, 7, -2, -2]),
        np.array(["x", "x", "y", "y"]),
        np.array(["x", "x", 3, 3], dtype=object),
        ("x", "x", 3, 3),
    ):
        assert torch.equal(estimate(rewards, MASK, ids)[0], plain)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(
        estimate(rewards[order], MASK[order], torch.tensor([0, 0, 1, 1])[order])[0], plain[order]
    )
    pad = torch.nn.functional.pad
    torch.testing.assert_close(estimate(pad(rewards, (2, 3)), pad(MASK, (2, 3)), [0, 0, 1, 1])[0][:, 2:5], plain)


@pytest.mark.parametrize("estimate", GROUPED[:3])
def test_a_group_of_one_has_advantage_zero(estimate):
    assert per_row(estimate(rewards_of(100, 2, 3, 5), MASK, [0, 1, 2, 3])[0]) == [0, 0, 0, 0]


@pytest.mark.parametrize("estimate", GROUPED)
@pytest.mark.parametrize("score", [0.1, 1000.1, -1e-3])
def test_a_group_of_equal_rewards_has_advantage_exactly_zero(estimate, score):
    # Seven times 0.1 is 0.7000000000000001 in float64, and more wrong in float32.
    for dtype in (torch.float32, torch.float64):
        advantages, _ = estimate(torch.full((7, 1), score, dtype=dtype), torch.ones(7, 1), [0] * 7)
        assert (advantages == 0).all()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 0, 1], "got 3 ids, expected 4"),
        ([0, 0, None, 1], r"index\[2\] must be one group id"),
        (torch.zeros(4, 1), r"index\[0\] must be one group id"),
    ],
)
def test_bad_group_ids_are_refused(index, message):
    with pytest.raises(ValueError, match=message):
        compute_grpo_advantage(rewards_of(1, 0, 3, 5), MASK, index)


def test_a_nan_reward_stays_in_its_group():
    advantages, _ = compute_grpo_advantage(rewards_of(math.nan, 0, 3, 5), MASK, [0, 0, 1, 1])
    numbers = [float(row[m.bool()][0]) for row, m in zip(advantages, MASK, strict=True)]
    assert math.isnan(numbers[0])
    assert math.isnan(numbers[1])
    assert numbers[2:] == pytest.approx([-0.70711, 0.70711], abs=1e-5)
