"""Whole runs with `curriculum.enabled`: what they play, write down and continue, in one process and in many."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.training.tasks.letters import COUNT, Letters
from tests.training.test_loop import cold, digits
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, UniformTasks, read_metrics
from uirl.curriculum import LEVELS, TaskCurriculum
from uirl.errors import ConfigError

LETTERS = "tests.training.tasks.letters:Letters"


def config_of(folder: Path, **training: Any) -> ConfigStore:
    """Ten updates of 8 groups of 4 on the seven tasks, of which one is never solved and one always."""
    sizes = {"batch_size": 32, "group_size": 4, "adv_estimator": "grpo", "eval_episodes": 2}
    config = cold(folder, **{**sizes, "num_epochs": 1, "num_iters_per_epoch": 10, **training})
    config.environment.name, config.environment.options = LETTERS, {}
    config.curriculum.enabled = True
    config.curriculum.min_attempts_per_task = 4
    return config


def run(config: ConfigStore, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]], Counter[str]]:
    """The summary, the metrics and how many training episodes each task had."""
    trainer = RayPPOTrainer(config, **options)
    summary = trainer.fit()
    trainer.cleanup()
    assert trainer.run_path is not None
    with TrajectoryStore(trainer.run_path / "trajectories.sqlite", read_only=True) as store:
        played = Counter(t.task.id for t in store if t.id.startswith("train"))
    return summary, read_metrics(trainer.run_path / "metrics.jsonl"), played


def test_what_is_always_or_never_solved_is_played_less_and_all_of_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, rows, played = run(config_of(tmp_path))
    assert len(played) == COUNT
    assert max(played["0"], played["6"]) < sum(played.values()) / COUNT, played
    told = summary["curriculum"]
    assert told["draws"] == sum(played.values()) / 4
    assert sum(level["tasks"] for level in told["levels"].values()) == COUNT
    assert sum(level["drawn"] or 0.0 for level in told["levels"].values()) == pytest.approx(1.0)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["curriculum"] == told
    for row in rows:
        shares = [value for name, value in row.items() if name.startswith("curriculum/") and name.endswith("/drawn")]
        assert sum(filter(None, shares)) == pytest.approx(1.0)
        assert sum(row[f"curriculum/{place}/tasks"] for place in ("new", *LEVELS)) == COUNT
    # over the run, the share of live groups of a level is that of its rows, weighed; always solved teaches nothing
    assert told["levels"]["exploitation"]["live_groups"] < told["levels"]["exploration"]["live_groups"]
    out = capsys.readouterr().out
    assert "curriculum: exploration" in out


def test_groups_without_a_difference_are_replaced_and_counted_for_their_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, update_group = Counter[str](), TaskCurriculum.update_group

    def hear(curriculum: TaskCurriculum, name: str, outcomes: list[bool], **options: Any) -> None:
        heard[name] += len(outcomes)
        update_group(curriculum, name, outcomes, **options)

    monkeypatch.setattr(TaskCurriculum, "update_group", hear)
    config = config_of(tmp_path, num_iters_per_epoch=3)
    config.algorithm.max_resamples = 4
    summary, rows, played = run(config)
    assert heard == played, "of a group that is replaced it hears too: that it held no signal is what it has to know"
    replaced = sum(row["count/replaced_groups"] for row in rows)
    assert replaced > 0
    assert summary["curriculum"]["draws"] * 4 == sum(played.values()) == 96 + 4 * replaced
    assert summary["ledger"]["dropped"]["no signal"] >= 4 * replaced


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "gae", "rejection_sampling"])
def test_a_continued_run_repeats_every_digit(tmp_path: Path, estimator: str) -> None:
    ends = []
    for name, stops in (("whole", [6]), ("parts", [2, 3, 6])):
        for updates in stops:
            config = config_of(tmp_path / name, adv_estimator=estimator, num_iters_per_epoch=updates)
            config.checkpoint.resume = "auto"
            summary, _, played = run(config)
        ends.append((summary["curriculum"], digits(tmp_path / name / "run" / "metrics.jsonl"), played))
    assert ends[0][0] == ends[1][0]
    assert [{k: v for k, v in row.items() if k != "epoch"} for row in ends[0][1]] == [
        {k: v for k, v in row.items() if k != "epoch"} for row in ends[1][1]
    ]
    assert ends[0][2] == ends[1][2]


def test_it_runs_ahead_of_the_learner(tmp_path: Path) -> None:
    config = config_of(tmp_path, num_iters_per_epoch=4)
    config.actors.staleness = 2
    summary, rows, played = run(config)
    assert len(rows) == 4
    told = summary["curriculum"]
    assert told["draws"] == 32 + 16
    assert len(played) == COUNT


def test_an_environment_that_does_not_judge_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(config_of(tmp_path, num_iters_per_epoch=2), environment=Letters(judged=False))
    assert capsys.readouterr().out.count("nobody says whether the 32 episodes of update 1 solved their tasks") == 1


def test_one_task_or_another_source_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with pytest.raises(ConfigError, match="which each choose tasks"):
        RayPPOTrainer(config, tasks=UniformTasks(Letters().tasks(), seed=0))
    config.environment.name, config.environment.options = "guess_number", {}
    with pytest.raises(ConfigError, match="there is one task, so there is nothing to choose"):
        RayPPOTrainer(config)


def test_a_run_that_had_none_continues_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path, num_iters_per_epoch=1)
    config.curriculum = ConfigStore().curriculum
    run(config)
    config = config_of(tmp_path, num_iters_per_epoch=2)
    config.checkpoint.resume = True
    _, rows, _ = run(config)
    assert "begins with nothing known" in capsys.readouterr().out
    assert "curriculum/mean_success" in rows[1]
