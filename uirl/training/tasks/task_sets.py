"""Which tasks a policy is trained on and which measured on: one answer for a run, `uirl eval` and `uirl check`.

And what a run asks of `reset`: that tasks arrive, and that the episodes of a group share an instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uirl.config import EnvironmentConfig
from uirl.config.sections.training import GROUP_ESTIMATORS
from uirl.environments import BaseEnvironment
from uirl.environments.instances import look_alike, signature_of, takes_seed, takes_task
from uirl.errors import ConfigError, RolloutFailure
from uirl.runtime.event_loop import EventLoopThread
from uirl.storage.rows import read_rows
from uirl.training.record.instances import canonical
from uirl.training.record.progress import say
from uirl.training.tasks.sources import tasks_of
from uirl.types import Task

EVAL_TASKS = "eval_tasks.json"
"""File of a run directory: its evaluation tasks, where they are not the environment's own."""
RESETS = 4
"""Resets that are compared where an environment takes no seed."""


@dataclass(frozen=True, slots=True)
class TaskSets:
    """The tasks of a run."""

    train: list[Task]
    evaluation: list[Task]
    source: str
    """Where those of the evaluation come from, in words."""
    of_environment: bool
    """Whether both are the environment's own, so that its config says everything."""

    @property
    def members(self) -> list[str]:
        """The environments of the training tasks, where there are several."""
        names = sorted({task.environment for task in self.train})
        return names if len(names) > 1 else []

    @property
    def summary(self) -> str:
        """For the log: how many tasks an evaluation plays, from where, and how many of them training plays too."""
        shared = self.shared
        count = f"{len(self.evaluation)} task{'s' * (len(self.evaluation) != 1)}"
        if not shared:
            return f"evaluation: {count} from {self.source}, none of them a training task"
        which = "all" if len(shared) == len(self.evaluation) else str(len(shared))
        text = f"evaluation: {count} from {self.source}; {which} of them training tasks, on instances of other seeds"
        fixed = len(self.repeated)
        return text + (f", but {fixed} name the seed of the instance that training plays" if fixed else "")

    @property
    def repeated(self) -> list[Task]:
        """The evaluation tasks that name the very instance that training plays: the same problem, the same seed."""
        played = {(content_of(task), task.seed) for task in self.train if task.seed is not None}
        return [task for task in self.evaluation if (content_of(task), task.seed) in played]

    @property
    def shared(self) -> list[Task]:
        """The evaluation tasks that training plays too, on these or on other instances."""
        trained = {content_of(task) for task in self.train}
        return [task for task in self.evaluation if content_of(task) in trained]


def task_sets(
    settings: EnvironmentConfig,
    environment: BaseEnvironment,
    evaluation: BaseEnvironment,
    dataset: Iterable[Any] | None = None,
    eval_dataset: Iterable[Any] | None = None,
) -> TaskSets:
    """Return the tasks of a run in `environment` that is measured in `evaluation`.

    Training plays `dataset`, else the file `environment.tasks`, else the environment's own tasks. An evaluation plays
    `eval_dataset`, else the file `environment.eval_tasks`, else the tasks that `environment.eval_options` chose, else
    those of training, on instances of other seeds. Raises ConfigError for what is no task.
    """
    sets = _chosen(settings, environment, evaluation, dataset, eval_dataset)
    train, held_out = ([_named(task, settings.label) for task in tasks] for tasks in (sets.train, sets.evaluation))
    return replace(sets, train=train, evaluation=held_out)


def _named(task: Task, environment: str) -> Task:
    """Return `task` with the name of its environment, for the record."""
    return task if task.environment else replace(task, environment=environment)


def _chosen(
    settings: EnvironmentConfig,
    environment: BaseEnvironment,
    evaluation: BaseEnvironment,
    dataset: Iterable[Any] | None,
    eval_dataset: Iterable[Any] | None,
) -> TaskSets:
    training_tasks = dataset if dataset is not None else _read(settings.tasks)
    train = tasks_of(environment, training_tasks, settings.columns)
    if eval_dataset is not None:
        return TaskSets(train, tasks_of(evaluation, eval_dataset, settings.columns), "eval_dataset", False)
    if settings.eval_tasks is not None:
        held_out = tasks_of(evaluation, _read(settings.eval_tasks), settings.columns)
        return TaskSets(train, held_out, settings.eval_tasks, False)
    if settings.eval_options and evaluation is not environment:
        chosen = tasks_of(evaluation)
        if chosen != (train if training_tasks is None else tasks_of(environment)):
            return TaskSets(train, chosen, "environment.eval_options", training_tasks is None)
    return TaskSets(train, train, "the training tasks", training_tasks is None)


def stored_tasks(path: Path) -> Path | None:
    """Return the file of evaluation tasks in the run directory `path`, or in that of the checkpoint `path`; None: the
    run was measured on the environment's own."""
    files = [run / EVAL_TASKS for run in (path, path.resolve().parent.parent) if (run / "config.yaml").is_file()]
    return next((file for file in files if file.is_file()), None)


def _read(source: str | None) -> Sequence[Any] | None:
    return None if source is None else read_rows(source)


def content_of(task: Task) -> str:
    """Return what makes a task this one: two of the same goal and checks are the same problem, whatever their names and
    seeds; without either the name is all there is."""
    return canonical([task.goal, task.checks] if task.goal or task.checks else task.id)


def require_tasks_arrive(environment: BaseEnvironment, tasks: Sequence[Task], *, of_environment: bool) -> None:
    """Raise ConfigError where `reset` cannot be told what `tasks` say. `of_environment`: they are the environment's
    own, of which a single one may be no more than its name."""
    if takes_task(environment) or (of_environment and len(tasks) == 1):
        return
    seeded = takes_seed(environment)
    for task in tasks:
        says = task.goal or task.checks or (task.seed is not None and not seeded)
        if says or (len(tasks) > 1 and task.seed is None):
            task_name = f"goal {task.goal!r:.60}" if task.goal else f"id {task.id!r}"
            raise ConfigError(
                f"there are {len(tasks)} tasks, but {signature_of(environment)} takes no `task`: the one with the "
                f"{task_name} would be played like every other; write reset(self, task=None, seed=None) and read "
                "task.goal, task.checks or task.id there"
                + (" (a task that is a seed and nothing else needs no more)" * seeded)
            )


def require_shared_instances(
    environment: BaseEnvironment, tasks: Sequence[Task], estimator: str, reset_timeout: float | None
) -> None:
    """Raise ConfigError where a method compares the episodes of a group and they would be different instances.

    A `reset` that takes no seed is tried a few times: what differs is refused, what does not is said.
    """
    if estimator not in GROUP_ESTIMATORS or environment.fixed_start or takes_seed(environment):
        return
    loop = EventLoopThread()
    timeout = reset_timeout or float("inf")
    try:
        same = loop.run(look_alike(environment, [(tasks[0], None)] * RESETS, fresh=False, timeout=timeout))
    except RolloutFailure as failure:
        say(f"{signature_of(environment)} takes no seed, and whether it repeats itself could not be tried: {failure}")
        return
    finally:
        loop.close()
    why = (
        f"training.adv_estimator={estimator} compares episodes of one instance, and {signature_of(environment)} takes "
        "no `seed`"
    )
    if not same:
        raise ConfigError(
            f"{why}: {RESETS} resets gave different episodes, so a group would compare luck; write reset(self, "
            "seed=None) and draw everything from that seed, or, where every episode does begin in the same state, say "
            "fixed_start = True in the class"
        )
    say(f"{why}; {RESETS} resets gave the same episode, so it is taken to be the same each time (fixed_start = True)")
