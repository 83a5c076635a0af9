"""Which groups hold something to learn."""

from __future__ import annotations

from collections.abc import Sequence

from uirl.training.channel import Group


def live_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups whose usable members differ in reward: in the others every advantage is zero."""
    return [group for group in groups if len({t.total_reward() for t in group.trajectories if t.failure is None}) > 1]
