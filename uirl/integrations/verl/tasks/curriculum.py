"""A curriculum object as a task source: it says which task comes next and hears how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from uirl.errors import ConfigError, did_you_mean
from uirl.rollout.episode import EpisodeSpec
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Task, Trajectory


class Curriculum(Protocol):
    """What a curriculum must offer. `state_dict` and `load_state_dict`, where it has them, go into checkpoints;
    `register_tasks(ids)`, where it has it, is told the tasks."""

    def sample_task(self) -> str:
        """Id of the task to play next."""
        ...

    def update_success_rate(self, task_name: str, success: bool, step: int) -> None:
        """One episode of a task went so, in update `step`."""
        ...


class CurriculumTasks:
    """A `TaskSource` that asks a curriculum. Instances and draws follow from (seed, split, position), as everywhere."""

    def __init__(
        self,
        tasks: Sequence[Task],
        curriculum: Curriculum,
        *,
        seed: int,
        split: str = "train",
        instance_seed: int | None = None,
    ) -> None:
        """`instance_seed` makes the instances; None: `seed`.

        Raises ConfigError for a curriculum that lacks a method.
        """
        for method in ("sample_task", "update_success_rate"):
            if not callable(getattr(curriculum, method, None)):
                raise ConfigError(f"a curriculum needs {method}(); {type(curriculum).__name__} has none")
        self._tasks = {task.id: task for task in tasks}
        self._sources = {
            id: UniformTasks([task], seed=seed, split=split, instance_seed=instance_seed)
            for id, task in self._tasks.items()
        }
        self._curriculum: Any = curriculum
        self._position = 0
        self.step = 0
        """Update in which what is reported was played."""
        if hasattr(curriculum, "register_tasks"):
            curriculum.register_tasks(list(self._tasks))

    def groups(self, count: int, size: int) -> list[list[EpisodeSpec]]:
        return [self._group(size) for _ in range(count)]

    def report(self, trajectories: Sequence[Trajectory]) -> None:
        """Tells the curriculum of every episode that is evidence and was judged."""
        for trajectory in trajectories:
            if trajectory.failure is None and trajectory.success is not None:
                self._curriculum.update_success_rate(trajectory.task.id, trajectory.success, self.step)

    def state_dict(self) -> dict[str, Any]:
        """The position, and the curriculum's own state where it keeps one."""
        own = self._curriculum.state_dict() if hasattr(self._curriculum, "state_dict") else None
        return {"position": self._position, "step": self.step, "curriculum": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._position, self.step = int(state["position"]), int(state["step"])
        if state["curriculum"] is not None:
            self._curriculum.load_state_dict(state["curriculum"])

    def _group(self, size: int) -> list[EpisodeSpec]:
        name = self._curriculum.sample_task()
        if name not in self._tasks:
            raise ConfigError(
                f"the curriculum's sample_task() returned {name!r}, which is no task of this run; "
                f"{did_you_mean(str(name), self._tasks)}"
            )
        at, self._position = self._position, self._position + 1
        self._sources[name].load_state_dict({"position": at})
        return self._sources[name].groups(1, size)[0]
