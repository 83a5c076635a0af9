"""`uirl check` on an environment and its tasks: each fault is found, and what is right is not blamed."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl.config import load_config
from uirl.environments import BaseEnvironment, create_environment
from uirl.runtime.event_loop import EventLoopThread
from uirl.training.checks.environment import check_tasks
from uirl.training.evaluation.evaluation import HELD_OUT_SEED
from uirl.training.tasks.task_sets import task_sets
from uirl.types import Task

ROOT = Path(__file__).parents[3]


class Parts:
    """What the checks read of an assembly, without a model."""

    def __init__(self, config: Any, environment: BaseEnvironment, evaluation: BaseEnvironment, **given: Any) -> None:
        self.config, self.environment, self.eval_environment = config, environment, evaluation
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
        return self.say(task, f"{super().reset(seed).text} (instance {seed})")

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
    config = settings(folder, seed=HELD_OUT_SEED)  # evaluations play other instances all the same
    config.environment.reset_timeout = None
    return found(Parts(config, world, world, **given))


def test_what_is_right_is_not_blamed(tmp_path: Path) -> None:
    said = checked(Two(), tmp_path)
    assert {what: ok for what, (ok, _) in said.items()} == {"tasks": True, "seeds": True, "held-out tasks": True}
    assert "on instances of other seeds" in said["held-out tasks"][1]


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


class Questions(BaseEnvironment):
    """Asks one of a number of questions, drawn by the seed."""

    def __init__(self, questions: int, *, hidden: bool = False) -> None:
        self._questions, self._hidden = questions, hidden

    def reset(self, seed: int | None = None) -> str:
        self._asked = random.Random(seed).randrange(self._questions)
        return self.get_state_description()

    def step(self, action: Any) -> Any:
        return str(self._asked), float(str(self._asked) in str(action)), True, {}

    def get_state_description(self) -> str:
        return "guess" if self._hidden else f"how much is {self._asked} + 1?"

    def spawn(self) -> Questions:
        return Questions(self._questions, hidden=self._hidden)


@pytest.mark.parametrize(
    ("questions", "hidden", "ok", "words"),
    [
        (2, False, False, r"32 of 32 instances .* over the run that is at least 100 % of them"),
        (60, False, False, r"over the run that is at least \d+ % of them"),
        (10**9, False, True, "on instances of other seeds"),
        (10**9, True, True, "not known: all instances begin alike"),
    ],
)
def test_held_out_means_other_instances_and_not_other_seeds(
    tmp_path: Path, questions: int, hidden: bool, ok: bool, words: str
) -> None:
    said = checked(Questions(questions, hidden=hidden), tmp_path)["held-out tasks"]
    assert said[0] is ok
    assert re.search(words, said[1]), said


def test_a_task_under_another_name_is_the_same_task(tmp_path: Path) -> None:
    trained = [Task(f"a{i}", goal=f"open {i}", checks={"n": i}, seed=i) for i in range(4)]
    renamed = [Task(f"b{i}", goal=f"open {i}", checks={"n": i}, seed=i) for i in range(4)]
    ok, detail = checked(Two(), tmp_path, dataset=trained, eval_dataset=renamed)["held-out tasks"]
    assert not ok
    assert detail.startswith("4 of 4 evaluation tasks, such as 'b0', name the seed of the very instance")
