"""What a board shows: as many columns as fit, curves, how long it takes; None and missing numbers are no zeros."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.test_loop import cold, train
from uirl.training.record import board as module
from uirl.training.record.board import Board, Progress, clock, sparkline
from uirl.training.record.progress import shown_on, tell_earlier


def row(step: int, **more: Any) -> dict[str, Any]:
    numbers = {"success": step / 10, "reward": step / 5, "turns": 3.2, "entropy": 1.25, "approx_kl": 0.003}
    return numbers | {"time/collect": 1.5, "time/update": 0.5, "tokens_per_second": 1234.4} | more


def drawn(board: Board, width: int = 100, height: int = 30, activity: str | None = None, **options: Any) -> list[str]:
    return [line.plain for line in board.lines(activity, width, height, **options)]


def filled(steps: int = 10) -> Board:
    board = Board("screen  grpo")
    for step in range(1, steps + 1):
        board.advance("step", step, 40)
        board.add(step, row(step))
    return board


def test_a_sparkline_goes_from_low_to_high() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 1], 8, plain=True) == "_@"
    assert sparkline([0.5, 0.5], 8) == "▁▁"
    assert sparkline([0.5, 0.5], 8, low=0, high=1) == "▅▅"  # 0.5 x 7 = 3.5, rounded to the even 4
    assert sparkline([0, 0, 1, 1], 2) == "▁█"  # means of two each
    assert sparkline([2.0, -1.0], 2, low=0, high=1) == "█▁"
    assert sparkline([], 8) == sparkline([1.0], 0) == ""


@pytest.mark.parametrize(
    ("seconds", "words"), [(7.9, "0:07"), (247, "4:07"), (3847, "1:04:07"), (2 * 86400 + 11047, "2 d 3:04")]
)
def test_times_are_read_like_a_clock(seconds: float, words: str) -> None:
    assert clock(seconds) == words


def test_the_rest_takes_as_long_as_the_newest_steps_say_or_until_the_limit() -> None:
    progress = Progress("step", 0, 40)
    progress.advance(0, now=100.0)
    assert progress.remaining(now=100.0) is None, "nothing is known of its pace"
    progress.advance(4, now=108.0)
    assert progress.remaining(now=108.0) == 72.0  # 36 steps of 2 s
    assert progress.remaining(now=118.0) == 62.0
    progress.limit = 50.0
    assert progress.remaining(now=118.0) == 40.0  # 50 s were left 10 s ago
    progress.spent = 20.0
    assert progress.remaining(now=118.0) == 20.0
    progress.advance(40, now=200.0)
    assert progress.remaining(now=200.0) is None
    new = Progress("step", 0, 40, limit=50.0)
    new.advance(0, now=100.0)
    assert new.remaining(now=107.0) == 43.0, "of the limit alone, where nothing is known of the pace"


ODD = {"eval/success": 0.5, "count/failed_episodes": 2.0, "clip_fraction": 0.1, "log_prob_gap_max": 1e-4}
BAR = "  step 10/40  0:45  ETA 1:25"
HEADS = "  step  success   eval  reward  turns  entropy     kl  clip     gap  FAILED  tok/s    s"
LAST = "    10    1.000  0.500   2.000    3.2      1.2  0.003   0.1  0.0001       2   1234  2.0"


@pytest.mark.parametrize(
    ("plain", "bar", "curve", "mark"),
    [(False, "━" * 18 + "─" * 54, "▂▂▃▄▅▅▆▇▇█", "⠼"), (True, "#" * 18 + "-" * 54, "..-=++*%%@", "-")],
)
def test_a_wide_board_shows_everything(
    plain: bool, bar: str, curve: str, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 40.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    board = Board("screen  grpo", begun=now)
    for step in range(1, 11):
        now = 50.0 + 3 * step
        board.advance("step", step, 40)
        board.add(step, row(step, **(ODD if step == 10 else {})))
    now = 85.5  # 30 steps of 3 s are left, less 5.5 s
    lines = board.lines("saving, 1 s", 100, 30, plain=plain)
    rows = [
        f"{n:>6}    0.{n}00      -   {n / 5:.3f}    3.2      1.2  0.003     -       -       -   1234  2.0"
        for n in range(3, 10)
    ]
    assert [line.plain for line in lines] == [
        *("screen  grpo", bar + BAR.replace("1:25", "1:24"), HEADS, *rows, LAST),
        *(f"  success  {curve}  1.000", f"{mark} saving, 1 s"),
    ]
    assert [str(line.style) for line in lines] == ["bold", "", "bold", *[""] * 10]
    spans = {i: [(span.start, span.end, span.style) for span in line.spans] for i, line in enumerate(lines)}
    drawn = {1: [(0, 18, "green"), (18, 72, "dim")], 11: [(11, 21, "cyan")], 12: [(0, 1, "green")]}
    assert {i: found for i, found in spans.items() if found} == drawn
    # a low one has fewer rows, a narrow one fewer columns: those that count stay
    assert [line.plain for line in board.lines("saving, 1 s", 60, 8, plain=plain)][2:5] == [
        "  step  success   eval  reward  turns  entropy  FAILED    s",
        "     9    0.900      -   1.800    3.2      1.2       -  2.0",
        "    10    1.000  0.500   2.000    3.2      1.2       2  2.0",
    ]


def test_a_narrow_board_keeps_what_counts() -> None:
    last = [drawn(filled(8), width)[-1].split() for width in (23, 24)]
    assert last == [["8", "0.800", "1.600"], ["success", "▂▃▅▆", "0.800"]], "a curve of four marks is the shortest"


@pytest.mark.parametrize("width", [12, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("height", [1, 4, 8, 30])
@pytest.mark.parametrize("plain", [False, True])
def test_no_line_is_wider_and_no_board_higher_than_the_terminal(width: int, height: int, plain: bool) -> None:
    lines = drawn(filled(), width, height, "an activity with a long name " * 9, plain=plain)
    assert 1 <= len(lines) <= height
    assert max(map(len, lines)) <= width
    assert not plain or all(line.isascii() for line in lines)


def test_what_is_waited_for_may_have_lines_and_is_drawn_on_one() -> None:
    board = filled()
    board.title = "screen\tgrpo\n"
    lines = drawn(board, 60, 8, "episodes; waits for a page:\n\n\tit does\nnot answer")
    assert lines[-1].endswith("episodes; waits for a page: it does not answer")
    assert lines[0] == "screen grpo"
    assert len(lines) <= 8


def test_what_was_not_measured_is_a_dash_and_a_column_of_nothing_is_left_out() -> None:
    board = Board()
    board.add(1, {"success": None, "reward": 0.5, "eval/success": float("nan"), "turns": True})
    board.add(2, {"success": 0.25, "reward": 0.75, "count/failed_episodes": 0.0})
    lines = drawn(board)
    assert lines[0].split() == ["step", "success", "reward", "s"]
    assert lines[1].split() == ["1", "-", "0.500", "0.0"]
    board.add(3, {"count/failed_episodes": 2.0})
    assert "FAILED" in drawn(board)[0]


def test_another_stretch_of_work_begins_at_its_own_pace() -> None:
    board = Board()
    board.advance("warm start", 30, 40)
    board.advance("step", 1, 200)
    assert board.progress is not None
    assert (board.progress.what, board.progress.remaining(0.0)) == ("step", None)


def test_what_is_over_says_nothing_of_what_goes_on() -> None:
    board = filled()
    board.over = True
    assert not any("saving" in line for line in drawn(board, activity="saving"))


def test_a_run_of_a_week_keeps_no_more_than_it_shows() -> None:
    board = filled(10_000)
    assert len(board.rows) == module.ROWS
    assert len(board.curves["success"]) == module.KEPT


def watched(config, updates: int) -> Board:
    board = Board()
    with shown_on(board, lambda: None):
        train(config, updates, reward_fn=lambda trajectory: 1.0)
    return board


def test_curves_and_table_go_on_at_a_resume(tmp_path: Path) -> None:
    config = cold(tmp_path)
    config.training.eval_every = None
    config.checkpoint.save_interval = 1
    first = watched(config, 2)
    assert len(first.curves["reward"]) == 2
    config.checkpoint.resume = True
    second = watched(config, 3)
    assert list(second.curves["reward"]) == [1.0, 1.0, 1.0]
    assert [row["step"] for row in second.rows] == [1.0, 2.0, 3.0]
    assert list(second.curves["success"])[:2] == list(first.curves["success"])


def test_the_table_has_a_row_for_every_so_many_updates(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(f'{{"step": {step}, "reward": {step}.5}}\n' for step in range(1, 7)))
    board = Board()
    tell_earlier(metrics, 2)  # nobody watches
    with shown_on(board, lambda: None):
        tell_earlier(metrics, 2)
        tell_earlier(tmp_path / "none.jsonl", 2)
    assert list(board.curves["reward"]) == [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]
    assert [row["step"] for row in board.rows] == [2.0, 4.0, 6.0]
