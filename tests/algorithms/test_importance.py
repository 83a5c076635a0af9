"""Importance weights of tokens and sequences, and the effective sample size: numbers by hand."""

import math

import pytest
import torch

from uirl.algorithms import (
    PolicyLossOptions,
    compute_policy_loss,
    effective_sample_size,
    level_log_weight,
    masked_weight,
    truncated_weight,
)

LOG_WEIGHT = torch.tensor([[1.0, -1.0, 0.6, 9.0], [0.0, 0.2, 9.0, 9.0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
"""Rows of 3 and 2 tokens; geometric means e^(0.6 / 3) = 1.22140 and e^0.1 = 1.10517."""
E1, E02, E01 = math.e, math.exp(0.2), math.exp(0.1)


def test_the_weight_of_a_sequence_is_the_geometric_mean_of_those_of_its_tokens():
    got = level_log_weight(LOG_WEIGHT, MASK, "sequence")
    torch.testing.assert_close(got, torch.tensor([[0.2, 0.2, 0.2, 0.0], [0.1, 0.1, 0.0, 0.0]]))
    torch.testing.assert_close(level_log_weight(LOG_WEIGHT, MASK), LOG_WEIGHT * MASK)


@pytest.mark.parametrize(
    ("level", "cap", "expected"),
    [
        ("token", 2.0, [[2.0, 1 / E1, math.exp(0.6), 1.0], [1.0, E02, 1.0, 1.0]]),
        ("sequence", 2.0, [[E02, E02, E02, 1.0], [E01, E01, 1.0, 1.0]]),
        ("sequence", 1.2, [[1.2, 1.2, 1.2, 1.0], [E01, E01, 1.0, 1.0]]),
    ],
)
def test_truncated_weights(level, cap, expected):
    torch.testing.assert_close(truncated_weight(LOG_WEIGHT, MASK, cap, level), torch.tensor(expected))


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        # e^1 and e^-1 lie outside [0.5, 2]
        ("token", [[0.0, 0.0, math.exp(0.6), 1.0], [1.0, E02, 1.0, 1.0]]),
        ("sequence", [[E02, E02, E02, 1.0], [E01, E01, 1.0, 1.0]]),
    ],
)
def test_masked_weights_weigh_what_they_keep(level, expected):
    torch.testing.assert_close(masked_weight(LOG_WEIGHT, MASK, 0.5, 2.0, level), torch.tensor(expected))
    high = masked_weight(LOG_WEIGHT, MASK, 0.5, 1.2, "sequence")
    torch.testing.assert_close(high, torch.tensor([[0.0, 0.0, 0.0, 1.0], [E01, E01, 1.0, 1.0]]))


@pytest.mark.parametrize(
    ("weights", "share"),
    [
        ([1.0, 1.0, 1.0, 1.0], 1.0),
        ([3.0, 3.0, 3.0, 3.0], 1.0),  # of the scale nothing depends
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        ([1.0, 3.0, 0.0, 0.0], 16 / 40),  # (1 + 3)^2 / (4 x (1 + 9))
        ([0.0, 0.0, 0.0, 0.0], 0.0),
    ],
)
def test_effective_sample_size(weights, share):
    padded = torch.tensor([[*weights, 7.0]])
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    assert effective_sample_size(padded, mask).item() == pytest.approx(share)


def test_truncation_per_sequence_in_the_loss():
    # ratio 1 and A = 1 everywhere: loss = -(3 x min(1.2214, 1.2) + 2 x 1.10517) / 5
    old = LOG_WEIGHT - 2
    options = PolicyLossOptions(tis_cap=1.2, tis_level="sequence")
    loss, metrics = compute_policy_loss(
        old, old, torch.ones(2, 4), MASK, options=options, rollout_log_probs=torch.full((2, 4), -2.0)
    )
    assert loss.item() == pytest.approx(-(3 * 1.2 + 2 * E01) / 5)
    assert metrics["policy/mismatch_capped_fraction"] == pytest.approx(3 / 5)
