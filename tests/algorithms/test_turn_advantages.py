"""Credit per turn: numbers by hand and what must not matter."""

import pytest
import torch

from uirl.algorithms import compute_gigpo_advantage, compute_grpo_advantage, compute_turn_level_advantage, spare_turns

# Two trajectories of one group. Row 0: turn 0 (2 tokens), an observation, turn 1 (1 token).
# Row 1: turn 0 (1 token), an observation, turn 1 (1 token), turn 2 (1 token).
MASK = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 1, 0]])
TURNS = torch.tensor([[0, 0, -1, 1, -1], [0, -1, 1, 2, -1]])
REWARDS = torch.tensor([[0.0, 1.0, 0.0, 4.0, 0.0], [2.0, 0.0, 0.0, 8.0, 0.0]])


def test_turn_returns_and_their_baseline_by_hand():
    # gamma 0.5. Row 0: G1 = 4, G0 = 1 + 0.5*4 = 3.  Row 1: G2 = 8, G1 = 0 + 4 = 4, G0 = 2 + 0.5*4 = 4.
    # turn 0: mean 3.5 -> -0.5, +0.5;  turn 1: 4 and 4 -> 0;  turn 2: alone -> 0
    advantages, returns = compute_turn_level_advantage(REWARDS, MASK, [0, 0], TURNS, gamma=0.5, normalize_by_std=False)
    torch.testing.assert_close(returns, torch.tensor([[3.0, 3, 0, 4, 0], [4, 0, 4, 8, 0]]))
    torch.testing.assert_close(advantages, torch.tensor([[-0.5, -0.5, 0, 0, 0], [0.5, 0, 0, 0, 0]]))


def test_turn_advantages_divided_by_std():
    # turn 0: 3 and 4, unbiased std sqrt(0.5) = 0.70711 -> -+0.5 / 0.70711 = -+0.70711
    advantages, _ = compute_turn_level_advantage(REWARDS, MASK, ["g", "g"], TURNS, gamma=0.5)
    assert advantages[:, 0].tolist() == pytest.approx([-0.70711, 0.70711], abs=1e-5)


def test_turns_of_different_groups_are_not_compared():
    advantages, _ = compute_turn_level_advantage(REWARDS, MASK, [0, 1], TURNS, gamma=0.5)
    assert (advantages == 0).all()


def test_one_turn_per_trajectory_is_grpo():
    g = torch.Generator().manual_seed(0)
    rewards, mask = torch.randn(6, 4, generator=g), torch.ones(6, 4)
    index = [0, 0, 0, 1, 1, 1]
    turns = torch.zeros(6, 4, dtype=torch.int64)
    torch.testing.assert_close(
        compute_turn_level_advantage(rewards, mask, index, turns)[0], compute_grpo_advantage(rewards, mask, index)[0]
    )


def test_gigpo_by_hand():
    # Row 0 goes through states 7, 5; row 1 through 7, 7, 5 (it comes back to 7). gamma 0.5, no std, weight 2.
    # Episode: scores 5 and 10, mean 7.5 -> -2.5, +2.5.
    # State 7: turn returns 3 (row 0), 4, 4 (row 1): mean 11/3 -> -2/3, 1/3, 1/3.  State 5: 4 and 8 -> -2, 2.
    anchors = torch.tensor([[7, 7, -1, 5, -1], [7, -1, 7, 5, -1]])
    advantages, returns = compute_gigpo_advantage(
        REWARDS, MASK, [0, 0], TURNS, anchors, gamma=0.5, step_advantage_weight=2.0, normalize_by_std=False
    )
    a, b = -2.5 - 4 / 3, 2.5 + 2 / 3
    torch.testing.assert_close(advantages, torch.tensor([[a, a, 0, -6.5, 0], [b, 0, b, 6.5, 0]]))
    torch.testing.assert_close(returns, torch.tensor([[3.0, 3, 0, 4, 0], [4, 0, 4, 8, 0]]))


def test_gigpo_with_states_seen_once_is_grpo():
    index = [0, 0]
    expected, _ = compute_grpo_advantage(REWARDS, MASK, index)
    distinct = torch.tensor([[1, 1, -1, 2, -1], [3, -1, 4, 5, -1]])
    nothing = torch.full((2, 5), -1)
    for anchors in (distinct, nothing):
        advantages, _ = compute_gigpo_advantage(REWARDS, MASK, index, TURNS, anchors)
        torch.testing.assert_close(advantages, expected)


def test_equal_states_of_different_groups_are_different():
    anchors = torch.where(MASK.bool(), 7, -1)
    advantages, _ = compute_gigpo_advantage(REWARDS, MASK, [0, 1], TURNS, anchors, normalize_by_std=False)
    assert advantages[0].tolist()[0] != 0  # row 0 visits state 7 twice: compared with itself
    alone = torch.tensor([[7, 7, -1, 5, -1], [7, -1, 4, 5, -1]])
    advantages, _ = compute_gigpo_advantage(REWARDS, MASK, [0, 1], TURNS, alone)
    assert (advantages == 0).all()


@pytest.mark.parametrize("shift", [0.5, -64.0])
def test_a_constant_on_every_final_reward_of_the_group_changes_nothing(shift):
    # gamma 1 and the constant on each last turn: every turn return of the group moves by the same amount.
    anchors = torch.tensor([[7, 7, -1, 5, -1], [7, -1, 7, 5, -1]])
    shifted = REWARDS.clone()
    shifted[:, 3] += shift
    for estimate in (
        lambda r: compute_turn_level_advantage(r, MASK, [0, 0], TURNS, gamma=1.0)[0],
        lambda r: compute_gigpo_advantage(r, MASK, [0, 0], TURNS, anchors, gamma=1.0)[0],
    ):
        torch.testing.assert_close(estimate(shifted), estimate(REWARDS))


def test_padding_and_garbage_outside_the_mask_change_nothing():
    anchors = torch.tensor([[7, 7, -1, 5, -1], [7, -1, 7, 5, -1]])
    pad = torch.nn.functional.pad
    wide = compute_gigpo_advantage(
        pad(REWARDS, (2, 3), value=9.0),
        pad(MASK, (2, 3)),
        [0, 0],
        pad(TURNS, (2, 3), value=99),
        pad(anchors, (2, 3), value=7),
    )
    narrow = compute_gigpo_advantage(REWARDS, MASK, [0, 0], TURNS, anchors)
    for padded, plain in zip(wide, narrow, strict=True):
        torch.testing.assert_close(padded[:, 2:7], plain)
        assert padded[:, :2].abs().sum() == padded[:, 7:].abs().sum() == 0


@pytest.mark.parametrize(
    ("turn_ids", "message"),
    [
        (TURNS - 1, "got -1 to 1 in 5 columns"),
        (TURNS * 100, "got 0 to 200 in 5 columns"),
        (TURNS[:, :4], r"turn_ids must align with token_level_rewards: got shape \(2, 4\)"),
    ],
)
def test_impossible_turn_numbers_are_refused(turn_ids, message):
    with pytest.raises(ValueError, match=message):
        compute_turn_level_advantage(REWARDS, MASK, [0, 0], turn_ids)


def test_two_states_in_one_turn_are_refused():
    anchors = torch.tensor([[7, 8, -1, 5, -1], [7, -1, 7, 5, -1]])
    with pytest.raises(ValueError, match=r"got 7 and 8 in row 0, turn 0"):
        compute_gigpo_advantage(REWARDS, MASK, [0, 0], TURNS, anchors)


class TestSpareTurns:
    # two turns of two and one tokens; the column between them belongs to the environment
    TURNS = torch.tensor([[0, 0, -1, 1, -1], [0, 0, -1, 1, -1]])
    MASK = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 0, 1, 0]])

    def test_the_right_turns_of_a_failed_episode_lose_their_blame(self):
        # GRPO of the rewards 1 and 0 without the deviation: +-0.5; row 1 failed in its second turn
        advantages = torch.tensor([[0.5, 0.5, 0.0, 0.5, 0.0], [-0.5, -0.5, 0.0, -0.5, 0.0]])
        spared = spare_turns(advantages, self.MASK, self.TURNS, torch.tensor([0, 1]))
        assert spared.tolist() == [[0.5, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, -0.5, 0.0]]

    def test_praise_stays(self):
        advantages = torch.tensor([[0.2, -0.3, 0.0, -0.1, 0.0]])
        spared = spare_turns(advantages, self.MASK[:1], self.TURNS[:1], torch.tensor([2]))
        assert spared.tolist() == torch.tensor([[0.2, 0.0, 0.0, 0.0, 0.0]]).tolist()

    def test_none_spared_changes_nothing(self):
        advantages = torch.tensor([[-1.0, 2.0, 0.0, -3.0, 0.0], [1.0, -1.0, 0.0, 0.0, 0.0]])
        assert torch.equal(spare_turns(advantages, self.MASK, self.TURNS, torch.tensor([0, 0])), advantages)

    def test_garbage_outside_the_mask_stays_out(self):
        advantages, turns = torch.full((2, 5), -1.0), self.TURNS.masked_fill(self.MASK == 0, 0)
        spared = spare_turns(advantages, self.MASK, turns, torch.tensor([1, 1]))
        assert spared.tolist() == [[0.0, 0.0, -1.0, -1.0, -1.0]] * 2

    def test_a_number_for_each_row(self):
        with pytest.raises(ValueError, match=r"one number per row: got \(1,\), expected 2"):
            spare_turns(torch.zeros(2, 5), self.MASK, self.TURNS, torch.tensor([1]))
