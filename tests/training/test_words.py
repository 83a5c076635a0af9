"""What a run prints of a number says what it is: chosen as the best, a reward, a judge's acceptance, which splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import cold, train
from uirl.environments import BaseEnvironment
from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.run_state import RunState
from uirl.training.saving import note_best
from uirl.training.summary import best_words, measured
from uirl.types import Failure, Task, Trajectory, Verdict


class Cost(BaseEnvironment):
    """Has rewards alone, all of them negative; nobody says what success is."""

    def reset(self, seed: int | None = None) -> str:
        return f"choose {seed}"

    def step(self, action: Any) -> Any:
        return "done", -3.2, True, {}

    def get_state_description(self) -> str:
        return "choose"

    def controls(self) -> dict[str, Any]:
        return {"always one": "1"}


def test_the_controls_of_rewards_are_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = cold(tmp_path, eval_every=1)
    config.environment.options = {}
    config.checkpoint.keep_best = "reward"
    summary = train(config, 2, Cost())
    said = capsys.readouterr().out
    assert summary["controls"] == {"always one": pytest.approx(-3.2)}
    assert summary["controls_metric"] == "reward"
    (line,) = [line for line in said.splitlines() if "control: always one" in line]
    assert line.split("always one")[1].split() == ["reward", "-3.2"]
    assert "-320" not in said
    (best,) = [line for line in said.splitlines() if "best checkpoint" in line]
    assert "reward -3.2, the best of 2 evaluations" in best
    assert summary["best"]["evaluations"] == 2


def test_a_number_is_told_with_what_it_is() -> None:
    assert measured("success", 0.5) == "success 50.0 %"
    assert measured("reward", -3.2) == "reward -3.2"


@pytest.mark.parametrize(("failed", "told"), [(0, "success 75.0 %,"), (4, "success 75.0 % (at worst 37.5 %),")])
def test_the_best_checkpoint_says_what_it_is_at_worst(failed: int, told: str) -> None:
    def episode(number: int, **metrics: float) -> Trajectory:
        return Trajectory(f"{number}", Task("t"), [], "terminated", metrics=metrics)

    lost = [replace(episode(i), failure=Failure("environment", "gone")) for i in range(failed)]
    report = report_on([episode(9 + i, success=float(i > 0)) for i in range(4)] + lost)
    state = RunState(step=40)
    assert note_best(state, report, "success")
    assert state.best is not None
    words = best_words(state.best | {"evaluations": 6})
    assert words.startswith(f"step 40, {told} the best of 6 evaluations")


def test_the_success_of_a_corrected_judge_is_told_as_its_acceptance() -> None:
    """Rates t = .9 and f = .2: what is accepted has 8/7, what is not -2/7, and the mean is that of the truth."""
    yes, no = 8 / 7, -2 / 7

    def judged(score: float, i: int) -> Trajectory:
        return Trajectory(f"t{i}", Task("a"), verdict=Verdict(score, score > 0.5, verifier="judge"), group_id=f"g{i}")

    report = report_on([judged(yes if i < 55 else no, i) for i in range(100)])
    assert report.success == 0.55
    assert report.corrected == pytest.approx(0.5)  # .9 * .5 + .2 * .5 = .55 are accepted
    assert "as accepted, 50.0 % corrected for the judge's errors" in report.words()
    assert report_on([judged(float(i < 55), i) for i in range(100)]).corrected is None
