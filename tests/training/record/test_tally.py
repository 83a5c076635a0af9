"""Excluded episodes are counted by kind, apart from attempts that were repeated, and their worst case is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from uirl.training.evaluation.evaluation import report_on
from uirl.training.record.progress import step_line
from uirl.training.record.record import row_of
from uirl.training.record.run_state import RunState, fold_row
from uirl.training.record.tally import Tally, tally_of
from uirl.training.summary import excluded_rows, warn_of_a_fall, warn_of_excluded
from uirl.types import Failure, Task, Trajectory, Verdict


def episodes(wins: int, losses: int, **failures: int) -> list[Trajectory]:
    judged = [
        Trajectory(f"t{i}", Task("a"), [], "terminated", verdict=Verdict(float(i < wins), passed=i < wins))
        for i in range(wins + losses)
    ]
    failed = [
        Trajectory(f"{kind}{i}", Task("a"), [], "failure", failure=Failure(kind, "gone"))
        for kind, count in failures.items()
        for i in range(count)
    ]
    return judged + failed


def test_excluded_episodes_and_repeated_attempts_are_counted_apart() -> None:
    tally = tally_of(episodes(12, 4, engine=3, timeout=1), episodes(0, 0, engine=5))
    # 12 of 16 judged; with the four excluded and the five attempts before them as lost 12 of 25
    assert (tally.success, tally.success_if_lost) == (0.75, 0.48)
    assert tally.share_unseen == 9 / 25
    assert tally.words() == (
        "4 of 20 (20.0 %): engine 3, timeout 1; and 5 failed and repeated (36.0 % of all attempts are unseen); "
        "success 75.0 %, at worst 48.0 %"
    )
    assert excluded_rows({"training": tally}) == {
        "excluded, training": tally.words(),
        "failed and repeated, training": "engine 5",
    }
    assert tally.report() == {
        "episodes": 20,
        "judged": 16,
        "excluded": {"engine": 3, "timeout": 1},
        "failed_attempts": {"engine": 5},
        "success": 0.75,
        "success_if_excluded_were_lost": 0.48,
    }
    assert Tally.from_dict(tally.to_dict()) == tally


def test_what_is_no_evidence_counts_for_the_worst_case_and_for_the_warning() -> None:
    nobody = tally_of(episodes(0, 0, judge=2))
    assert (nobody.success, nobody.success_if_lost, nobody.words()) == (None, None, "2 of 2 (100.0 %): judge 2")
    assert (Tally().words(), Tally().share_unseen) == ("0 of 0", 0)
    # a policy that cannot be judged where it loses is played again until it wins: 10 wins of 19 attempts
    repeated = tally_of(episodes(10, 0), episodes(0, 0, judge=9))
    assert (repeated.success, repeated.success_if_lost, repeated.noteworthy) == (1.0, 10 / 19, True)
    assert tally_of(episodes(19, 0), episodes(0, 0, judge=1)).noteworthy is False
    slow = Tally()
    slow.add(episodes(6, 2), given_up={"straggler": 1, "surplus": 3})
    assert (slow.episodes, slow.success, slow.success_if_lost, slow.noteworthy) == (12, 0.75, 0.5, True)
    failed = Trajectory("t", Task("a"), [], "failure", verdict=Verdict(1.0, passed=True), failure=Failure("judge", "x"))
    tally = tally_of([*episodes(1, 1), failed])
    assert (tally.judged, tally.wins, tally.success) == (2, 1, 0.5), "whatever its verdict says"


@pytest.mark.parametrize(("failed", "told"), [(1, False), (2, True)])
def test_more_than_one_in_twenty_is_the_last_line(failed: int, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_excluded({"training": tally_of(episodes(20 - failed, 0, engine=failed))})
    assert ("MORE THAN 5 %" in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("after", "told"), [((0.1, 0.3), True), ((0.1, 0.4), False), ((0.5, 0.7), False), (None, False)]
)
def test_a_success_that_fell_is_told(
    after: tuple[float, float] | None, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_a_fall((0.4, 0.6), after)
    assert ("SUCCESS FELL: 40.0 % at least before, 30.0 % at most after" in capsys.readouterr().out) == told
    warn_of_a_fall(None, after)
    assert not capsys.readouterr().out


def test_what_has_no_name_is_told_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    tally = tally_of(episodes(18, 0, engine=2))
    assert excluded_rows({"": tally}) == {"excluded": tally.words()}
    warn_of_excluded({"": tally})
    assert capsys.readouterr().out.endswith(f"leave them out. {tally.words()}\n")


def test_a_run_counts_the_attempts_apart_from_the_episodes() -> None:
    state = RunState()
    for _ in range(2):
        state.add(episodes(1, 1, engine=1), episodes(0, 0, timeout=3))
    assert state.episodes == 6
    report = state.tally.report()
    assert (report["episodes"], report["excluded"], report["failed_attempts"]) == (6, {"engine": 2}, {"timeout": 6})


def test_a_state_is_plain_data_and_back() -> None:
    state = RunState(step=2, warming={"step": 2}, held_out=0.5, pending={"reward": None})
    state.add(episodes(1, 1, engine=1), [])
    again = RunState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert again == state
    assert RunState.from_dict({"step": 3}) == RunState(step=3)
    assert (again.place(), RunState(step=3).place()) == ("step 3 (after 2 steps of the warm start)", "step 3")


def test_the_history_holds_means_over_the_rows_of_an_epoch_that_have_a_metric() -> None:
    history: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for row in ({"success": 1.0, "loss": 4.0}, {"success": None}, {"success": 0.0, "loss": 1.0}):
        counts = fold_row(history, counts, {"epoch": 0, "reward": 3.0} | row)
    for success in (1.0, 0.0):
        counts = fold_row(history, counts, {"epoch": 1, "success": success})
    assert history == [
        {"epoch": 0, "updates": 3, "policy_loss": None, "success": 0.5, "loss": 2.5, "reward": 3.0},
        {"epoch": 1, "updates": 2, "policy_loss": None, "success": 0.5},
    ]


def line(**of_evaluation: Any) -> str:
    row = row_of(episodes(4, 1), {}, {}, episodes(0, 0, timeout=1), {"straggler": 2})
    return step_line(1, 1, row | {"episodes_total": 5, "time/elapsed": 1.0} | of_evaluation)


@pytest.mark.parametrize(
    ("told", "worst"),
    [
        (lambda: report_on(episodes(4, 1, engine=2)).words(), "at worst 57.1 %"),
        (lambda: line(**report_on(episodes(4, 1, engine=2)).row()), "eval 0.800 (5 of 5 judged, at worst 0.571)"),
        (line, "success 0.800 (5 of 5 judged, at worst 0.500)"),
        (lambda: tally_of(episodes(4, 1), episodes(0, 0, timeout=4)).judged_words(), "at worst 44.4 %"),
    ],
)
def test_at_worst_stands_beside_every_success_that_leaves_something_out(told: Callable[[], str], worst: str) -> None:
    assert worst in told()


def test_nothing_is_said_of_the_worst_where_nothing_is_left_out() -> None:
    report = report_on(episodes(4, 1))
    row = row_of(report.trajectories, report.row(), {}) | {"episodes_total": 5, "time/elapsed": 1.0}
    assert "worst" not in report.words() + step_line(1, 1, row)
