"""Held out means another instance, by what it shows and asks: wherever a success is told, with what was trained on."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_loop import cold, train
from uirl import Action
from uirl.environments import BaseEnvironment
from uirl.training import measure
from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.instances import fingerprint, fingerprint_of, packed, unpacked
from uirl.training.tasks.task_sets import content_of
from uirl.types import Observation, Task, Trajectory, Turn


class Questions(BaseEnvironment):
    """Asks one of a number of questions, drawn by the seed; without a number always the same and hides the answer."""

    def __init__(self, questions: int | None = 4) -> None:
        self.questions = questions

    def reset(self, seed: int | None = None) -> str:
        self._asked = random.Random(seed).randrange(self.questions or 10**9)
        return self.get_state_description()

    def step(self, action: Any) -> Any:
        hit = str(self._asked)[0] in str(action)
        return "that was it", float(hit), True, {"success": hit}

    def get_state_description(self) -> str:
        return "guess" if self.questions is None else f"{self._asked}?"

    def spawn(self) -> Questions:
        return Questions(self.questions)


def run(folder: Path, questions: int | None, updates: int = 1, **training: Any) -> dict[str, Any]:
    config = cold(folder, batch_size=32, group_size=2, **training)
    config.environment.options = {}
    config.checkpoint.resume = (folder / "run").exists()
    return train(config, updates, Questions(questions))


CASES = {  # questions -> may it be called held out, its words
    4: (False, "NOT HELD OUT: 16 of 16 instances were also trained on"),
    10**9: (True, "held out: none of them trained on"),
    None: (None, "not known to be held out: all instances begin alike"),
}


@pytest.mark.parametrize("questions", CASES)
def test_a_run_says_whether_its_evaluation_was_trained_on(
    questions: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holds, words = CASES[questions]
    summary = run(tmp_path, questions)
    said = capsys.readouterr().out
    (result,) = [line for line in said.splitlines() if "success after" in line]
    assert words in result
    assert "16 episodes of 16 instances" in result
    assert ("success on unseen instances" in said) == (holds is False)
    assert summary["held_out"]["held_out"] is holds
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["held_out"]
    assert told == summary["held_out"]
    if holds is not True:
        assert "held-out" not in said
    # a run that goes on still knows, and so does whoever measures it
    again = run(tmp_path, questions, updates=2)
    assert again["held_out"]["held_out"] is holds
    report = measure(tmp_path / "run", episodes=16, environment=Questions(questions))
    assert report.held_out is not None
    assert report.held_out.holds is holds
    assert words.split(":")[0] in report.words()
    assert report.to_dict()["held_out"] == report.held_out.to_dict()


def test_the_part_that_was_trained_on_is_told_apart() -> None:
    def played(which: int, success: bool) -> Trajectory:
        turn = Turn(Observation(f"question {which}"), terminated=True)
        return Trajectory(f"t{which}", Task("any"), [turn], "terminated", f"g{which}", metrics={"success": success})

    episodes = [played(i, i < 6) for i in range(8)]
    trained = {print for i in range(5) if (print := fingerprint(episodes[i])) is not None}
    found = report_on(episodes, trained=unpacked(packed(trained))).held_out
    assert found is not None
    assert (found.instances, found.trained_on, found.unseen, found.holds) == (8, 5, 3, False)
    assert found.success == pytest.approx(1 / 3)
    assert found.words() == "NOT HELD OUT: 5 of 8 instances were also trained on"
    few = report_on(episodes, trained=set(sorted(trained)[:1])).held_out
    assert few is not None
    assert few.holds
    assert few.words() == "1 of 8 instances were also trained on"
    assert report_on(episodes).held_out is None  # nobody says what was trained on


def test_an_instance_is_what_it_shows_and_asks_for() -> None:
    def print_of(task: Task, seen: Observation, seed: int = 0) -> str | None:
        return fingerprint(Trajectory("t", task, [Turn(seen)], seed=seed))

    base = print_of(Task("a", goal="g", checks={"x": 1}), Observation("text"))
    assert print_of(Task("b", goal="g", checks={"x": 1}, seed=9), Observation("text"), seed=9) == base
    for task, seen in (
        (Task("a", goal="h", checks={"x": 1}), Observation("text")),
        (Task("a", goal="g", checks={"x": 2}), Observation("text")),
        (Task("a", goal="g", checks={"x": 1}), Observation("other")),
        (Task("a", goal="g", checks={"x": 1}), Observation("text", state_key="hidden")),
        (Task("a", goal="g", checks={"x": 1}), Observation("text", images=("picture",))),
    ):
        assert print_of(task, seen) != base


def test_letters_in_another_form_of_unicode_are_the_same_content() -> None:
    whole, apart = (unicodedata.normalize(form, "Öffne das Café") for form in ("NFC", "NFD"))
    one, other = (Task("id", "game", goal=words, checks={"text": words}) for words in (whole, apart))
    assert fingerprint_of(one, Observation(whole)) == fingerprint_of(other, Observation(apart))
    assert content_of(one) == content_of(other)


class Asked(Questions):
    """With a control that hides the question, and one that says so and does not."""

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        return {"no_instruction": Questions(None), "forgotten": self.spawn(), "constant": "7"}


def test_a_control_that_hides_nothing_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = cold(tmp_path, batch_size=32, group_size=2)
    config.environment.options = {}
    summary = train(config, 1, Asked(10**9))
    assert set(summary["controls"]) == {"no_instruction", "constant"}
    assert "control forgotten: left out" in " ".join(capsys.readouterr().out.split())
