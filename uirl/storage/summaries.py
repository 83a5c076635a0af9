"""One line about a stored trajectory: the columns of its row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from uirl.types import Trajectory


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """One line about a stored trajectory, for lists and choices."""

    id: str
    step: int
    """Update of the run that it was collected for."""
    split: str
    created: float
    """When it was stored, in seconds since 1970."""
    task_id: str
    environment: str
    group_id: str
    stop_reason: str | None
    reward: float | None
    """Total reward; None: it was NaN."""
    success: bool | None
    """None: nobody said."""
    failure: str | None
    """Kind of the failure; None: the episode is evidence."""
    turns: int
    level: str | None
    """Of the task in the curriculum when it was drawn; None: there was none."""
    verdict: bool | None
    """Whether the verifier said that it passed; None: there is no verdict."""

    @staticmethod
    def of(trajectory: Trajectory, step: int, split: str) -> TrajectorySummary:
        """Return the line about a trajectory that is stored now."""
        reward = trajectory.total_reward()
        return TrajectorySummary(
            id=trajectory.id,
            step=step,
            split=split,
            created=time.time(),
            task_id=trajectory.task.id,
            environment=trajectory.task.environment,
            group_id=trajectory.group_id,
            stop_reason=trajectory.stop_reason,
            reward=reward if reward == reward else None,
            success=trajectory.success,
            failure=trajectory.failure.kind if trajectory.failure else None,
            turns=len(trajectory.turns),
            level=trajectory.level,
            verdict=None if trajectory.verdict is None else trajectory.verdict.passed,
        )


COLUMNS = tuple(field.name for field in fields(TrajectorySummary))
in_columns = attrgetter(*COLUMNS)  # `astuple` would copy what is nested
SUMMARY = ", ".join(COLUMNS)


def summary_of(row: Sequence[Any]) -> TrajectorySummary:
    """Return the line of a row of `COLUMNS`."""
    one = TrajectorySummary(*row)
    success, verdict = (None if value is None else bool(value) for value in (one.success, one.verdict))
    return replace(one, success=success, verdict=verdict)
