"""The shipped jobs learn what they say they learn. The slowest tests of the house, and the ones that count."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl import RayPPOTrainer, load_config

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most_before"), [("guess_number", 0.7), ("screen", 0.5)])
def test_the_job_learns(name: str, most_before: float, tmp_path: Path) -> None:
    """As far as 0.8, to which it takes half of the time; over five seeds the whole jobs end at 0.943 to 0.979. The
    evaluation that ended it was the first to reach 0.8, the last one is of other instances and may lie below."""
    changes = [f"logging.runs_dir={tmp_path}", "training.stop_at_success=0.8", "training.threads=1"]
    trainer = RayPPOTrainer(load_config(CONFIGS / f"{name}.yaml", changes))
    summary = trainer.fit()
    trainer.cleanup()
    assert summary["success_before"] < most_before
    assert "0.8" in summary["stopped_because"]
    assert summary["success_after_interval"][1] >= 0.8
    assert summary["success_after_interval"][0] > most_before
    assert max(summary["controls"].values()) < 0.25
