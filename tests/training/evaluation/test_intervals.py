"""Every interval of a share is by instance: whoever tells it counts episodes of one instance that end alike as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from uirl.integrations.verl.record import EndedEpisodes, StepRecord
from uirl.metrics import clustered_interval
from uirl.storage import TrajectoryStore
from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.record import row_of
from uirl.types import Observation, Task, Trajectory, Turn
from uirl.verification.hybrid import JUDGE, RULE
from uirl.verification.quality import JudgeQuality
from uirl.viewer.listing import line_of
from uirl.viewer.runs import Runs

SOLVED = [True, True, True, False]
"""Of four instances."""
ONE_EACH = clustered_interval([(solved, 1) for solved in SOLVED])


def played(tries: int, *, passes: int = 1, goals: bool = False) -> list[Trajectory]:
    """Return the episodes of four instances, all tries of an instance alike, in groups; `passes`: a list of tasks that
    came round so often."""
    made = []
    for i in range(passes * len(SOLVED)):
        which = i % len(SOLVED)
        task = Task(f"task-{which}", goal=f"goal {which}") if goals else Task("any")
        for member in range(tries):
            turn = Turn(Observation(f"question {which}"), terminated=True)
            one = Trajectory(f"g{i}-{member}", task, [turn], "terminated", group_id=f"g{i}", seed=i)
            one.metrics |= {"success": float(SOLVED[which]), RULE: float(SOLVED[which]), JUDGE: 1.0}
            made.append(one)
    return made


def of_verl(episodes: Sequence[Trajectory], folder: Path) -> Any:
    record = StepRecord(SimpleNamespace(directory=None), None)  # type: ignore[arg-type]
    record.count_held_out(EndedEpisodes(list(episodes), []))
    return record.add(1, 0, EndedEpisodes(list(episodes), []), {}, {})


def of_viewer(episodes: Sequence[Trajectory], folder: Path) -> Any:
    with TrajectoryStore(folder / "evaluations.sqlite") as store:
        store.add_many(episodes, step=1, split="test")
    (run,) = Runs([folder]).all()
    found = line_of(run)["held_out"]
    return found["low"], found["high"]


def of_judge(episodes: Sequence[Trajectory], folder: Path) -> Any:
    quality = JudgeQuality()
    for one in episodes:
        quality.add(one.task.id, one.success is True, True, one.group_id)
    return quality.report()["precision_interval"]


TOLD: dict[str, Callable[[Sequence[Trajectory], Path], Any]] = {
    "evaluation": lambda episodes, _: report_on(episodes).interval,
    "curve of the evaluation": lambda episodes, _: ends(report_on(episodes).row(), "eval/success"),
    "curve of the training": lambda episodes, _: ends(row_of(episodes, {}, {}), "success"),
    "verl's training": lambda episodes, folder: ends(of_verl(episodes, folder), "uirl/success"),
    "verl's evaluation": lambda episodes, folder: ends(of_verl(episodes, folder), "uirl/eval/success"),
    "the judge": of_judge,
    "the viewer": of_viewer,
}


def ends(row: dict[str, Any], name: str) -> tuple[float, float]:
    return row[f"{name}_low"], row[f"{name}_high"]


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("tries", [1, 16])
def test_tries_that_end_alike_are_one_observation(name: str, tries: int, tmp_path: Path) -> None:
    assert TOLD[name](played(tries), tmp_path) == pytest.approx(ONE_EACH)


def test_a_list_of_tasks_that_comes_round_is_no_more_instances() -> None:
    """Eight passes over four questions are eight tries of each, though every pass has seeds and groups of its own."""
    report = report_on(played(1, passes=8, goals=True))
    assert (report.episodes, report.instances) == (32, 4)
    assert report.interval == pytest.approx(ONE_EACH)
    assert report.words() == "75.0 % (95 %: 16.3 to 97.9), 32 of 32 judged, 32 episodes of 4 instances"
    drawn = report_on(played(1, passes=8))  # draws of the seed, of an environment that shows the same now and then
    assert drawn.instances == 32
    alike = [Trajectory(str(i), Task("any", goal="guess"), [Turn(Observation("?"))], group_id=str(i)) for i in range(9)]
    assert report_on(alike).instances == 9  # nothing but the seed tells them apart
