"""The episodes of one update: whole groups, those without a signal replaced by fresh ones."""

from __future__ import annotations

from dataclasses import dataclass

from uirl.algorithms import AlgorithmSpec
from uirl.config import ConfigStore
from uirl.training.channels.base import Channel, Group
from uirl.training.groups_with_signal import live_groups
from uirl.training.tasks.sources import TaskSource
from uirl.types import Trajectory


@dataclass(frozen=True, slots=True)
class Collection:
    """What was played for one update."""

    groups: list[Group]
    """What is learned from."""
    replaced: list[Group]
    """Groups without a signal that fresh ones replaced. They are on the record and in the metrics like all others: left
    out, a success rate would be that of a selection."""

    @property
    def learned(self) -> list[Trajectory]:
        """The episodes that the update learns from."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def played(self) -> list[Trajectory]:
        """All episodes, those of replaced groups last."""
        return [trajectory for group in self.groups + self.replaced for trajectory in group.trajectories]

    @property
    def attempts(self) -> list[Trajectory]:
        """Failed attempts that were repeated."""
        return [trajectory for group in self.groups + self.replaced for trajectory in group.attempts]


async def collect(channel: Channel, tasks: TaskSource, config: ConfigStore, spec: AlgorithmSpec) -> Collection:
    """Play the next groups of `tasks` for one update.

    The update keeps its size: groups without a signal are replaced up to `algorithm.max_resamples` times. Where no
    fresh group has one either, the last of them stay in it.
    """
    size, members = config.training.episodes_per_group, config.training.episodes_per_group + config.actors.spare_members
    gamma = config.training.gamma if spec.needs_turns else None
    groups = await channel.exchange(tasks.groups(config.training.batch_size // size, members))
    replaced: list[Group] = []
    for _ in range(config.algorithm.max_resamples if spec.needs_group else 0):
        alive = {group.id for group in live_groups(groups, turn_gamma=gamma)}
        dead = [i for i, group in enumerate(groups) if group.id not in alive]
        if not dead:
            break
        fresh = await channel.exchange(tasks.groups(len(dead), members))
        for i, group in zip(dead, fresh, strict=True):
            replaced.append(groups[i])
            groups[i] = group
    return Collection(groups, replaced)
