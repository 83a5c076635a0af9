"""Sums of rewards that differ by the order of adding alone decide nothing, wherever sums are compared."""

from types import SimpleNamespace

import gymnasium
import pytest
import torch

from tests.learner.worlds import make_config
from uirl.algorithms import (
    compute_gigpo_advantage,
    compute_grpo_advantage,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rejection_sampling_advantage,
    compute_rloo_advantage,
    compute_turn_level_advantage,
)
from uirl.environments.adapters.gymnasium import GymnasiumEnvironment
from uirl.learner import response_view
from uirl.learner.credit import assign_credit
from uirl.learner.settings import LearnerSettings
from uirl.training.groups_with_signal import is_kept, live_groups, members_differ, signal_of
from uirl.training.record.run_state import RunState
from uirl.types import Sample, Trajectory

ONE_SUM = {
    "two steps and one": [[0.1, 0.2, 0.0], [0.0, 0.0, 0.3]],
    "ten steps and one": [[0.1] * 10, [0.0] * 9 + [1.0]],
    "a thousand steps and one": [[0.001] * 1000, [0.0] * 999 + [1.0]],
    "what is taken back": [[1000.0, -999.9, 0.0], [0.0, 0.0, 0.1]],
    "what is lost": [[-0.1, -0.2, 0.0], [0.0, 0.0, -0.3]],
}
"""Rewards of two episodes of a group, by turn: mathematically of one sum."""
OTHER_SUMS = {
    "a thousandth": [[0.1, 0.2], [0.0, 0.3003]],
    "a millionth of nothing": [[1e-6, 0.0], [0.0, 0.0]],
    "one step of five hundred": [[1.0] * 500, [1.0] * 499 + [0.0]],
}
BOTH = [*((rewards, False) for rewards in ONE_SUM.values()), *((rewards, True) for rewards in OTHER_SUMS.values())]
WORDS = [*ONE_SUM, *OTHER_SUMS]
INDEX = ["g", "g"]


def episode(rewards: list[float], id: str = "") -> Trajectory:
    one = Trajectory(id=id) if id else Trajectory()
    one.rewards = rewards
    return one


def of_group(dtype: torch.dtype, rewards: list[list[float]]) -> dict[str, torch.Tensor]:
    """The advantages of every estimator that compares whole episodes."""
    given = torch.tensor(rewards, dtype=dtype)
    mask = torch.ones_like(given, dtype=torch.bool)
    return {
        "grpo": compute_grpo_advantage(given, mask, INDEX)[0],
        "dr grpo": compute_grpo_advantage(given, mask, INDEX, normalize_by_std=False)[0],
        "rloo": compute_rloo_advantage(given, mask, INDEX)[0],
        "reinforce++ baseline": compute_reinforce_plus_plus_baseline_advantage(given, mask, INDEX)[0],
        "gigpo": compute_gigpo_advantage(given, mask, INDEX, *turns_without_states(given))[0],
    }


def turns_without_states(rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    turns = torch.arange(rewards.shape[1]).expand(rewards.shape)
    return turns, torch.full_like(turns, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rewards", "live"), BOTH, ids=WORDS)
def test_estimators_find_no_signal_in_rounding(rewards: list[list[float]], live: bool, dtype: torch.dtype) -> None:
    for name, advantages in of_group(dtype, rewards).items():
        assert bool((advantages != 0).any()) is live, name


@pytest.mark.parametrize(("rewards", "live"), BOTH, ids=WORDS)
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_learner_and_ledger_agree_on_what_is_live(estimator: str, rewards: list[list[float]], live: bool) -> None:
    settings = LearnerSettings.of(make_config(f"training.adv_estimator={estimator}", "training.group_size=2"))
    samples = [
        Sample((1,) * len(r), (True,) * len(r), (0.0,) * len(r), tuple(r), (0,) * len(r), (), 0, str(i), "g")
        for i, r in enumerate(rewards)
    ]
    view = response_view(samples)
    credit = assign_credit(settings.spec, settings.advantage, view, view.rewards, None, None)
    assert bool(credit.live.any()) is live
    members = [episode(r) for r in rewards]
    group = SimpleNamespace(usable=members)
    assert [bool(live_groups([group])), members_differ(members)] == [live, live]
    config = make_config(f"training.adv_estimator={estimator}")
    assert signal_of(config.training, config.algorithm)(members) is live


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_turns_of_one_worth_are_equal(dtype: torch.dtype) -> None:
    """From the second turn on the one gets 0.1 and 0.2, the other 0.3: only the third was worth something else."""
    given = torch.tensor([[1.0, 0.1, 0.2], [1.0, 0.0, 0.3]], dtype=dtype)
    mask, turns = torch.ones_like(given, dtype=torch.bool), torch.tensor([[0, 1, 2], [0, 1, 2]])
    states = torch.tensor([[7, 8, -1], [7, 8, -1]])
    assert not compute_turn_level_advantage(given, mask, INDEX, turns)[0][:, :2].any()
    assert not compute_gigpo_advantage(given, mask, INDEX, turns, states, gamma=1.0)[0].any()
    assert not members_differ([episode([1.0, 0.1 + 0.2]), episode([1.0, 0.3])], 1.0)


def test_whitening_blows_no_rounding_up() -> None:
    ends = torch.zeros(2, 3)
    ends[0, 2], ends[1, 2] = torch.tensor(0.3).nextafter(torch.tensor(1.0)), 0.3
    assert ends[0, 2] != ends[1, 2]
    whitened, _ = compute_reinforce_plus_plus_advantage(ends, torch.ones_like(ends))
    assert not whitened.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rewards", "threshold", "kept"),
    [
        ([0.1, 0.2], 0.3, False),
        ([0.1] * 10, 1.0, False),
        ([0.7, 0.1], 0.8, False),
        ([1000.0, -999.9], 0.1, False),
        ([0.0], 0.0, False),
        ([1e-6], 0.0, True),
        ([0.1, 0.2, 0.001], 0.3, True),
        ([-0.1], -0.2, True),
    ],
)
def test_learner_and_ledger_agree_at_the_threshold_of_rejection_sampling(
    rewards: list[float], threshold: float, kept: bool, dtype: torch.dtype
) -> None:
    given = torch.tensor([rewards], dtype=dtype)
    learned, _ = compute_rejection_sampling_advantage(given, torch.ones_like(given), threshold)
    config = make_config("training.adv_estimator=rejection_sampling", f"algorithm.reward_threshold={threshold}")
    one = episode(rewards)
    assert [bool(learned.any()), is_kept(one, threshold), signal_of(config.training, config.algorithm)([one])] == [
        kept
    ] * 3


@pytest.mark.parametrize(("reached", "ends"), [(sum([0.1] * 9), True), (1 - 0.1, True), (0.9, True), (0.899, False)])
def test_a_run_ends_where_success_is_reached_but_for_rounding(reached: float, ends: bool) -> None:
    training = make_config("training.stop_at_success=0.9").training
    state = RunState()
    state.held_out = reached
    assert (state.stop_reason(training, 10) is not None) is ends


@pytest.mark.parametrize(("seconds", "ends"), [(4.5, False), (5.0, True), (5.5, True)])
def test_a_run_ends_at_its_time_limit(seconds: float, ends: bool) -> None:
    training = make_config("training.max_seconds=5").training
    state = RunState()
    state.seconds = seconds
    assert (state.stop_reason(training, 10) is not None) is ends


def test_a_return_reaches_what_it_adds_up_to() -> None:
    class Steps(gymnasium.Env):
        """Ten steps of 0.1."""

        action_space, observation_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[int, dict[str, object]]:
            super().reset(seed=seed)
            self.left = 10
            return 0, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
            self.left -= 1
            return 0, 0.1, self.left == 0, False, {}

    assert sum([0.1] * 10) < 1
    environment = GymnasiumEnvironment(Steps, success_return=1.0)
    environment.reset(seed=1)
    solved = [environment.step("1")[-1]["success"] for _ in range(10)]
    assert solved == [False] * 9 + [True]
    environment.close()
