"""A synchronous run learns the same from engine processes as from the engine in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.test_every_run_option import RUN, WARM
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics

pytestmark = pytest.mark.actors


def run(folder: Path, *more: str) -> tuple[list[Any], list[Any]]:
    config = ConfigStore().override([*RUN, *WARM, f"logging.runs_dir={folder}", "model.model_name=uirl/tiny-lm", *more])
    trainer = RayPPOTrainer(config)
    trainer.fit()
    path = trainer.run_path
    trainer.cleanup()
    assert path is not None
    tokens = {t.id: [turn.response_ids for turn in t.turns] for t in TrajectoryStore(path / "trajectories.sqlite")}
    return tokens, [row["policy_loss"] for row in read_metrics(path / "metrics.jsonl") if "policy_loss" in row]


def test_engine_processes_change_no_digit(tmp_path: Path) -> None:
    tokens, losses = run(tmp_path / "one")
    assert tokens
    assert losses
    others, other_losses = run(tmp_path / "two", "actors.engines=2")
    assert others == tokens
    assert other_losses == pytest.approx(losses, abs=1e-5)
