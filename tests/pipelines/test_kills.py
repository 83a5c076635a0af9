"""`kill -9` of real processes in every phase of `uirl evolve`: what goes on ends as what was never killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.test_evolve import SMALL, facts, strip
from uirl.storage import TrajectoryStore

pytestmark = pytest.mark.actors

MORE = ["evolve.restarts=0.5", "checkpoint.save_seconds=1e-9", "training.threads=1"]
KILLS = [
    # in the warm start
    ("uirl.learner.Learner.supervised", 1, "after"),  # before there is a checkpoint
    ("uirl.pipelines.evolve.save_checkpoint", 4, "after"),
    ("uirl.learner.Learner.supervised", 3, "before"),
    ("uirl.runtime.folders._put", 2, "before"),  # a checkpoint is written and has no name yet
    ("uirl.learner.Learner.supervised", 4, "after"),
    ("uirl.pipelines.selection.RoundFolder.finish", 1, "before"),
    ("uirl.pipelines.evolve.evaluate_episodes", 1, "after"),
    # among the episodes
    ("uirl.storage.TrajectoryStore.add", 5, "before"),
    ("uirl.storage.TrajectoryStore.add", 6, "after"),
    ("uirl.pipelines.evolve.report_to", 1, "before"),
    # among the beginnings
    ("uirl.storage.TrajectoryStore.set_verdict", 2, "after"),
    ("uirl.pipelines.selection.RoundFolder.finish", 1, "before"),
    # in the selection
    ("uirl.storage.RunDirectory.write_json", 1, "after"),
    ("uirl.pipelines.evolve.export_sft", 1, "after"),
    ("uirl.pipelines.evolve.as_markdown", 1, "before"),
    # in the fine-tuning
    ("uirl.learner.Learner.supervised", 2, "after"),
    ("uirl.learner.Learner.supervised", 1, "before"),
    ("uirl.pipelines.evolve.save_checkpoint", 1, "after"),
    # in the evaluation
    ("uirl.storage.TrajectoryStore.add_many", 1, "after"),
    ("uirl.pipelines.selection.RoundFolder.finish", 2, "after"),  # the next round has begun
]
"""Function, number of its call in the process that went on after the kill before it, and whether it dies before or
after that call."""


def words(folder: Path, *, resume: bool) -> list[str]:
    if resume:
        return ["evolve", str(folder / "run"), "--resume"]
    config = folder / "run.yaml"
    config.write_text("evolve: {rounds: 2}\n")
    return ["evolve", str(config), *SMALL, *MORE, f"logging.runs_dir={folder}", "logging.run_name=run"]


def command(folder: Path, place: str = "never", number: int = 0, when: str = "-") -> list[str]:
    resume = (folder / "run" / "config.yaml").is_file()
    return [sys.executable, "-m", "tests.pipelines.mortal", place, str(number), when, *words(folder, resume=resume)]


def to_its_end(folder: Path) -> None:
    done = subprocess.run(command(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never killed."""
    folder = tmp_path_factory.mktemp("whole")
    to_its_end(folder)
    return folder / "run"


def samples(run: Path) -> list[Any]:
    """All that was learned from, exported and played, in its order."""
    found: list[Any] = []
    for folder in sorted(run.glob("round_0[1-9]")):
        card = json.loads((folder / "data_card.json").read_text())
        del card["beginnings"]  # counts what was known before
        found += [card, json.loads((folder / "selection.json").read_text()), (folder / "sft.jsonl").read_text()]
        with TrajectoryStore(folder / "episodes.sqlite", read_only=True) as store:
            played = [(one.id, one.split, one.success, one.reward) for one in store.list()]
            assert len(played) == len(set(played)) == 16 + 8
            found.append(sorted(played))
    return found


def test_a_kill_in_every_phase_loses_and_doubles_nothing(whole: Path, tmp_path: Path) -> None:
    for place, number, when in KILLS:
        killed = subprocess.run(command(tmp_path, place, number, when), capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, (place, number, killed.returncode, killed.stderr)
    to_its_end(tmp_path)
    run = tmp_path / "run"
    assert strip(facts(run)) == strip(facts(whole))  # with the hashes of the weights after each round
    assert samples(run) == samples(whole)
