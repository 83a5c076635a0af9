"""A curriculum for each environment of a mixture, and how draws are spread over what has unlike weights."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uirl.curriculum.curriculum import TaskCurriculum
from uirl.types import Task

_GOLDEN = (math.sqrt(5) - 1) / 2
"""Steps of this length around a circle fall into each part of it as often as it is long, in any stretch of steps."""


class Spread:
    """Draws an index as often as its weight says, as evenly as whole numbers of draws allow: a function of the seed and
    the number of the draw."""

    def __init__(self, weights: Iterable[float], seed: int) -> None:
        self._sums = list(itertools.accumulate(weights))
        self._begin = random.Random(seed).random()

    def at(self, draw: int) -> int:
        """Return the index that is drawn as number `draw`."""
        place = (self._begin + draw * _GOLDEN) % 1.0 * self._sums[-1]
        return min(bisect.bisect_right(self._sums, place), len(self._sums) - 1)


class MixedCurriculum:
    """One `TaskCurriculum` per environment. Weights say which environment is next, its curriculum says which task, so
    that one that is learned quickly does not lose its share."""

    def __init__(self, tasks: Sequence[Task], curricula: Mapping[str, TaskCurriculum], *, seed: int) -> None:
        """`curricula`: environment -> its curriculum, of all environments of `tasks`."""
        self._curricula, self._of = dict(curricula), {task.id: task.environment for task in tasks}
        weights = dict.fromkeys(curricula, 0.0)
        for task in tasks:
            weights[task.environment] += task.weight
            self._curricula[task.environment].register_tasks([task.id])
        self._spread, self._draws = Spread(weights.values(), seed), 0
        self.drawn_level: str | None = None
        """Level of the newest task that was drawn."""

    def sample_task(self) -> str:
        """Return the id of the task to play next."""
        curriculum = list(self._curricula.values())[self._spread.at(self._draws)]
        self._draws += 1
        name = curriculum.sample_task()
        self.drawn_level = curriculum.drawn_level
        return name

    def update_success_rate(self, task_name: str, success: bool, step: int = 0) -> None:
        """Count one episode of a task."""
        self.update_group(task_name, [success], step=step)

    def update_group(
        self, task_name: str, outcomes: Sequence[bool], *, step: int = 0, signal: bool | None = None
    ) -> None:
        """Count the episodes of one group: see `TaskCurriculum.update_group`."""
        self._curricula[self._of[task_name]].update_group(task_name, outcomes, step=step, signal=signal)

    def take_metrics(self) -> dict[str, float | None]:
        """Return the numbers of all since the last call: 'curriculum/ENVIRONMENT.LEVEL/tasks'."""
        return {
            name.replace("/", f"/{member}.", 1): value
            for member, one in self._curricula.items()
            for name, value in one.take_metrics().items()
        }

    def report(self) -> dict[str, Any]:
        """Return the numbers of the whole run: the levels of all, and the rest by environment."""
        reports = {member: one.report() for member, one in self._curricula.items()}
        levels = {f"{m}.{level}": row for m, report in reports.items() for level, row in report.pop("levels").items()}
        return {"draws": self._draws, "levels": levels, "environments": reports}

    def state_dict(self) -> dict[str, Any]:
        """Return plain data from which `load_state_dict` continues with the same draws."""
        return {"draws": self._draws, "environments": {name: c.state_dict() for name, c in self._curricula.items()}}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from the data of `state_dict`; environments that it does not name begin anew."""
        self._draws = values["draws"]
        for name, curriculum in self._curricula.items():
            if name in values["environments"]:
                curriculum.load_state_dict(values["environments"][name])
