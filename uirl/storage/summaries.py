"""One line about a stored trajectory: the columns of its row."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from uirl.success import is_silent
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
    """None: nobody can know (`uirl.success`)."""
    failure: str | None
    """Kind of the failure; None: the episode is evidence."""
    turns: int
    level: str | None
    """Of the task in the curriculum when it was drawn; None: there was none."""
    verdict: bool | None
    """Whether the verifier said that it passed; None: there is no verdict."""

    @staticmethod
    def of(trajectory: Trajectory, step: int, split: str, speakers: Container[str] = ()) -> TrajectorySummary:
        """Return the line about a trajectory that is stored now; `speakers`: the environments known to say what success
        is, whose episodes that ended without a word are unsolved."""
        unsolved = is_silent(trajectory) and trajectory.task.environment in speakers
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
            success=False if unsolved else trajectory.success,
            failure=trajectory.failure.kind if trajectory.failure else None,
            turns=len(trajectory.turns),
            level=trajectory.level,
            verdict=None if trajectory.verdict is None else trajectory.verdict.passed,
        )


COLUMNS = tuple(field.name for field in fields(TrajectorySummary))
in_columns = attrgetter(*COLUMNS)  # `astuple` would copy what is nested
SUMMARY = ", ".join(COLUMNS)
_SQL_TYPES = {
    **dict.fromkeys(("number", "step", "success", "turns", "verdict"), "INTEGER"),
    **dict.fromkeys(("created", "reward"), "REAL"),
}
_MAY_BE_NULL = {"stop_reason", "reward", "success", "failure", "level", "verdict"}


def column(name: str) -> str:
    """Return the SQL that reads a column as what it is to hold: SQLite keeps anything in any column, and the file may
    be somebody else's."""
    kind = _SQL_TYPES.get(name, "TEXT")
    value = f"CAST({name} AS {kind})"
    return value if name in _MAY_BE_NULL else f"coalesce({value}, {chr(39) * 2 if kind == 'TEXT' else 0})"


READ_SUMMARY = ", ".join(map(column, COLUMNS))


def summary_of(row: Sequence[Any]) -> TrajectorySummary:
    """Return the line of a row of `COLUMNS`."""
    one = TrajectorySummary(*row)
    success, verdict = (None if value is None else bool(value) for value in (one.success, one.verdict))
    return replace(one, success=success, verdict=verdict)


def speakers_of(connection: sqlite3.Connection) -> set[str]:
    """Return the environments that reported success in the trajectories of a store."""
    query = "SELECT DISTINCT environment FROM trajectories WHERE success IS NOT NULL AND verdict IS NULL"
    return {name for (name,) in connection.execute(query)}


def settle_silent(connection: sqlite3.Connection, environments: Iterable[str]) -> None:
    """Make the stored episodes of `environments` that ended without a word unsolved, as `settle_outcomes` does."""
    connection.executemany(
        "UPDATE trajectories SET success = 0 WHERE environment = ? AND success IS NULL AND failure IS NULL "
        "AND stop_reason IS NOT NULL",
        [(name,) for name in environments],
    )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What the trajectories of a store came to."""

    episodes: int
    failures: int
    """Episodes that failed: they are no evidence."""
    judged: int
    """Episodes that are evidence, of which somebody said whether they succeeded."""
    solved: int
    by_group: tuple[tuple[int, int], ...]
    """(solved, judged) of each group of the judged ones: of each instance of a task."""
    steps: tuple[int, int] | None
    """The first and the last update that they were collected for; None: there are no episodes."""
    splits: tuple[str, ...]
    created: float | None
    """When the first was stored, in seconds since 1970."""


def outcomes_of(connection: sqlite3.Connection) -> Outcomes:
    """Return what the trajectories of a store came to."""
    row = connection.execute(
        """SELECT count(*), count(failure), sum(failure IS NULL AND success IS NOT NULL),
        sum(failure IS NULL AND success = 1), min(CAST(step AS INTEGER)),
        max(CAST(step AS INTEGER)), min(CAST(created AS REAL)) FROM trajectories"""
    ).fetchone()
    groups = connection.execute(
        """SELECT sum(CAST(success AS INTEGER)), count(*) FROM trajectories
        WHERE failure IS NULL AND success IS NOT NULL GROUP BY CASE group_id WHEN '' THEN id ELSE group_id END"""
    ).fetchall()
    query = f"SELECT DISTINCT {column('split')} FROM trajectories ORDER BY 1"
    splits = tuple(name for (name,) in connection.execute(query))
    steps = None if row[4] is None else (row[4], row[5])
    return Outcomes(row[0], row[1], row[2] or 0, row[3] or 0, tuple(groups), steps, splits, row[6])
