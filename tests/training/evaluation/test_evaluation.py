"""Evaluation: held-out instances, the same for every run, and what the report says of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.rollout.worlds import Countdown
from uirl.errors import RolloutFailure
from uirl.metrics import clustered_interval
from uirl.rollout.episode import EpisodeSpec
from uirl.training.evaluation.evaluation import evaluate_episodes, report_on, require_evidence
from uirl.training.evaluation.measure import locate, saved_as
from uirl.training.record.instances import fingerprint
from uirl.training.record.progress import percent
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Failure, Observation, Task, Trajectory, Turn


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


async def test_held_out_instances_are_the_same_for_every_seed_and_none_of_training() -> None:
    held_out = {split: await instances(0, split) for split in ("eval", "test", "warm-start")}
    together = {instance for found in held_out.values() for instance in found}
    assert len(together) == 3 * 32
    for seed in (1, 20_250_101):
        assert {split: await instances(seed, split) for split in held_out} == held_out
    for seed in (0, 1, 20_250_101):
        training = UniformTasks([Task("a")], seed=seed, instance_seed=seed).groups(256, 1)
        assert not {group[0].environment_seed for group in training} & together


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


@pytest.mark.parametrize(
    ("named", "there", "found"),
    [
        ("checkpoint_step_1000.pt", "step_001000", "step_001000"),
        ("checkpoint_step_7", "step_000007", "step_000007"),
        ("checkpoint_step_7.pt", "step_000008", "checkpoint_step_7.pt"),
        ("checkpoint_step_7", "checkpoint_step_7", "checkpoint_step_7"),
        ("checkpoint_step_x.pt", "step_000007", "checkpoint_step_x.pt"),
        ("nowhere", "step_000007", "nowhere"),
    ],
)
def test_a_checkpoint_may_be_named_as_in_the_document(named: str, there: str, found: str, tmp_path: Path) -> None:
    (tmp_path / there).mkdir()
    assert saved_as(tmp_path / named) == tmp_path / found


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


def test_a_report_as_plain_data_and_as_metrics() -> None:
    played = [Trajectory(f"t{i}", Task("a"), group_id=f"g{i}", metrics={"success": float(i < 3)}) for i in range(4)]
    for i, one in enumerate(played):
        one.turns = [Turn(Observation(f"q{i}"), reward=float(i))]
    lost = Trajectory("f", Task("a"), failure=Failure("judge", "no answer"))
    report = report_on([*played, lost], trained={fingerprint(played[3]) or ""})
    interval = clustered_interval([(True, 1)] * 3 + [(False, 1)])
    unseen = {"episodes": 3, "instances": 3, "success": 1.0, "interval": list(clustered_interval([(True, 1)] * 3))}
    words = "75.0 % (95 %: 16.3 to 97.9), 4 of 4 judged, at worst 60.0 %, 4 episodes of 4 instances"
    assert report.to_dict() == {
        "result": f"{words}; 1 of 4 instances were also trained on",
        **{"episodes": 4, "judged": 4, "failures": 1, "instances": 4, "first_failure": "judge: no answer"},
        **{"excluded": report.tally.report(), "success": 0.75, "interval": list(interval), "corrected": None},
        "held_out": {"held_out": True, "instances": 4, "trained_on": 1, "unseen": unseen},
        **{"reward": 1.5, "turns": 1.0, "pass_at_k": {"1": 0.75}},
        "tasks": {"a": {"episodes": 4, "judged": 4, "success": 0.75, "reward": 1.5}},
    }
    told = f"{percent(1.0, clustered_interval([(True, 1)] * 3))}, 3 episodes of 3 instances"
    assert report.unseen_rows() == {"success on unseen instances": told}
    numbers = {"success": 0.75, "success_low": interval[0], "success_high": interval[1], "success_at_worst": 0.6}
    numbers |= {"reward": 1.5, "turns": 1.0, "judged_episodes": 4, "evidence_episodes": 4, "unseen_attempts": 1}
    assert report.row() == {f"eval/{name}": value for name, value in numbers.items()}
    nothing = report_on([lost], trained=())
    assert nothing.row() == dict.fromkeys(report.row()) | {
        **{"eval/judged_episodes": 0, "eval/evidence_episodes": 0, "eval/unseen_attempts": 1}
    }
    plain = nothing.to_dict()
    assert (plain["interval"], plain["held_out"]["unseen"]["interval"], nothing.unseen_rows()) == (None, None, {})
    assert plain["result"].startswith("-, 0 of 0 judged, 0 episodes of 0 instances; not known to be held out")
    assert (report_on([lost]).to_dict()["held_out"], report_on(played).measured_by) == (None, "success")
    assert nothing.measured_by == "reward"


@pytest.mark.parametrize(("lost", "raises"), [(2, True), (1, False)])
def test_where_every_episode_failed_the_first_reason_is_told(lost: int, raises: bool) -> None:
    played = [told("a", str(i), True, 1.0, failed=i < lost) for i in range(2)]
    match = r"^all 2 episodes of a check failed\. The first, judge: no answer$"
    with pytest.raises(RolloutFailure, match=match) if raises else nullcontext():
        require_evidence(played, "of a check")
