"""A shipped job, smaller, trains through vLLM; every update is pushed, and engine and learner agree at every step."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.inference.vllm.real.running import GAP, SMALL
from uirl.config import load_config
from uirl.metrics import read_metrics
from uirl.rollout.reward import RewardFunction
from uirl.training.loop import RayPPOTrainer

pytestmark = pytest.mark.vllm

JOB = Path(__file__).parents[4] / "configs" / "guess_number.yaml"


def train(tmp_path: Path, steps: int, *more: str, reward_fn: RewardFunction | None = None) -> list[dict[str, Any]]:
    """One row per update of the job as a person would start it."""
    config = load_config(
        JOB,
        [
            *SMALL,
            "model.device=cpu",
            "inference.backend=vllm",
            "training.batch_size=128",
            "training.num_epochs=1",
            f"training.num_iters_per_epoch={steps}",
            "training.eval_every=null",
            "training.stop_at_success=null",
            "training.eval_episodes=16",
            "training.warm_start.steps=60",
            "training.warm_start.evaluate_every=null",
            "logging.trackers=[]",
            f"logging.runs_dir={tmp_path}",
            *more,
        ],
    )
    trainer = RayPPOTrainer(config, reward_fn=reward_fn)
    try:
        trainer.fit()
        rows = read_metrics(trainer.run_path / "metrics.jsonl")
        assert trainer._parts.engine.policy_version == trainer.learner.version
    finally:
        trainer.cleanup()
    return rows


@pytest.mark.parametrize(("where", "steps"), [("process", 20), ("server", 14)])
def test_the_job_learns_and_engine_and_learner_agree(
    where: str, steps: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = [f"inference.server_url={request.getfixturevalue('lm_server').url}"] if where == "server" else []
    rows = train(tmp_path, steps, *server)
    assert len(rows) == steps
    assert max(row["log_prob_gap_max"] for row in rows) < GAP
    assert max(row["count/failed_episodes"] for row in rows) == 0
    # 512 episodes each: twice the standard error of their difference is 0.06
    assert mean(row["success"] for row in rows[-4:]) > mean(row["success"] for row in rows[:4]) + 0.07


def test_adapters_are_pushed_at_every_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server = f"inference.server_url={request.getfixturevalue('lm_server').url}"
    own = ["model.use_lora=true", "training.batch_size=32", "training.warm_start.steps=5"]
    # a policy this young never hits, and an update without a signal is skipped: pay for something it does
    rows = train(tmp_path, 3, server, *own, reward_fn=lambda episode: episode.turns[0].response_ids[0] % 7)
    assert len(rows) == 3
    assert max(row["log_prob_gap_max"] for row in rows) < GAP
