"""GAE and reward-to-go: numbers by hand, the plain recursion, and what must not matter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from uirl.algorithms import compute_gae_advantage_return, compute_reinforce_plus_plus_advantage, discounted_suffix_sum


def recursion(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, after: float = 0.0) -> Tensor:
    """The definition, token by token, in Python floats."""
    out = torch.zeros(rewards.shape, dtype=torch.float64)
    for row in range(len(rewards)):
        next_value, running = after, 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[row, t]:
                delta = float(rewards[row, t]) + gamma * next_value - float(values[row, t])
                running = delta + gamma * lam * running
                next_value = float(values[row, t])
                out[row, t] = running
    return out


def random_batch(seed: int, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=g) < 0.6
    return torch.randn(rows, columns, generator=g) * mask, torch.randn(rows, columns, generator=g), mask


def test_three_tokens_by_hand():
    # gamma 0.5, lam 0.5, so the trace decays by 0.25.
    # delta3 = 1 + 0.5*0 - 0.2 = 0.8;  delta2 = 0 + 0.5*0.2 - 0.4 = -0.3;  delta1 = 0 + 0.5*0.4 - 0.6 = -0.4
    # A3 = 0.8;  A2 = -0.3 + 0.25*0.8 = -0.1;  A1 = -0.4 + 0.25*(-0.1) = -0.425
    # returns = A + V = 0.175, 0.3, 1.0
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.6, 0.4, 0.2]])
    advantages, returns = compute_gae_advantage_return(rewards, values, torch.ones(1, 3), 0.5, 0.5, whiten=False)
    torch.testing.assert_close(advantages, torch.tensor([[-0.425, -0.1, 0.8]]))
    torch.testing.assert_close(returns, torch.tensor([[0.175, 0.3, 1.0]]))


def test_observation_tokens_between_turns_are_not_seen():
    # The same three tokens, with two observation tokens (garbage values) after the first and padding at the end.
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]])
    values = torch.tensor([[0.6, 99.0, float("nan"), 0.4, 0.2, float("inf")]])
    mask = torch.tensor([[1, 0, 0, 1, 1, 0]])
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, 0.5, 0.5, whiten=False)
    torch.testing.assert_close(advantages, torch.tensor([[-0.425, 0.0, 0.0, -0.1, 0.8, 0.0]]))
    torch.testing.assert_close(returns, torch.tensor([[0.175, 0.0, 0.0, 0.3, 1.0, 0.0]]))


@pytest.mark.parametrize("mask", [[1, 1, 0], [0, 1, 1], [1, 0, 1]])
def test_a_truncated_episode_bootstraps_from_its_last_response_token(mask):
    # Two response tokens, gamma 1, lam 1, no reward, V = 0.5, the value afterwards 2: A = 2 - 0.5 for both.
    values = torch.full((1, 3), 0.5)
    advantages, returns = compute_gae_advantage_return(
        torch.zeros(1, 3), values, torch.tensor([mask]), 1.0, 1.0, whiten=False, bootstrap_values=torch.tensor([2.0])
    )
    torch.testing.assert_close(advantages, torch.tensor([mask]) * 1.5)
    torch.testing.assert_close(returns, torch.tensor([mask]) * 2.0)


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 4),
    columns=st.integers(1, 33),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.95, 1.0]),
)
def test_equals_the_recursion_on_any_mask(seed, rows, columns, gamma, lam):
    rewards, values, mask = random_batch(seed, rows, columns)
    bootstrap = torch.full((rows,), 0.7)
    advantages, returns = compute_gae_advantage_return(
        rewards, values, mask, gamma, lam, whiten=False, bootstrap_values=bootstrap
    )
    expected = recursion(rewards, values, mask, gamma, lam, after=0.7)
    torch.testing.assert_close(advantages.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(returns.double(), (expected + values) * mask, rtol=1e-5, atol=1e-5)


def test_long_rows_stay_exact_in_float32():
    g = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 2048, generator=g), torch.randn(2, 2048, generator=g)
    mask = torch.ones(2, 2048, dtype=torch.bool)
    advantages, _ = compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95, whiten=False)
    torch.testing.assert_close(advantages.double(), recursion(rewards, values, mask, 0.99, 0.95), rtol=0, atol=1e-5)


def test_whitening_touches_advantages_but_not_returns():
    rewards, values, mask = random_batch(5, 6, 20)
    whitened, returns = compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8)
    raw, raw_returns = compute_gae_advantage_return(rewards, values, mask, 0.9, 0.8, whiten=False)
    torch.testing.assert_close(returns, raw_returns)
    assert whitened[mask].mean().abs() < 1e-6
    assert abs(whitened[mask].std() - 1) < 1e-5
    torch.testing.assert_close(whitened[mask], (raw[mask] - raw[mask].mean()) / raw[mask].std())


def test_reward_to_go_skips_holes_and_is_whitened():
    # gamma 0.5: returns 1 + 0.5*4 = 3 and 4; the 9 under mask 0 does not count.
    # mean 3.5, std sqrt(0.5): advantages -+0.5 / 0.7071 = -+0.7071
    rewards, mask = torch.tensor([[1.0, 9.0, 4.0]]), torch.tensor([[1, 0, 1]])
    advantages, returns = compute_reinforce_plus_plus_advantage(rewards, mask, gamma=0.5)
    torch.testing.assert_close(returns, torch.tensor([[3.0, 0.0, 4.0]]))
    torch.testing.assert_close(advantages, torch.tensor([[-0.70710678, 0.0, 0.70710678]]))


@given(seed=st.integers(0, 10**6), columns=st.integers(1, 70), decay=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_suffix_sum_obeys_its_recurrence(seed, columns, decay):
    x = torch.randn(3, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    out = discounted_suffix_sum(x, decay)
    torch.testing.assert_close(out[:, -1], x[:, -1])
    torch.testing.assert_close(out[:, :-1], x[:, :-1] + decay * out[:, 1:], rtol=1e-9, atol=1e-9)


def test_a_value_behind_the_last_token_is_one_per_row():
    zeros = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"bootstrap_values must be \[B\]: got shape \(2, 1\), expected \(2,\)"):
        compute_gae_advantage_return(zeros, zeros, zeros, 0.9, 0.9, bootstrap_values=torch.zeros(2, 1))
