"""Which groups hold something to learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from uirl.algorithms import at_most, differ, get_algorithm
from uirl.config import AlgorithmConfig, TrainingConfig
from uirl.types import Trajectory

NO_SIGNAL = (
    "An update is skipped where its episodes leave nothing to compare: in every group all members have one reward, or "
    "fewer groups differ than algorithm.min_live_groups asks for. Look at the rewards in `uirl view`: they may be "
    "constant, or the tasks too hard or too easy for the policy: imitate first (training.warm_start.enabled=true), or "
    "draw by success (curriculum.enabled=true). docs/not_learning.md says what to look at, in which order"
)


class HasMembers(Protocol):
    """A group that was played."""

    @property
    def usable(self) -> Sequence[Trajectory]:
        """The trajectories that are evidence."""
        ...


G = TypeVar("G", bound=HasMembers)


def live_groups(groups: Sequence[G], *, turn_gamma: float | None = None) -> list[G]:
    """Return the groups whose usable members differ in reward: in the others every advantage is zero.

    `turn_gamma`: the discount per turn of estimators that give credit to turns; their groups also live where members
    differ in what the same turn was worth. None: the totals decide.
    """
    return [group for group in groups if members_differ(group.usable, turn_gamma)]


def why_no_signal(groups: Sequence[HasMembers]) -> str:
    """Return `NO_SIGNAL`, after what the replies of `groups` show: most were cut off before they said what to do."""
    reasons = [turn.finish_reason for group in groups for trajectory in group.usable for turn in trajectory.turns]
    cut = reasons.count("length")
    if 2 * cut <= len(reasons):
        return NO_SIGNAL
    return (
        f"{cut} of {len(reasons)} replies were cut off at inference.max_tokens (or inference.max_context): let them be "
        f"longer. {NO_SIGNAL}"
    )


def signal_of(training: TrainingConfig, algorithm: AlgorithmConfig) -> Callable[[Sequence[Trajectory]], bool | None]:
    """Return what says whether the estimator of `training` finds something to learn in the usable members of a group;
    None: it compares none, so that the group says nothing of it."""
    spec = get_algorithm(training.adv_estimator)
    gamma = training.gamma if spec.needs_turns else None
    if spec.needs_group:
        return lambda members: members_differ(members, gamma)
    if spec.loss == "rejection_sampling":
        return lambda members: any(is_kept(t, algorithm.reward_threshold) for t in members)
    return lambda members: members_differ(members, gamma) or None


def members_differ(members: Sequence[Trajectory], turn_gamma: float | None = None) -> bool:
    """Return whether members of a group differ in reward, or by `turn_gamma` in what a turn was worth."""
    if differ([t.total_reward() for t in members], [_size(t) for t in members]):
        return True
    if turn_gamma is None:
        return False
    returns = zip(*(_returns(t.rewards, turn_gamma) for t in members), strict=False)
    sizes = zip(*(_returns(map(abs, t.rewards), turn_gamma) for t in members), strict=False)
    return any(differ(same, size) for same, size in zip(returns, sizes, strict=True))


def is_kept(trajectory: Trajectory, threshold: float) -> bool:
    """Return whether rejection sampling learns from an episode: its reward is above `threshold` by more than rounding,
    as in `compute_rejection_sampling_advantage`."""
    return not at_most(trajectory.total_reward(), threshold, max(_size(trajectory), abs(threshold)))


def _size(trajectory: Trajectory) -> float:
    """Return what the rewards would sum up to without signs."""
    return sum(map(abs, trajectory.rewards))


def _returns(rewards: Iterable[float], gamma: float) -> list[float]:
    """Return the discounted sum of each reward and those that follow."""
    returns: list[float] = []
    for reward in reversed([*rewards]):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]
