"""What a run asks of `reset`: tasks arrive, and the episodes of a group are one instance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl import BaseEnvironment, ConfigError, RayPPOTrainer
from uirl.training.tasks.task_sets import require_shared_instances, require_tasks_arrive
from uirl.types import Task


class Told(Countdown):
    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:  # type: ignore[override]
        super().reset(seed)
        return task.goal if task else ""


class Open(Countdown):
    def reset(self, **options: Any) -> Any:
        return super().reset(options.get("seed"))


class Seedless(BaseEnvironment):
    """Begins the same each time."""

    runs_inline = True

    def reset(self) -> Any:
        self.turn = 0
        return "guess"

    def step(self, action: str) -> Any:
        self.turn += 1
        return f"said {action}", 0.0, self.turn == 3, {}

    def get_state_description(self) -> str:
        return "hidden"


class Drawn(Seedless):
    """Draws a secret at each reset; only the answers show it."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def reset(self) -> Any:
        self.secret = self.rng.randrange(1000)
        return super().reset()

    def step(self, action: str) -> Any:
        return (f"no, it was {self.secret}", *super().step(action)[1:])


@pytest.mark.parametrize(
    "tasks", [["leave"], [{"id": "a", "checks": {"k": 1}}], ["a", "b"], [{"id": "a"}, {"id": "b"}]]
)
def test_tasks_that_reset_cannot_be_told_are_refused_with_its_signature(tmp_path: Path, tasks: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"Countdown\.reset\(seed=None\) takes no `task`: .*reset\(self, task=None"):
        RayPPOTrainer(settings(tmp_path), Countdown(), dataset=tasks)


def test_tasks_of_an_evaluation_are_asked_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes no `task`"):
        RayPPOTrainer(settings(tmp_path), Countdown(), eval_dataset=["leave"])


@pytest.mark.parametrize("world", [Told(), Open()])
def test_tasks_that_arrive_are_taken(world: Countdown) -> None:
    tasks = [Task("a", goal="x"), Task("b", goal="y")]
    require_tasks_arrive(world, tasks, of_environment=False)
    with pytest.raises(ConfigError, match="takes no `task`"):
        require_tasks_arrive(Countdown(), tasks, of_environment=False)


def test_a_task_that_is_no_more_than_a_seed_or_a_name_needs_no_parameter() -> None:
    require_tasks_arrive(Countdown(), [Task("a", seed=1), Task("b", seed=2)], of_environment=False)
    require_tasks_arrive(Countdown(), [Task("Countdown")], of_environment=False)
    require_tasks_arrive(Countdown(), [Task("one", goal="its own words")], of_environment=True)
    with pytest.raises(ConfigError, match="takes no `task`"):
        require_tasks_arrive(Seedless(), [Task("a", seed=1)], of_environment=False)
    with pytest.raises(ConfigError, match="takes no `task`"):
        require_tasks_arrive(Countdown(), [Task("a"), Task("b")], of_environment=True)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "turn_level"])
def test_a_group_of_different_instances_is_refused(tmp_path: Path, estimator: str) -> None:
    with pytest.raises(ConfigError, match=rf"{estimator} compares .*Drawn\.reset\(\).* no `seed`: 4 resets gave diff"):
        RayPPOTrainer(settings(tmp_path, adv_estimator=estimator), Drawn())


def test_what_begins_the_same_each_time_is_taken_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_shared_instances(Seedless(), [Task("a")], "grpo", 10.0)
    assert "4 resets gave the same episode" in capsys.readouterr().out

    class Declared(Drawn):
        fixed_start = True

    for world, estimator in ((Declared(), "grpo"), (Countdown(), "grpo"), (Drawn(), "gae")):
        require_shared_instances(world, [Task("a")], estimator, 10.0)
    assert capsys.readouterr().out == ""


def test_an_environment_that_fails_when_it_is_tried_is_left_to_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Dead(Seedless):
        def reset(self) -> Any:
            raise OSError("no such device")

    require_shared_instances(Dead(), [Task("a")], "grpo", None)
    assert "no such device" in capsys.readouterr().out
