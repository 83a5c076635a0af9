"""What every function refuses: tensors that do not align, masks that are weights, discounts that grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from uirl.algorithms import (
    compute_grpo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rejection_sampling_advantage,
    compute_rloo_advantage,
)
from uirl.algorithms.checks import as_bool_mask, check_aligned, check_unit_interval, zero_outside

GROUPS = ["a", "a"]


@pytest.mark.parametrize(
    "estimate",
    [
        lambda rewards, mask: compute_grpo_advantage(rewards, mask, GROUPS),
        lambda rewards, mask: compute_rloo_advantage(rewards, mask, GROUPS),
        lambda rewards, mask: compute_reinforce_plus_plus_advantage(rewards, mask, 1.0),
        lambda rewards, mask: compute_reinforce_plus_plus_baseline_advantage(rewards, mask, GROUPS),
        lambda rewards, mask: compute_rejection_sampling_advantage(rewards, mask),
    ],
)
def test_rewards_and_masks_that_differ_in_shape_are_refused(estimate: Callable[[Tensor, Tensor], object]) -> None:
    # a mask of one column would be broadcast without a word
    with pytest.raises(ValueError, match=r"response_mask must align with token_level_rewards: got shape \(2, 1\)"):
        estimate(torch.zeros(2, 3), torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"response_mask must hold only 0 and 1: got values between 0.5 and 0.5"):
        estimate(torch.zeros(2, 3), torch.full((2, 3), 0.5))


def test_what_aligns_and_what_does_not() -> None:
    check_aligned(a=torch.zeros(2, 3), b=torch.ones(2, 3), c=torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"c must align with a: got shape \(3, 2\), expected \(2, 3\)"):
        check_aligned(a=torch.zeros(2, 3), b=torch.ones(2, 3), c=torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"a must be \[B, T\]: got shape \(3,\)"):
        check_aligned(a=torch.zeros(3))
    with pytest.raises(TypeError, match=r"b must be a torch.Tensor .*: got list"):
        check_aligned(a=torch.zeros(2, 3), b=[[0.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masks_of_any_type_are_booleans(dtype: torch.dtype) -> None:
    assert as_bool_mask(torch.tensor([[0, 1, 1]]).to(dtype)).tolist() == [[False, True, True]]
    assert as_bool_mask(torch.tensor([[0, 1, 1]]).to(dtype)).dtype == torch.bool


def test_nothing_reaches_beyond_a_mask() -> None:
    values = torch.tensor([1.0, float("nan"), 3.0, float("inf")], dtype=torch.float64)
    kept = zero_outside(values, torch.tensor([True, False, True, False]))
    assert (kept.tolist(), kept.dtype) == ([1.0, 0.0, 3.0, 0.0], torch.float64)


def test_discounts_lie_between_0_and_1_and_may_be_either() -> None:
    check_unit_interval(gamma=0.0, lam=1.0)
    for number in (-0.01, 1.01):
        with pytest.raises(ValueError, match=f"lam must lie in .*: got {number}"):
            check_unit_interval(gamma=0.5, lam=number)
