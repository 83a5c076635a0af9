"""A run learns the same from engine processes as from the engine in its own, and outlives the death of one."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.training.test_every_run_option import RUN, WARM
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.training.record.processes import PROCESSES

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


def test_engines_in_ray_change_no_digit(tmp_path: Path) -> None:
    in_ray = ["ray.use_ray=true", "ray.actor_cpus=0.5", "ray.engine_cpus=0.5", "actors.engines=2"]
    tokens, losses = run(tmp_path / "one")
    others, other_losses = run(tmp_path / "two", *in_ray)
    assert others == tokens
    assert other_losses == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize("actors", [["actors.engines=2"], ["actors.processes=2"]])
def test_adapters_reach_real_processes(tmp_path: Path, actors: list[str]) -> None:
    """Merged into the model of engine processes, in place for actors that ask the learner's: the same policy."""
    adapters = ["model.use_lora=true", "training.warm_start.learning_rate=0.05", "training.warm_start.steps=8"]
    tokens, _ = run(tmp_path / "one", *adapters)
    others, _ = run(tmp_path / "two", *adapters, *actors)
    assert others == tokens
    untrained, _ = run(tmp_path / "three", *adapters, "training.warm_start.learning_rate=1e-12")
    assert untrained != tokens, "the adapters change what is sampled"


def test_a_run_outlives_an_engine_that_is_killed(tmp_path: Path) -> None:
    table = tmp_path / "run" / PROCESSES
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + PATIENCE
        while not killed and time.monotonic() < deadline:
            time.sleep(0.02)
            engines = [row for row in read(table) if row["role"] == "engine"]
            if engines and all(row["state"] == "ready" for row in engines):
                os.kill(engines[0]["pid"], signal.SIGKILL)
                killed.append(engines[0]["pid"])

    killer = threading.Thread(target=kill_one)
    killer.start()
    tokens, _ = run(tmp_path, "actors.engines=2", "actors.staleness=1", "training.num_iters_per_epoch=8")
    killer.join()
    assert killed
    assert tokens
    left = [row for row in read(table) if row["role"] == "engine"]
    assert [(row["state"], row["pid"]) for row in left] == [("stopped", None)] * 2
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stopped_because"]


def read(table: Path) -> list[dict[str, Any]]:
    if not table.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(table.read_text())["processes"]
    return rows
