"""What a run says: missing numbers are a dash, failures are loud."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from rich.console import Console

from uirl.training.record import progress
from uirl.training.record.board import Board
from uirl.training.record.progress import Activity, _Watch, percent, report_table, say, step_line
from uirl.types import Failure, Trajectory

ROW = {
    **{"episodes_total": 320, "success": 0.5, "eval/success": 0.25, "reward": 0.75, "turns": 2.25},
    **{"entropy": 1.25, "approx_kl": 0.00125, "clip_fraction": 0.0, "log_prob_gap_max": 1e-5},
    **{"count/failed_episodes": 3.0, "count/failed_attempts": 2.0, "tokens_per_second": 1234.4, "time/elapsed": 61.6},
}
COUNTED = {"count/judged_episodes": 15, "count/evidence_episodes": 16, "eval/judged_episodes": 8}
NUMBERS = "turns 2.2  entropy 1.2  kl 0.0013  clip 0  gap 1e-05  FAILED 3  repeated 2  1234 tok/s  62 s"


@pytest.mark.parametrize(
    ("more", "rates"),
    [
        ({}, "success 0.500  eval 0.250"),
        (COUNTED, "success 0.500 (15 of 16 judged)  eval 0.250"),
        (COUNTED | {"eval/evidence_episodes": 9}, "success 0.500 (15 of 16 judged)  eval 0.250 (8 of 9 judged)"),
        (
            COUNTED | {"count/unseen_attempts": 1, "success_at_worst": 0.4},
            "success 0.500 (15 of 16 judged, at worst 0.400)  eval 0.250",
        ),
    ],
)
def test_the_line_of_an_update_names_what_there_is(more: dict[str, float], rates: str) -> None:
    assert step_line(7, 40, ROW | more) == f"step    7/40  episodes    320  {rates}  reward 0.750  {NUMBERS}"


def test_what_was_not_measured_is_a_dash_or_left_out() -> None:
    row = {"episodes_total": 0, "time/elapsed": 0.0, "success": None, "count/failed_episodes": 0}
    assert step_line(1, 1, row) == "step    1/1  episodes      0  reward -  turns -  - tok/s  0 s"


def test_success_with_its_interval() -> None:
    assert percent(0.93) == "93.0 %"
    assert percent(0.93, (0.891, 0.9564)) == "93.0 % (95 %: 89.1 to 95.6)"
    assert percent(None, (0.1, 0.2)) == "-"
    assert percent(0.0) == "0.0 %"


def test_tables_are_aligned_and_markup_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    report_table("run [bold]x[/bold]", {"a": 1, "longer name": "[red]2[/red]"})
    say("")
    assert capsys.readouterr().out == "run [bold]x[/bold]\n  a            1\n  longer name  [red]2[/red]\n\n"


def test_a_table_of_10_000_tasks_leaves_room_for_what_was_said_before(capsys: pytest.CaptureFixture[str]) -> None:
    report_table("per task", {f"t-{i}": i for i in range(10_000)})
    title, *rows = capsys.readouterr().out.splitlines()
    assert title == "per task (the first 100 of 10000; --json has all)"
    assert [row.split() for row in rows] == [[f"t-{i}", f"{i}"] for i in range(100)]
    report_table("per task", {f"t-{i}": i for i in range(101)})
    assert capsys.readouterr().out.startswith("per task (the first 100 of 101;")


def test_any_name_in_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report_table("per task", {"a\nbelieved alone  True": 1, "\x1b[31mred": 2, "x" * 100_000: 3, "y": 4})
    assert capsys.readouterr().out.splitlines() == [
        "per task",
        f"  {'a' + chr(92) + 'nbelieved alone  True':<80}  1",
        f"  {chr(92) + 'x1b[31mred':<80}  2",
        f"  {'x' * 77 + '...'}  3",
        f"  {'y':<80}  4",
    ]


def test_what_is_waited_for_is_named() -> None:
    activity = Activity("episodes of update 3", 256)
    activity.done = 96
    assert activity.line(activity.started + 23) == "episodes of update 3: 96 of 256 episodes, 23 s"
    activity.waits_for = lambda: "group a, ordered 40 s ago"
    assert activity.line(activity.started + 23).endswith("23 s; waits for group a, ordered 40 s ago")


def test_silence_is_ended_by_what_goes_on_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "IN_A_FILE", 0.0)
    watch = _Watch()
    watch.last_words, watch.busy_since = 100.0, 95.0
    assert watch.look(200.0) is None, "nothing goes on"
    outer, inner = Activity("update 3", None), Activity("evaluation test", 256)
    outer.started, inner.started, inner.done = 95.0, 104.0, 96
    watch.activities = [outer, inner]
    assert watch.look(109.9) is None
    assert watch.look(127.0) == "evaluation test: 96 of 256 episodes, 23 s"
    watch.last_words = 120.0
    assert watch.look(127.0) is None
    watch.activities = [outer]
    assert watch.look(130.0) == "update 3, 35 s"
    watch.board = Board()
    assert watch.look(130.0) is None, "a board shows it all the time"


def test_many_short_pieces_of_work_are_heard_of_and_a_pause_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "IN_A_FILE", 0.0)
    watch = _Watch()
    watch.last_words = watch.busy_since = 0.0
    for second in range(100, 125):
        piece = Activity(f"step {second}", None)
        piece.started = float(second)
        watch.begin(piece)
        if second < 110:
            assert watch.look(second + 0.5) is None, "work began at 100, after nothing"
        else:
            assert watch.look(second + 0.5) == f"step {second}, 0 s"
        watch.end(piece)
        watch.last_end = second + 0.9


@pytest.mark.parametrize(("terminal", "said"), [(False, [10, 70, 130]), (True, [*range(10, 190, 10)])])
def test_a_file_gets_a_line_a_minute_of_what_a_terminal_shows(
    terminal: bool, said: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "console", Console(force_terminal=terminal))
    watch = _Watch()
    watch.last_words = watch.busy_since = 0.0
    watch.activities = [Activity("update 3", None)]
    told = []
    for second in range(190):
        if watch.look(float(second)) is not None:
            told.append(second)
            watch.last_words = float(second)
    assert told == said


def test_the_lines_of_updates_say_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.forget_failures()
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    for step in range(1, 5):
        now[0] += 10.0
        progress.tell_step(step, 100, ROW, line=step != 3)
    progress.tell_step(5, 100, ROW | {"time/elapsed": 120.0}, line=True, limit=150.0)
    progress.tell_step(100, 100, ROW, line=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("ETA ")[2] if "ETA" in line else None for line in lines] == [
        None,
        "16:20",
        "16:00",
        "0:30",
        None,
    ]
    progress.forget_failures()


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    say("a page \x1b[2J\x9b1A said\r \u202e\udc80, and café ✓ 你\non")
    assert capsys.readouterr().out == "a page \\x1b[2J\\x9b1A said\\r \\u202e\\udc80, and café ✓ 你\non\n"


def test_why_attempts_fail_is_said_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    progress.forget_failures()
    for number in range(1, 25):
        progress.tell_failure(Failure("environment", f"cable {number}"))
    progress.tell_failure(Failure("timeout", "it \x1b hangs"))
    assert capsys.readouterr().out.splitlines() == [
        "an attempt at an episode failed (environment): cable 1",
        "10 attempts at episodes failed (environment), the last: cable 10",
        "an attempt at an episode failed (timeout): it \\x1b hangs",
    ]


def test_a_silent_piece_of_work_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = threading.Event()
    monkeypatch.setattr(progress, "SILENCE", 0.01)
    monkeypatch.setattr(progress, "IN_A_FILE", 0.0)
    monkeypatch.setattr(progress, "say", lambda line: heard.set() if line.startswith("a slow one") else None)
    with progress.doing("a slow one"):
        assert heard.wait(30)
        heard.clear()
        with progress.doing("a short one"):
            pass
        assert heard.wait(30), "it still goes on"
    assert progress._watch._thread is None


async def test_episodes_are_counted_as_they_end_and_the_hook_stays(capsys: pytest.CaptureFixture[str]) -> None:
    class Collects:
        on_finished: Any = None

    progress.forget_failures()
    collector, kept = Collects(), []
    collector.on_finished = hook = kept.append
    lost, won = Trajectory(failure=Failure("actor", "gone")), Trajectory()
    with progress.playing("an evaluation", collector, 2):  # type: ignore[arg-type]
        activity = progress._watch.activities[-1]
        collector.on_finished(won)
        assert activity.line(activity.started) == "an evaluation: 1 of 2 episodes, 0 s"
        collector.on_finished(lost)  # and is played again
        assert activity.line(activity.started) == "an evaluation: 1 of 2 episodes, 1 attempts failed, 0 s"
    assert kept == [won, lost]
    assert collector.on_finished is hook
    assert capsys.readouterr().out == "an attempt at an episode failed (actor): gone\n"
    progress.tell_failure(Failure("actor", "gone again"))
    progress.forget_failures()
    progress.tell_failure(Failure("actor", "gone again"))
    assert capsys.readouterr().out == "an attempt at an episode failed (actor): gone again\n"
