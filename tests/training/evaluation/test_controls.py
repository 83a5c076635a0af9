"""A control is one only where it hides something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.evaluation.test_held_out import Questions
from tests.training.test_loop import settings
from uirl import Action, RayPPOTrainer
from uirl.environments import BaseEnvironment


class Asked(Questions):
    """With a control that hides the question, and one that says so and does not."""

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        return {"no_instruction": Questions(None), "forgotten": self.spawn(), "constant": "7"}


def test_a_control_that_hides_nothing_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(tmp_path, batch_size=32, group_size=2)
    config.environment.options = {}
    config.training.warm_start.enabled = False
    trainer = RayPPOTrainer(config, Asked(10**9))
    try:
        summary = trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    finally:
        trainer.cleanup()
    assert set(summary["controls"]) == {"no_instruction", "constant"}
    assert "control forgotten: left out" in " ".join(capsys.readouterr().out.split())
