"""A curriculum object as a task source: it says which task comes next and is told how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from uirl.config import ConfigStore
from uirl.curriculum import MixedCurriculum, TaskCurriculum
from uirl.errors import ConfigError, did_you_mean
from uirl.training.groups_with_signal import signal_of
from uirl.training.record.progress import say
from uirl.training.tasks.sources import TaskSource, UniformTasks
from uirl.types import Task, Trajectory

Signal = Callable[[Sequence[Trajectory]], bool | None]
"""Usable members of a group -> whether they hold something to learn; None: nobody compares."""


class Curriculum(Protocol):
    """What a curriculum must offer. More is used where it has it: `state_dict` and `load_state_dict` go into
    checkpoints, `register_tasks(ids)` is told the tasks, `update_group(task, outcomes, step=, signal=)` hears of whole
    groups in the place of `update_success_rate`, `take_metrics` and `report` go into metrics and summary, `drawn_level`
    (where the newest task was drawn from) into the record of its episodes."""

    def sample_task(self) -> str:
        """Return the id of the task to play next."""
        ...

    def update_success_rate(self, task_name: str, success: bool, step: int) -> Any:
        """Count one episode of a task, played in update `step`."""
        ...


class CurriculumTasks(UniformTasks):
    """A task source that asks a curriculum. Instances and draws follow from (seed, split, position), as everywhere."""

    def __init__(
        self,
        tasks: Sequence[Task],
        curriculum: Curriculum,
        *,
        seed: int,
        instance_seed: int | None = None,
        signal: Signal | None = None,
    ) -> None:
        """`instance_seed` makes the instances; None: `seed`. `signal`: whether a group holds something to learn; None:
        nobody compares.

        Raises ConfigError for a curriculum that lacks a method.
        """
        for method in ("sample_task", "update_success_rate"):
            if not callable(getattr(curriculum, method, None)):
                raise ConfigError(f"a curriculum needs {method}(); {type(curriculum).__name__} has none")
        super().__init__(tasks, seed=seed, instance_seed=instance_seed)
        self._by_id = {task.id: task for task in tasks}
        self._curriculum: Any = curriculum
        self._signal: Signal = signal or (lambda members: None)
        self._told = False
        """Whether it was said that nobody judges the episodes."""
        if hasattr(curriculum, "register_tasks"):
            curriculum.register_tasks(list(self._by_id))

    def report(self, trajectories: Sequence[Trajectory], step: int) -> None:
        """Tell the curriculum of every episode that is evidence and was judged, group by group."""
        usable = [t for t in trajectories if t.failure is None]
        judged = [t for t in usable if t.success is not None]
        if usable and not judged and not self._told:
            self._told = True
            say(
                f"nobody says whether the {len(usable)} episodes of update {step} solved their tasks, so the "
                "curriculum learns nothing from them; set info['success'] in the environment, or verification.enabled"
            )
        whole = hasattr(self._curriculum, "update_group")
        for members in _groups(judged):
            name, outcomes = members[0].task.id, [bool(t.success) for t in members]
            if whole:
                self._curriculum.update_group(name, outcomes, step=step, signal=self._signal(members))
                continue
            for outcome in outcomes:
                self._curriculum.update_success_rate(name, outcome, step)

    def take_metrics(self) -> dict[str, Any]:
        """Return the curriculum's numbers since the last call; nothing where it keeps none."""
        return dict(self._curriculum.take_metrics()) if hasattr(self._curriculum, "take_metrics") else {}

    def summary(self) -> dict[str, Any]:
        """Return the curriculum's numbers of the whole run; nothing where it keeps none."""
        return {"curriculum": self._curriculum.report()} if hasattr(self._curriculum, "report") else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the curriculum's own state where it keeps one."""
        state = self._curriculum.state_dict() if hasattr(self._curriculum, "state_dict") else None
        return {**super().state_dict(), "curriculum": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if "curriculum" not in state:
            say("the checkpoint is of a run without a curriculum, so the curriculum begins with nothing known")
        elif state["curriculum"] is not None:
            self._curriculum.load_state_dict(state["curriculum"])

    def _task(self, at: int) -> Task:
        name = self._curriculum.sample_task()
        if name not in self._by_id:
            raise ConfigError(
                f"the curriculum's sample_task() returned {name!r}, which is no task of this run; "
                f"{did_you_mean(str(name), self._by_id)}"
            )
        return self._by_id[name]

    def _level(self) -> str | None:
        level = getattr(self._curriculum, "drawn_level", None)
        return None if level is None else str(level)


def source_of(config: ConfigStore, tasks: Sequence[Task], curriculum: Curriculum | None = None) -> TaskSource:
    """Return the training tasks of a run: as `curriculum` says, else as the section of that name (a curriculum for each
    environment), else every task as often as its weight says. Raises ConfigError where the section has nothing to
    choose from."""
    seed = config.training.seed
    if curriculum is not None and config.curriculum.enabled:
        raise ConfigError("got a curriculum and curriculum.enabled=true, which each choose tasks; leave one out")
    if config.curriculum.enabled:
        if len(tasks) < 2:
            raise ConfigError(
                "curriculum.enabled=true, and there is one task, so there is nothing to choose; name more "
                "(environment.tasks, a dataset, or an environment with tasks()), or leave the curriculum off"
            )
        names = dict.fromkeys(task.environment for task in tasks)
        curricula = {name: TaskCurriculum.from_config(config.curriculum, seed=seed) for name in names}
        curriculum = MixedCurriculum(tasks, curricula, seed=seed) if len(names) > 1 else next(iter(curricula.values()))
    if curriculum is None:
        return UniformTasks(tasks, seed=config.draws_seed, instance_seed=seed)
    signal = signal_of(config.training, config.algorithm)
    return CurriculumTasks(tasks, curriculum, seed=config.draws_seed, instance_seed=seed, signal=signal)


def _groups(trajectories: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """Return the trajectories by group and task, in the order of their first members."""
    groups: dict[Any, list[Trajectory]] = {}
    for i, one in enumerate(trajectories):
        groups.setdefault((one.group_id or i, one.task.id), []).append(one)
    return list(groups.values())
