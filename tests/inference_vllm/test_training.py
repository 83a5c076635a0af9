"""A shipped job, smaller, trains through vLLM; every update is pushed, and engine and learner agree at every step."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.inference_vllm.running import GAP, SMALL
from uirl.config import load_config
from uirl.training.loop import RayPPOTrainer

pytestmark = pytest.mark.vllm

JOB = Path(__file__).parents[2] / "configs" / "guess_number.yaml"
STEPS = 20


def train(tmp_path: Path, *more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(summary, one row per update) of the job as a person would start it."""
    config = load_config(
        JOB,
        [
            *SMALL,
            "model.device=cpu",
            "inference.backend=vllm",
            "training.batch_size=128",
            "training.num_epochs=1",
            f"training.num_iters_per_epoch={STEPS}",
            "training.eval_every=null",
            "training.stop_at_success=null",
            "training.eval_episodes=64",
            "training.warm_start.steps=60",
            "training.warm_start.evaluate_every=null",
            "logging.tensorboard=false",
            f"logging.runs_dir={tmp_path}",
            *more,
        ],
    )
    trainer = RayPPOTrainer(config)
    try:
        summary = trainer.fit()
        lines = (trainer.run_path / "metrics.jsonl").read_text().splitlines()
        assert trainer._parts.engine.policy_version == trainer.learner.version
    finally:
        trainer.cleanup()
    return summary, [json.loads(line) for line in lines]


@pytest.mark.parametrize("where", ["process", "server"])
def test_the_job_learns_and_engine_and_learner_agree(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = [f"inference.server_url={request.getfixturevalue('lm_server').url}"] if where == "server" else []
    summary, rows = train(tmp_path, *server)
    assert len(rows) == STEPS
    assert max(row["log_prob_gap_max"] for row in rows) < GAP
    assert max(row["count/failed_episodes"] for row in rows) == 0
    assert mean(row["success"] for row in rows[-5:]) > mean(row["success"] for row in rows[:5]) + 0.1
    assert summary["success_after"] > summary["success_before"] + 0.1


def test_adapters_are_pushed_at_every_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = f"inference.server_url={request.getfixturevalue('lm_server').url}"
    _, rows = train(tmp_path, server, "model.use_lora=true", "training.num_iters_per_epoch=3")
    assert len(rows) == 3
    assert max(row["log_prob_gap_max"] for row in rows) < GAP
