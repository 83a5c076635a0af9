"""A curriculum as a task source: its tasks, the instances of their positions, and what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from uirl import ConfigStore
from uirl.errors import ConfigError
from uirl.training.tasks.curriculum import CurriculumTasks, source_of
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Failure, Observation, Task, Trajectory, Turn

TASKS = [Task("a"), Task("b"), Task("c", seed=5)]


class Turns:
    """Names the tasks of a list in turn, and keeps what it is told."""

    def __init__(self, *names: str) -> None:
        self.names, self.at = names, 0
        self.reports: list[tuple[str, bool, int]] = []
        self.registered: list[str] = []

    def register_tasks(self, ids: list[str]) -> None:
        self.registered = ids

    def sample_task(self) -> str:
        self.at += 1
        return self.names[(self.at - 1) % len(self.names)]

    def update_success_rate(self, task_name: str, success: bool, step: int) -> None:
        self.reports.append((task_name, success, step))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def test_instances_and_draws_are_those_of_the_position() -> None:
    turns = Turns("b", "b", "c")
    source = CurriculumTasks(TASKS, turns, seed=3, instance_seed=9)
    assert turns.registered == ["a", "b", "c"]
    groups = source.groups(4, 2)
    assert [[spec.task.id for spec in group] for group in groups] == [["b"] * 2, ["b"] * 2, ["c"] * 2, ["b"] * 2]
    alone = UniformTasks([Task("b")], seed=3, instance_seed=9).groups(4, 2)
    assert [groups[i] for i in (0, 1, 3)] == [alone[i] for i in (0, 1, 3)]
    assert {spec.environment_seed for spec in groups[2]} == {5}, "a task's own seed"


def test_it_continues_where_its_state_was_taken() -> None:
    source = CurriculumTasks(TASKS, Turns("a", "b", "c"), seed=0)
    source.groups(2, 1)
    state = source.state_dict()
    assert state == {"position": 2, "curriculum": {"at": 2}}
    resumed = CurriculumTasks(TASKS, Turns("a", "b", "c"), seed=0)
    resumed.load_state_dict(state)
    assert resumed.groups(3, 2) == source.groups(3, 2)


def test_it_hears_of_evidence_alone() -> None:
    turns = Turns("a")
    source = CurriculumTasks(TASKS, turns, seed=0)
    won = Trajectory(task=TASKS[0], metrics={"success": 1.0})
    source.report([won, Trajectory(task=TASKS[1]), Trajectory(task=TASKS[2], failure=Failure("engine", "gone"))], 4)
    assert turns.reports == [("a", True, 4)]
    assert (source.take_metrics(), source.summary()) == ({}, {})


class Groups(Turns):
    """Hears of whole groups."""

    def __init__(self) -> None:
        super().__init__("a")
        self.groups: list[Any] = []

    def update_group(self, task_name: str, outcomes: list[bool], *, step: int, signal: bool | None) -> None:
        self.groups.append((task_name, outcomes, step, signal))


def episode(group: str, task: Task, success: bool | None, reward: float = 0.0, failed: bool = False) -> Trajectory:
    metrics = {} if success is None else {"success": float(success)}
    failure = Failure("engine", "gone") if failed else None
    turns = [Turn(Observation("o"), reward=reward)]
    return Trajectory(task=task, group_id=group, metrics=metrics, failure=failure, turns=turns)


@pytest.mark.parametrize(
    ("estimator", "signals"),
    [
        ("grpo", [True, True, False]),
        ("gae", [True, True, None]),  # a critic learns from a group of equals too
        ("rejection_sampling", [True, False, True]),  # above the threshold, 0.5
    ],
)
def test_whole_groups_are_told_with_what_the_estimator_learns_from(estimator: str, signals: list[Any]) -> None:
    config, heard = ConfigStore(), Groups()
    config.training.adv_estimator = estimator  # type: ignore[assignment]
    config.algorithm.reward_threshold = 0.5
    source = source_of(config, TASKS, heard)
    a, b, _ = TASKS
    source.report(
        [
            episode("g0", a, True, 1.0),
            episode("g1", b, False, 0.5),
            episode("g0", a, False, failed=True),
            episode("g1", b, False, 0.25),
            episode("g0", a, False),
            episode("g0", a, None, 0.75),
            episode("g2", a, True, 1.0),
            episode("g2", a, True, 1.0),
        ],
        9,
    )
    told = [("a", [True, False], 9), ("b", [False, False], 9), ("a", [True, True], 9)]
    assert heard.groups == [(*one, signal) for one, signal in zip(told, signals, strict=True)]
    assert not heard.reports


def test_what_is_no_curriculum_is_refused() -> None:
    config = ConfigStore()
    config.curriculum.enabled = True
    with pytest.raises(ConfigError, match="got a curriculum and"):
        source_of(config, TASKS, Turns("a"))
    with pytest.raises(ConfigError, match=r"needs sample_task\(\)"):
        CurriculumTasks(TASKS, object(), seed=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"sample_task\(\) returned 'd'"):
        CurriculumTasks(TASKS, Turns("d"), seed=0).groups(1, 1)
