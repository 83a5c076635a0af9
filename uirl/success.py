"""Whether an episode solved its task: yes, no, or unknown. docs/verification.md has the rules.

A record says it in `Trajectory.success`: the verdict, else the environment's own word. An environment may speak only
where it ends an episode, or only of successes. So an episode that ended without a word is unsolved as soon as anybody
has heard this environment say what success is, and nobody can know only where it never does. Which environments speak
is known where episodes are counted, not where they are played: whoever counts calls `settle_outcomes` first.
"""

from __future__ import annotations

from collections.abc import Iterable

from uirl.types import Trajectory

UNSAID = "success/unsaid"
"""Number of an episode (`Trajectory.metrics`): 1 where it is unsolved because it ended without a word."""


def speaks(trajectory: Trajectory) -> bool:
    """Return whether the environment itself said, in this episode, if it is solved."""
    return "success" in trajectory.metrics and UNSAID not in trajectory.metrics


def is_silent(trajectory: Trajectory) -> bool:
    """Return whether the episode is evidence, has ended, and nobody said if it is solved."""
    return trajectory.failure is None and trajectory.stop_reason is not None and trajectory.success is None


def settle_outcomes(trajectories: Iterable[Trajectory], speakers: set[str]) -> None:
    """Add the environments that speak in these episodes to `speakers`, then mark the silent ones of environments in it
    as unsolved, in place. The order of the episodes does not matter."""
    played = list(trajectories)
    speakers.update(one.task.environment for one in played if speaks(one))
    for one in played:
        if is_silent(one) and one.task.environment in speakers:
            mark_unsolved(one)


def mark_unsolved(trajectory: Trajectory) -> None:
    """Mark an episode as one that is unsolved because it ended without a word, in place."""
    trajectory.metrics |= {"success": 0.0, UNSAID: 1.0}
