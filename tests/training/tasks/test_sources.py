"""Which episodes are played: order, instances and draws as functions of seeds and positions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.rollout.worlds import Countdown
from uirl.errors import ConfigError
from uirl.rollout.episode import EpisodeSpec
from uirl.training.evaluation.evaluation import evaluate_episodes
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Task, Trajectory

FIVE = [Task(f"t{i}") for i in range(5)]


class Listening:
    """Notes the episodes it is asked for, and plays none."""

    on_finished = None

    def __init__(self) -> None:
        self.specs: list[EpisodeSpec] = []
        self.environment = Countdown()

    async def collect(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        self.specs += specs
        return [Trajectory(spec.trajectory_id, spec.task, group_id=spec.group_id) for spec in specs]


async def held_out(tasks: list[Task], *, seed: int, split: str = "test") -> list[EpisodeSpec]:
    listening = Listening()
    await evaluate_episodes(listening, tasks, episodes=256, split=split, seed=seed)
    return listening.specs


@pytest.mark.parametrize("split", ["test", "eval", "warm-start"])
def test_every_run_is_measured_on_the_same_instances_of_the_same_tasks(split: str) -> None:
    runs = [asyncio.run(held_out(FIVE, seed=seed, split=split)) for seed in (0, 1)]
    asked = [[(spec.task.id, spec.environment_seed) for spec in run] for run in runs]
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == 256
    assert runs[0][0].sampling_seed != runs[1][0].sampling_seed, "the draws are the run's own"


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
    one.groups(at, 2)
    other.load_state_dict(one.state_dict())
    assert one.groups(9, 2) == other.groups(9, 2)


def test_a_task_that_is_listed_twice_is_named() -> None:
    with pytest.raises(ConfigError, match="got 't1' twice"):
        UniformTasks([*FIVE, Task("t1")], seed=0)


def test_members_of_a_group_play_one_instance_with_draws_of_their_own() -> None:
    groups = UniformTasks(FIVE, seed=3).groups(6, 4)
    for group in groups:
        assert len(group) == 4
        assert len({spec.environment_seed for spec in group}) == 1
        assert len({spec.task.id for spec in group}) == 1
        assert len({spec.group_id for spec in group}) == 1
    members = [spec for group in groups for spec in group]
    assert len({spec.sampling_seed for spec in members}) == len(members)
    assert len({spec.trajectory_id for spec in members}) == len(members)
    assert len({group[0].group_id for group in groups}) == len(groups)


def test_a_task_with_a_seed_is_one_instance_and_without_one_a_new_instance_each_time() -> None:
    played = [group[0] for group in UniformTasks([Task("a"), Task("b", seed=7)], seed=3).groups(12, 1)]
    assert {spec.environment_seed for spec in played if spec.task.id == "b"} == {7}
    assert len({spec.environment_seed for spec in played if spec.task.id == "a"}) == 6


def test_no_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are no tasks"):
        UniformTasks([], seed=0)
