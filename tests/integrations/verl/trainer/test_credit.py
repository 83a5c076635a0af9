"""Episodes of several sequences: the same credit under verl as in the local trainer."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from uirl.algorithms import get_algorithm
from uirl.errors import AlignmentError
from uirl.images import ImageStore
from uirl.integrations.verl.config.mapping import ESTIMATORS
from uirl.integrations.verl.rollout.outputs import outputs_of
from uirl.integrations.verl.trainer.credit import Row, any_rewritten, credit_episodes
from uirl.learner.credit import assign_credit
from uirl.learner.view import response_view
from uirl.rollout import samples_of
from uirl.types import Observation, Trajectory, Turn

pytestmark = pytest.mark.verl

ALGORITHM = {"gamma": 0.9, "lam": 0.8, "norm_adv_by_std_in_grpo": True, "uirl_reward_threshold": 0.5}


def episode(group: str, member: int, shape: str, rewards: list[float]) -> Trajectory:
    """`shape`: one letter per turn, 's' where it starts a sequence; turn k has k % 3 + 1 tokens."""
    turns = []
    for k, (letter, reward) in enumerate(zip(shape, rewards, strict=True)):
        n = k % 3 + 1
        turns.append(
            Turn(Observation("look"), (1, 2), tuple(range(n)), (-0.5,) * n, reward=reward, starts_segment=letter == "s")
        )
    return Trajectory(id=f"{group}_{member}", group_id=group, turns=turns, stop_reason="terminated")


def batch() -> list[Trajectory]:
    """Two groups of three; the members have one, two and three sequences."""
    draw = random.Random(5)
    shapes = ("s....", "s..s", "s.ss..")
    return [
        episode(group, member, shape, [round(draw.uniform(-1, 1), 3) for _ in shape])
        for group in "ab"
        for member, shape in enumerate(shapes)
    ]


def rows_of(trajectory: Trajectory, **numbers: list[Tensor]) -> list[Row]:
    """What verl's queue holds of an episode; `numbers`: one tensor for each of its sequences."""
    outputs = outputs_of(trajectory, ImageStore(), [0], max_tokens=100)
    return [
        Row(
            f"{trajectory.id}_{i}",
            torch.tensor(output.response_mask),
            output.extra_fields["turn_scores"],
            **{name: parts[i] for name, parts in numbers.items()},
        )
        for i, output in enumerate(outputs)
    ]


@pytest.mark.parametrize("ours", ESTIMATORS)
def test_credit_is_that_of_the_local_trainer(ours: str) -> None:
    trajectories, noise = batch(), torch.Generator().manual_seed(0)
    samples = [sample for t in trajectories for sample in samples_of(t)]
    view = response_view(samples)
    values, penalty = (torch.randn(view.tokens, generator=noise) for _ in range(2))
    spec = get_algorithm(ours)
    options = {"gamma": 0.9, "lam": 0.8, "normalize_by_std": True, "reward_threshold": 0.5}
    rewards = view.rewards + view.spread(penalty)
    expected = assign_credit(spec, options, view, rewards, view.spread(values) if spec.needs_critic else None, None)

    rows: list[Row] = []
    for one, v, p in zip(
        [row for t in trajectories for row in rows_of(t)], view.split(values), view.split(penalty), strict=True
    ):
        mask = one.mask > 0
        full = [torch.zeros(mask.shape).masked_scatter(mask, part) for part in (v, p)]
        rows.append(Row(one.key, one.mask, one.turn_rewards, full[1], full[0] if spec.needs_critic else None))
    order = list(range(len(rows)))
    random.Random(1).shuffle(order)  # verl sorts rows by length
    filler = Row("padding_0_0", torch.zeros(1), [0.5])
    found = credit_episodes([rows[i] for i in order] + [filler], {**ALGORITHM, "adv_estimator": ESTIMATORS[ours]})

    for got, whole in zip(found, (expected.advantages, expected.returns), strict=True):
        assert got[-1].tolist() == [0.0]
        for i, part in zip(order, got, strict=False):
            mask = rows[i].mask > 0
            assert torch.equal(part[mask], view.split(view.flatten(whole))[i])
            assert not part[~mask].any()


def test_an_episode_of_two_sequences_votes_once() -> None:
    """Scores 1, 0 and 0.5: leave-one-out baselines 0.25, 0.75 and 0.5. With a vote per sequence the others of the
    second would be 1, 1 and 0.5."""
    members = [episode("a", 0, "ss", [0.25, 0.75]), episode("a", 1, "s", [0.0]), episode("a", 2, "s", [0.5])]
    rows = [row for member in members for row in rows_of(member)]
    advantages, returns = credit_episodes(rows, {**ALGORITHM, "adv_estimator": "rloo"})
    # the second sequence of the first episode holds its turn 1, which has two tokens
    assert [part.tolist() for part in advantages] == [[0.75], [0.75, 0.75], [-0.75], [0.0]]
    assert [part.tolist() for part in returns] == [[1.0], [1.0, 1.0], [0.0], [0.5]]


def test_what_a_later_sequence_earns_reaches_the_earlier_one() -> None:
    """Reward 1 at the end of the second sequence, gamma 0.5: tokens of one and two turns see 1/4, 1/2, 1."""
    rows = rows_of(episode("a", 0, "ss", [0.0, 1.0]))
    algorithm: dict[str, Any] = {**ALGORITHM, "gamma": 0.5, "adv_estimator": "reinforce_plus_plus"}
    _, returns = credit_episodes(rows, algorithm)
    assert [part.tolist() for part in returns] == [[0.25], [0.5, 1.0]]


def test_a_sequence_that_is_missing_is_told() -> None:
    first, _ = rows_of(episode("a", 0, "ss", [0.0, 1.0]))
    with pytest.raises(AlignmentError, match="a_0 hold 1 replies, but 2 turns were rewarded"):
        credit_episodes([first], {**ALGORITHM, "adv_estimator": "rloo"})


def test_several_sequences_are_seen_by_their_keys() -> None:
    assert not any_rewritten(["u_0_0", "u_1_0", "v_0_0"])
    assert any_rewritten(["u_0_0", "u_1_0", "u_1_1"])
