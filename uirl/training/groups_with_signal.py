"""Which groups hold something to learn."""

from __future__ import annotations

from collections.abc import Sequence

from uirl.training.channels.base import Group
from uirl.types import Trajectory


def live_groups(groups: Sequence[Group], *, turn_gamma: float | None = None) -> list[Group]:
    """Return the groups whose usable members differ in reward: in the others every advantage is zero.

    `turn_gamma`: the discount per turn of estimators that give credit to turns; their groups also live where members
    differ in what the same turn was worth. None: the totals decide.
    """
    return [group for group in groups if _differ([t for t in group.trajectories if t.failure is None], turn_gamma)]


def _differ(members: Sequence[Trajectory], turn_gamma: float | None) -> bool:
    if len({t.total_reward() for t in members}) > 1:
        return True
    if turn_gamma is None:
        return False
    return any(len(set(same)) > 1 for same in zip(*(_returns(t, turn_gamma) for t in members), strict=False))


def _returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """Return the discounted reward-to-go of each turn."""
    returns: list[float] = []
    for reward in reversed(trajectory.rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]
