"""Which episodes are played: order, instances and draws as functions of seeds and positions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from uirl.errors import ConfigError
from uirl.rollout.episode import EpisodeSpec, derive_seed
from uirl.training.tasks.sources import UniformTasks, tasks_of
from uirl.types import Task

FIVE = [Task(f"t{i}") for i in range(5)]


def test_a_pass_holds_every_task_once_and_the_next_has_another_order() -> None:
    source = UniformTasks(FIVE, seed=3)
    names = [group[0].task.id for group in source.groups(10, 2)]
    assert sorted(names[:5]) == sorted(names[5:]) == sorted(task.id for task in FIVE)
    assert names[:5] != names[5:]


def test_the_order_of_a_pass_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled: list[int] = []
    shuffle = random.Random.shuffle

    def counted(self: random.Random, x: list[int]) -> None:
        shuffled.append(len(x))
        shuffle(self, x)

    monkeypatch.setattr(random.Random, "shuffle", counted)
    source = UniformTasks([Task(str(i)) for i in range(100)], seed=0)
    for _ in range(150):
        source.groups(1, 1)
    assert shuffled == [100, 100]


@pytest.mark.parametrize("at", [0, 3, 5, 7, 12])
def test_a_source_that_is_loaded_goes_on_where_the_other_was(at: int) -> None:
    one, other = UniformTasks(FIVE, seed=1), UniformTasks(FIVE, seed=1)
    other.groups(6, 2)  # whatever it had in hand before
    fresh = UniformTasks(FIVE, seed=1)
    one.groups(at, 2)
    for loaded in (other, fresh):
        loaded.load_state_dict(one.state_dict())
    assert one.groups(9, 2) == other.groups(9, 2) == fresh.groups(9, 2)


def test_an_episode_is_a_function_of_seeds_split_and_position() -> None:
    """Task and instance of the position in the split; the draws of the run's seed, the position and the member."""
    source = UniformTasks([Task("a"), Task("b", seed=7)], seed=3, instance_seed=9)
    made = source.groups(2, 2) + source.groups(1, 2)
    order = [group[0].task.id for group in made]
    for at, group in enumerate(made):
        instance = 7 if order[at] == "b" else derive_seed(9, "train", "instance", at)
        assert group == [
            EpisodeSpec(
                Task("b", seed=7) if order[at] == "b" else Task("a"),
                environment_seed=instance,
                sampling_seed=derive_seed(3, "train", "draws", at, member),
                trajectory_id=f"train-{at:06d}-{member}",
                group_id=f"train-{at:06d}",
            )
            for member in range(2)
        ]
    ((alone,),) = UniformTasks([Task("a")], seed=3, split="test", label="after").groups(1, 1)
    assert (alone.trajectory_id, alone.environment_seed) == ("after-000000-0", derive_seed(3, "test", "instance", 0))


@pytest.mark.parametrize(
    ("items", "tasks"),
    [
        (None, [Task("Countdown")]),
        (["go", {"goal": "stay", "seed": 3}, {"id": "mine"}, Task("t")], None),
        ([{"gaol": "x"}], "dataset item 0 is no task: .*expected keys among id, environment, goal"),
        (["go", 3], "dataset item 1 is a int; expected a Task, a mapping or a str"),
    ],
)
def test_what_a_dataset_may_hold(items: Any, tasks: Any) -> None:
    if isinstance(tasks, str):
        with pytest.raises(ConfigError, match=tasks):
            tasks_of(Countdown(), items)
        return
    named = [Task("Countdown/0", goal="go"), Task("Countdown/1", goal="stay", seed=3), Task("mine"), Task("t")]
    assert tasks_of(Countdown(), items) == (tasks or named)


@pytest.mark.parametrize(("tasks", "told"), [([], "there are no tasks"), ([*FIVE, Task("t1")], "got 't1' twice")])
def test_no_tasks_and_tasks_that_are_listed_twice_are_refused(tasks: list[Task], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        UniformTasks(tasks, seed=0)
