"""An engine on the learner's GPU sleeps while the learner works, and plays with the newest weights afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inference.vllm.sleeping import SleepingVLLM, stand_in
from tests.training.options import TINY
from tests.training.test_every_run_option import RUN
from uirl import ConfigStore, RayPPOTrainer
from uirl.learner import Learner
from uirl.metrics import read_metrics

VLLM = [*TINY, *RUN, "inference.backend=vllm", "inference.sleep=2"]
UPDATE = ["sleep 2", "wake weights", "load", "swap", "wake kv_cache"]
PUBLISH = ["load", "swap"]
WARM = [
    *("training.warm_start.enabled=true", "training.warm_start.steps=2", "training.warm_start.batch_size=2"),
    *("training.warm_start.demonstrations=3", "training.warm_start.evaluate_every=null"),
    *("training.warm_start.stop_at_success=null", "training.warm_start.warmup_steps=1"),
]


def trained(tmp_path: Path, made: list[SleepingVLLM], *changes: str) -> tuple[list[str], list[dict[str, float]]]:
    """Return (what vLLM was asked, the metrics of the updates)."""
    config = ConfigStore().override([*VLLM, *changes])
    config.logging.runs_dir = str(tmp_path)
    trainer = RayPPOTrainer(config, reward_fn=lambda one: float(one.turns[0].response_ids[0] % 5))
    try:
        trainer.fit()
        assert trainer.run_path is not None
        return made[0].calls, read_metrics(trainer.run_path / "metrics.jsonl")
    finally:
        trainer.cleanup()


def test_every_update_is_taken_while_the_engine_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stand_in(monkeypatch)
    update, held = Learner.update, []

    def noted(self: Learner, *args: object, **options: object) -> object:
        held.append(made[0].held_now["weights"] + made[0].held_now["kv_cache"])
        return update(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Learner, "update", noted)
    calls, rows = trained(tmp_path, made)
    assert calls == [*PUBLISH, *UPDATE, *UPDATE]
    assert held == [0, 0]
    assert [row["log_prob_gap_max"] < 1e-4 for row in rows] == [True, True]
    assert all(row["time/engine_sleep"] > 0 and row["time/engine_update"] > 0 for row in rows)


@pytest.mark.parametrize("changes", [["inference.sleep=off"], ["inference.sleep=auto"]])
def test_an_engine_that_may_not_or_need_not_sleep_stays_awake(
    changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner is on a CPU here, so that `auto` has no memory to give it."""
    calls, rows = trained(tmp_path, stand_in(monkeypatch, sleeps=False), *changes)
    assert calls == [*PUBLISH, *PUBLISH, *PUBLISH]
    assert "time/engine_sleep" not in rows[0]


def test_a_warm_start_is_taken_while_the_engine_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps follow on each other: the engine falls asleep once, and wakes for the evaluation after them."""
    made = stand_in(monkeypatch)
    calls, _ = trained(tmp_path, made, *WARM)
    assert calls == [*PUBLISH, *UPDATE, *UPDATE, *UPDATE]
