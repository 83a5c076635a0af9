"""One small run, looked at from all sides: what it counts, saves, says and stops for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.threads import left_since
from tests.training.test_loop import cold, settings, train
from uirl import RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.errors import CheckpointError
from uirl.learner import latest_checkpoint, save_checkpoint
from uirl.types import Trajectory


@dataclass
class Run:
    """A run that ended, its trainer still open."""

    trainer: RayPPOTrainer
    folder: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    said: list[str]
    played: dict[str, list[Trajectory]]
    """Split -> episodes."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """2 epochs of 2 updates; evaluated after updates 3 and 4, a line for updates 3 and 4, a checkpoint per epoch."""
    config = settings(tmp_path_factory.mktemp("runs"), eval_every=3)
    config.logging.print_every = 3
    config.checkpoint.save_interval = 1
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in ("uirl.training.loop", "uirl.training.record.progress"):
            patch.setattr(f"{module}.say", said.append)
        trainer = RayPPOTrainer(config)
        assert trainer.run_path is None
        summary = trainer.fit(num_epochs=2, num_iters_per_epoch=2)
    folder = trainer.run_path
    assert folder is not None
    store = TrajectoryStore(folder / "trajectories.sqlite", read_only=True)
    played = {split: [store.get(row.id) for row in store.list(split=split)] for split in ("train", "eval", "test")}
    yield Run(trainer, folder, summary, read_metrics(folder / "metrics.jsonl"), said, played)
    trainer.cleanup()


def rate(played: list[Trajectory]) -> float:
    return sum(bool(t.success) for t in played) / len(played)


def test_the_summary_is_what_was_measured(run: Run) -> None:
    summary, test = run.summary, run.played["test"]
    before = [t for t in test if t.id.startswith("before")]
    after = [t for t in test if t.id.startswith("after@4")]
    assert len(before) == len(after) == 16
    assert (summary["success_before"], summary["success_after"]) == (rate(before), rate(after))
    for when, played in (("before", before), ("after", after)):
        low, high = summary[f"success_{when}_interval"]
        assert low < rate(played) < high
    for name, played in (("reward_before", before), ("reward_after", after)):
        assert summary[name] == pytest.approx(sum(t.total_reward() for t in played) / 16)
    assert (summary["episodes"], summary["steps"]) == (len(run.played["train"]), 4) == (64, 4)
    assert summary["stopped_because"] == "all epochs are done"
    assert (summary["seed"], summary["algorithm"], summary["model"]) == (0, "gae", "uirl/tiny-lm")
    assert summary["parameters"] == sum(p.numel() for p in run.trainer.learner.policy.model.parameters())
    assert summary["warm_start"]["steps"] == 16
    assert summary["train_seconds"] >= summary["warm_start"]["seconds"] > 0
    assert json.loads((run.folder / "summary.json").read_text()) == json.loads(json.dumps(summary))


def test_before_and_after_are_measured_on_the_same_instances_and_evaluations_on_others(run: Run) -> None:
    instances = {
        name: [t.seed for t in played if t.id.startswith(name)]
        for name, played in (("before", run.played["test"]), ("after@4", run.played["test"]))
    }
    assert instances["before"] == instances["after@4"]
    assert len(set(instances["before"])) == 16
    evaluated = {t.seed for t in run.played["eval"]}
    trained = {t.seed for t in run.played["train"]}
    assert not evaluated & set(instances["before"])
    assert not trained & (evaluated | set(instances["before"]))


def test_the_rows_count_updates_epochs_and_episodes(run: Run) -> None:
    assert [row["step"] for row in run.rows] == [1, 2, 3, 4]
    assert [row["epoch"] for row in run.rows] == [0, 0, 1, 1]
    assert [row["episodes_total"] for row in run.rows] == [16, 32, 48, 64]
    assert [row["count/failed_episodes"] for row in run.rows] == [0, 0, 0, 0]
    assert [row["success"] for row in run.rows] == [rate(run.played["train"][i : i + 16]) for i in (0, 16, 32, 48)]
    for row in run.rows:
        assert row["time/collect"] > 0
        assert row["time/update"] > 0
        assert row["time/record"] >= 0
        assert row["time/elapsed"] > row["time/collect"] + row["time/update"]
    elapsed = [row["time/elapsed"] for row in run.rows]
    assert elapsed == sorted(elapsed)
    assert elapsed[3] > sum(row["time/collect"] + row["time/update"] for row in run.rows)


def test_it_is_evaluated_where_it_is_time_to_and_at_the_end(run: Run) -> None:
    at = {row["step"]: row.get("eval/success") for row in run.rows}
    assert [step for step, success in at.items() if success is not None] == [3, 4]
    for step in (3, 4):
        played = [t for t in run.played["eval"] if t.id.startswith(f"eval@{step}-")]
        assert len(played) == 16
        row = run.rows[step - 1]
        assert row["eval/success"] == rate(played)
        assert row["eval/reward"] == pytest.approx(sum(t.total_reward() for t in played) / 16)
        assert row["eval/turns"] == pytest.approx(sum(map(len, played)) / 16)
        assert row["time/evaluate"] > 0


def test_a_line_is_said_where_it_is_time_to_and_at_the_end(run: Run) -> None:
    lines = [line for line in run.said if line.startswith("step ")]
    assert [line.split("  episodes")[0].split() for line in lines] == [["step", "3/4"], ["step", "4/4"]]
    everything = "\n".join(run.said)
    assert f"run directory {run.folder}" in everything
    places = ("summary.json", "metrics.jsonl", "trajectories.sqlite", "learning_curve.png", "checkpoints/step_000004")
    for name in places:
        assert str(run.folder / name) in everything
    assert "all epochs are done" in everything
    assert "resumed" not in everything


def test_checkpoints_stand_at_the_start_and_after_each_epoch(run: Run) -> None:
    saved = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert set(saved) <= {"step_000000", "step_000002", "step_000004"}
    assert {"step_000002", "step_000004"} <= set(saved)
    newest = latest_checkpoint(run.folder / "checkpoints")
    assert newest is not None
    assert newest.name == "step_000004"


def test_the_history_has_an_entry_per_epoch(run: Run) -> None:
    first, second = run.trainer.metrics_history
    assert (first["epoch"], first["updates"], second["epoch"], second["updates"]) == (0, 2, 1, 2)
    assert first["success"] == pytest.approx((run.rows[0]["success"] + run.rows[1]["success"]) / 2)
    assert second["policy_loss"] is not None


def test_a_checkpoint_that_is_loaded_brings_the_run_back(run: Run, tmp_path: Path) -> None:
    other = RayPPOTrainer(settings(tmp_path))
    other.load_checkpoint(run.folder / "checkpoints" / "step_000002")
    assert other.metrics_history[0]["updates"] == 2
    assert len(other.metrics_history) == 1
    assert other.tasks.state_dict() == {"position": 32}
    assert other.learner.version == run.trainer.learner.version - 2
    path = other.save_checkpoint(tmp_path / "mine_2")
    assert path.is_dir()
    strange = save_checkpoint(tmp_path / "strange_1", other.learner, {"tasks": {"position": 1}})
    with pytest.raises(CheckpointError, match="holds no state of a run"):
        other.load_checkpoint(strange)
    other.cleanup()
    other.cleanup()


def test_a_success_that_nobody_knows_stops_nothing_and_no_thread_stays(tmp_path: Path) -> None:
    class Silent(Countdown):
        def step(self, action: str) -> Any:
            look, reward, done, _ = super().step(action)
            return look, reward, done, {}

    config = cold(tmp_path, eval_every=1, stop_at_success=0.5)
    before = set(threading.enumerate())
    summary = train(config, 2, Silent(length=1))
    assert (summary["steps"], summary["success_after"]) == (2, None)
    assert summary["reward_after"] is not None
    assert not left_since(before)


def test_a_run_stops_at_the_success_or_the_time_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    easy = settings(tmp_path / "easy", eval_every=1, stop_at_success=0.0)
    late = settings(tmp_path / "late", max_seconds=0.001)
    for config, reason in (
        (easy, "the success of an evaluation reached 0.0"),
        (late, "the time limit of 0.001 s was reached"),
    ):
        config.training.warm_start.enabled = False
        config.logging.print_every = 100
        summary = train(config, 3)
        assert "step    1/3" in capsys.readouterr().out, "the last update is told, whatever made it the last"
        assert (summary["steps"], summary["stopped_because"]) == (1, reason)
        assert summary["warm_start"] is None
