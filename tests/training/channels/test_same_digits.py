"""A synchronous run has the same digits wherever its episodes are played, whatever it learns with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rollout.worlds import Countdown
from tests.training.channels.test_handed_over import play, small

pytestmark = pytest.mark.actors


@pytest.mark.parametrize("estimator", ["gae", "grpo", "reinforce_plus_plus", "rloo", "rejection_sampling"])
def test_losses_are_those_of_one_process_to_the_last_digit(tmp_path: Path, estimator: str) -> None:
    changes: dict[str, Any] = {"training__adv_estimator": estimator, "training__num_iters_per_epoch": 3}
    if estimator == "rejection_sampling":
        changes |= {"training__old_log_probs": "auto"}  # it reads none
    if estimator in ("gae", "reinforce_plus_plus", "rejection_sampling"):
        changes["training__group_size"] = 1
    seen = [
        play(small(tmp_path / str(processes), actors__processes=processes, **changes), Countdown(length=2))
        for processes in (0, 2)
    ]
    (here, losses_here, _), (there, losses_there, _) = seen
    assert here == there
    assert losses_here == losses_there
    assert len({loss for loss in losses_here if loss[0]}) > 1, "something was learned"
