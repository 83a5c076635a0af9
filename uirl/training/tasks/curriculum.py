"""A curriculum object as a task source: it says which task comes next and is told how it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from uirl.errors import ConfigError, did_you_mean
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Task, Trajectory


class Curriculum(Protocol):
    """What a curriculum must offer. `state_dict` and `load_state_dict`, where it has them, go into checkpoints;
    `register_tasks(ids)`, where it has it, is told the tasks."""

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
        split: str = "train",
        instance_seed: int | None = None,
    ) -> None:
        """`instance_seed` makes the instances; None: `seed`.

        Raises ConfigError for a curriculum that lacks a method.
        """
        for method in ("sample_task", "update_success_rate"):
            if not callable(getattr(curriculum, method, None)):
                raise ConfigError(f"a curriculum needs {method}(); {type(curriculum).__name__} has none")
        super().__init__(tasks, seed=seed, split=split, instance_seed=instance_seed)
        self._by_id = {task.id: task for task in tasks}
        self._curriculum: Any = curriculum
        self.step = 0
        """Update in which what is reported was played."""
        if hasattr(curriculum, "register_tasks"):
            curriculum.register_tasks(list(self._by_id))

    def report(self, trajectories: Sequence[Trajectory]) -> None:
        """Tell the curriculum of every episode that is evidence and was judged."""
        for trajectory in trajectories:
            if trajectory.failure is None and trajectory.success is not None:
                self._curriculum.update_success_rate(trajectory.task.id, trajectory.success, self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the curriculum's own state where it keeps one."""
        state = self._curriculum.state_dict() if hasattr(self._curriculum, "state_dict") else None
        return {**super().state_dict(), "step": self.step, "curriculum": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.step = int(state["step"])
        if state["curriculum"] is not None:
            self._curriculum.load_state_dict(state["curriculum"])

    def _task(self, at: int) -> Task:
        name = self._curriculum.sample_task()
        if name not in self._by_id:
            raise ConfigError(
                f"the curriculum's sample_task() returned {name!r}, which is no task of this run; "
                f"{did_you_mean(str(name), self._by_id)}"
            )
        return self._by_id[name]
