"""Evaluation: held-out instances, the same for every run, and what the report says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.test_loop import settings
from uirl import RayPPOTrainer
from uirl.rollout.episode import EpisodeSpec
from uirl.training.evaluation.evaluation import evaluate_episodes, report_on
from uirl.training.evaluation.measure import locate
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Failure, Task, Trajectory


class Played:
    """Stands for actors: notes what it is asked to play."""

    def __init__(self) -> None:
        self.specs: list[EpisodeSpec] = []
        self.environment = Countdown()
        self.on_finished = None

    async def collect(self, specs: Sequence[EpisodeSpec]) -> list[Trajectory]:
        self.specs += specs
        done = [Trajectory(spec.trajectory_id, spec.task, group_id=spec.group_id) for spec in specs]
        return [*done, Trajectory("a failed attempt", failure=Failure("engine", "gone"))]


async def instances(seed: int, split: str, episodes: int = 32, tries: int = 1) -> list[int | None]:
    played = Played()
    await evaluate_episodes(played, [Task("a")], episodes=episodes, tries=tries, split=split, seed=seed)
    return [spec.environment_seed for spec in played.specs]


@pytest.mark.parametrize("split", ["eval", "test"])
async def test_held_out_instances_are_the_same_for_every_seed_and_none_of_training(split: str) -> None:
    held_out = await instances(0, split)
    assert len(set(held_out)) == 32
    for seed in (1, 20_250_101):
        assert await instances(seed, split) == held_out
    for seed in (0, 1, 20_250_101):
        training = UniformTasks([Task("a")], seed=seed, instance_seed=seed).groups(256, 1)
        assert not {group[0].environment_seed for group in training} & set(held_out)


async def test_the_splits_hold_other_instances() -> None:
    assert not set(await instances(0, "eval")) & set(await instances(0, "test"))


def test_a_run_is_measured_on_instances_it_never_trains_on(tmp_path: Any) -> None:
    seen: list[int] = []

    class Watched(Countdown):
        def reset(self, seed: int | None = None) -> Any:
            assert seed is not None
            seen.append(seed)
            return super().reset(seed)

    config = settings(tmp_path, eval_every=1)
    config.training.warm_start.enabled = False
    trainer = RayPPOTrainer(config, Watched())
    trainer.evaluate(8)
    held_out = set(seen)
    seen.clear()
    trained = {spec.environment_seed for group in trainer.tasks.groups(64, 1) for spec in group}
    trainer.evaluate(8)
    trainer.cleanup()
    assert set(seen) == held_out
    assert len(held_out) == 8
    assert not held_out & trained


async def test_tries_share_an_instance_and_episodes_are_all_of_them() -> None:
    seeds = await instances(0, "eval", episodes=12, tries=4)
    assert len(seeds) == 12
    assert [len(set(seeds[i : i + 4])) for i in (0, 4, 8)] == [1, 1, 1]
    assert len(set(seeds)) == 3


def told(name: str, group: str, success: bool | None, reward: float, *, failed: bool = False) -> Trajectory:
    trajectory = Trajectory(task=Task(name), group_id=group, failure=Failure("judge", "no answer") if failed else None)
    trajectory.rewards = [0.0, reward]
    if success is not None:
        trajectory.metrics["success"] = float(success)
    return trajectory


def test_the_config_of_a_checkpoint_is_its_own_and_else_that_of_its_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "step_1"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("training: {seed: 1}\n")
    assert (locate(checkpoint)[0], locate(checkpoint)[1].training.seed) == (checkpoint, 1)
    (checkpoint / "config.yaml").write_text("training: {seed: 2}\n")
    assert locate(checkpoint)[1].training.seed == 2


def test_the_report_counts_failures_and_leaves_them_out() -> None:
    report = report_on(
        [
            told("a", "1", True, 1.0),
            told("a", "1", False, 0.0),
            told("b", "2", False, 0.5),
            told("b", "2", None, 0.5),
            told("b", "2", True, 9.0, failed=True),
        ]
    )
    assert (report.episodes, report.failures) == (4, 1)
    assert report.first_failure == "judge: no answer"
    # 1 of the 3 of which somebody said whether they were solved
    assert report.success == pytest.approx(1 / 3)
    assert report.reward == 0.5
    assert report.turns == 2.0
    assert report.tasks == {
        "a": {"episodes": 2, "judged": 2, "success": 0.5, "reward": 0.5},
        "b": {"episodes": 2, "judged": 1, "success": 0.0, "reward": 0.5},
    }
    # k=1: the mean of 1/2 and 0; k=2: only the first instance has two tries that were judged
    assert report.pass_at_k == {1: 0.25, 2: 1.0}


def test_a_report_on_nothing_says_nothing() -> None:
    report = report_on([told("a", "1", True, 1.0, failed=True)])
    assert (report.episodes, report.failures) == (0, 1)
    assert (report.success, report.interval, report.reward, report.turns) == (None, None, None, None)
    assert report.pass_at_k == {}


def test_a_report_as_plain_data_has_everything_but_the_episodes() -> None:
    played = [Trajectory(f"t{i}", Task("a"), metrics={"success": float(i < 3)}) for i in range(4)]
    report = report_on(played)
    plain = report.to_dict()
    assert set(plain) == {f.name for f in fields(report)} - {"trajectories", "tally"} | {
        "excluded",
        "first_failure",
        "result",
    }
    assert (plain["episodes"], plain["success"], plain["excluded"]) == (4, 0.75, report.tally.report())
    assert report.interval is not None
    assert plain["interval"] == list(report.interval)
    assert plain["interval"][0] < 0.75 < plain["interval"][1]
