"""`uirl check` on an environment and its tasks: each fault is found, and what is right is not blamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl.config import load_config
from uirl.environments import BaseEnvironment, create_environment
from uirl.runtime.event_loop import EventLoopThread
from uirl.training.checks.environment import check_tasks
from uirl.training.tasks.task_sets import task_sets
from uirl.types import Task

ROOT = Path(__file__).parents[3]


class Parts:
    """What the checks read of an assembly, without a model."""

    def __init__(self, config: Any, environment: BaseEnvironment, evaluation: BaseEnvironment, **given: Any) -> None:
        self.config, self.environment = config, environment
        self.tasks = task_sets(config.environment, environment, evaluation, **given)


def found(parts: Any) -> dict[str, tuple[bool, str]]:
    loop = EventLoopThread()
    try:
        return {what: (ok, detail) for what, ok, detail in loop.run(check_tasks(parts))}
    finally:
        loop.close()


class Two(Countdown):
    """Two tasks, which it tells the policy."""

    def tasks(self) -> list[Task]:
        return [Task("a", goal="open"), Task("b", goal="close")]

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:  # type: ignore[override]
        return self.say(task, super().reset(seed).text)

    def say(self, task: Task | None, text: str) -> str:
        return f"{task.goal if task else ''} {text}"


class Deaf(Two):
    """Ignores its task."""

    def say(self, task: Task | None, text: str) -> str:
        return text


class Stubborn(Two):
    """Ignores its seed."""

    def reset(self, task: Task | None = None, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(task, 0)


class Declared(Stubborn):
    fixed_start = True


def checked(world: BaseEnvironment, folder: Path, **given: Any) -> dict[str, tuple[bool, str]]:
    return found(Parts(settings(folder), world, world, **given))


def test_what_is_right_is_not_blamed(tmp_path: Path) -> None:
    said = checked(Two(), tmp_path)
    assert {what: ok for what, (ok, _) in said.items()} == {"tasks": True, "seeds": True, "held-out tasks": True}
    assert "on held-out instances" in said["held-out tasks"][1]


def test_an_environment_that_ignores_its_task_is_found(tmp_path: Path) -> None:
    ok, detail = checked(Deaf(), tmp_path)["tasks"]
    assert not ok
    assert "the tasks 'a', 'b' begin, answer and are solved alike" in detail


def test_an_environment_that_ignores_its_seed_is_found(tmp_path: Path) -> None:
    ok, detail = checked(Stubborn(), tmp_path)["seeds"]
    assert not ok
    assert "8 seeds gave the same episode, though Stubborn.reset(task=None, seed=None) takes one" in detail
    assert "seeds" not in checked(Declared(), tmp_path)


def test_an_evaluation_of_training_instances_is_found(tmp_path: Path) -> None:
    fixed = [Task("a", goal="open", seed=1), Task("b", goal="close", seed=2)]
    ok, detail = checked(Two(), tmp_path, dataset=fixed)["held-out tasks"]
    assert not ok
    assert detail.startswith("2 of 2 evaluation tasks, such as 'a', name the seed of the very instance")
    other = [Task("a", goal="open", seed=8)]
    assert checked(Two(), tmp_path, dataset=fixed, eval_dataset=other)["held-out tasks"][0]
    ok, detail = checked(Declared(), tmp_path)["held-out tasks"]
    assert not ok
    assert "2 of 2 evaluation tasks are training tasks, and a task has one instance" in detail
    assert checked(Declared(), tmp_path, eval_dataset=["burn"])["held-out tasks"][0]


@pytest.mark.parametrize("name", ["screen", "guess_number", "guess_number_from_chance", "calculator", "lookup"])
def test_no_shipped_config_is_blamed(name: str) -> None:
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    own = config.environment
    worlds = [create_environment(own.name, own.options_for(split), own) for split in ("train", "eval")]
    said = found(Parts(config, *worlds))
    assert all(ok for ok, _ in said.values()), said
    assert said["seeds"][0]
