"""Groups with something to learn: their usable members differ in reward."""

from __future__ import annotations

import pytest

from uirl.training.channels.base import Group
from uirl.training.groups_with_signal import live_groups
from uirl.types import Failure, Trajectory


def played(reward: float, *, failed: bool = False) -> Trajectory:
    trajectory = Trajectory(failure=Failure("environment", "gone") if failed else None)
    trajectory.rewards = [0.0, reward]
    return trajectory


def test_members_that_failed_make_no_group_live() -> None:
    groups = [
        Group("equal but for the failure", [played(1.0), played(1.0), played(0.0, failed=True)], []),
        Group("one left", [played(1.0), played(0.0, failed=True)], []),
        Group("all failed", [played(1.0, failed=True), played(0.0, failed=True)], []),
        Group("equal", [played(0.5), played(0.5)], []),
        Group("differs beside the failure", [played(1.0), played(0.5), played(0.0, failed=True)], []),
        Group("differs", [played(1.0), played(0.0)], []),
        Group("an attempt is for the record", [played(1.0), played(1.0)], [played(0.0, failed=True)]),
    ]
    assert [group.id for group in live_groups(groups)] == ["differs beside the failure", "differs"]


@pytest.mark.parametrize(
    ("rewards", "turn_gamma", "lives"),
    [
        ([[0, 1], [0, 0]], None, True),
        ([[0, 1], [1, 0]], None, False),  # the same total
        ([[0, 1], [1, 0]], 1.0, True),  # but the second turn was worth 1 and 0
        ([[0, 1], [1]], 1.0, False),  # the first turns were worth 1 each, the second has nothing beside it
        ([[0, 1], [1]], 0.5, True),
        ([[0, 1], [0, 1]], 0.5, False),
        ([[0, 1]], 0.5, False),
    ],
)
def test_credit_per_turn_also_lives_on_when_it_was_earned(
    rewards: list[list[float]], turn_gamma: float | None, lives: bool
) -> None:
    members = [Trajectory() for _ in rewards]
    for trajectory, own in zip(members, rewards, strict=True):
        trajectory.rewards = own
    assert bool(live_groups([Group("g", members, [])], turn_gamma=turn_gamma)) == lives
