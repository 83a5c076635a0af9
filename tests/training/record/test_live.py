"""A board in a real terminal: whatever else is written, it stands once, whole and at the bottom."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.training.record.terminal import played, resize
from uirl.training.record import progress
from uirl.training.record.progress import live_board

pytestmark = pytest.mark.actors

BEGIN = """
import logging, os, sys, time, warnings
kept = logging.getLogger("kept")
kept.addHandler(logging.StreamHandler(sys.stderr))
from uirl.training.record import progress
from uirl.training.record.progress import live_board

def step(n):
    row = {"success": n / 10, "reward": n / 5, "turns": 3.2, "time/elapsed": n, "episodes_total": n}
    progress.tell_step(n, 10, row, line=True)
    time.sleep(0.3)
"""
WRITES = """
with live_board("a run"):
    progress.say("GO: run directory runs/screen")
    step(1)
    kept.warning("a log line that is longer than the terminal is wide " * 3)
    step(2)
    print("printed by an environment")
    step(3)
    print("on stderr", file=sys.stderr)
    with progress.doing("saving"):
        step(4)
    progress.say("hostile \\x1b[2J\\x1b[H words")
    warnings.warn("be warned")
    step(5)
    progress.leave_board()
    progress.say("the summary")
print("the end")
"""
STOPS = """
try:
    with live_board("a run"):
        progress.say("GO")
        with progress.doing("an update"):
            step(1)
            time.sleep(60)
except KeyboardInterrupt:
    print("uirl: interrupted", file=sys.stderr)
    sys.exit(130)
"""


def test_lines_stand_above_the_board_and_the_board_stands_once() -> None:
    screen, status = played(BEGIN + WRITES)
    lines = [line.rstrip() for line in screen.lines if line.strip()]
    assert status == 0
    assert screen.cursor
    assert screen.colours
    board = lines.index("a run")
    assert "step 5/10" in lines[board + 1]
    assert lines[board + 2].split() == ["step", "success", "reward", "turns", "s"]
    assert [line.split()[0] for line in lines[board + 3 : board + 8]] == ["1", "2", "3", "4", "5"]
    assert lines[board + 8].split()[0] == "success"
    assert lines[board + 9 :] == ["the summary", "the end"]
    above = " ".join(lines[:board])
    for said in (
        "GO: run directory",
        "printed by an environment",
        "on stderr",
        "hostile \\x1b[2J\\x1b[H words",
        "be warned",
    ):
        assert above.count(said) == 1
    assert above.count("a log line") == 3


def test_ctrl_c_leaves_the_terminal_whole() -> None:
    screen, status = played(BEGIN + STOPS, meanwhile=lambda child, terminal: os.kill(child, signal.SIGINT))
    lines = [line.rstrip() for line in screen.lines if line.strip()]
    assert status == 130
    assert screen.cursor
    assert lines[-1] == "uirl: interrupted"
    assert not any("an update" in line for line in lines[-2:])


def test_a_narrow_terminal_that_gets_narrower_and_takes_no_colours() -> None:
    screen, status = played(
        BEGIN + WRITES, 48, environment={"NO_COLOR": "1"}, meanwhile=lambda child, terminal: resize(terminal, 32)
    )
    assert status == 0
    assert screen.colours == 0
    lines = [line.rstrip() for line in screen.lines if line.strip()]
    newest = len(lines) - 1 - lines[::-1].index("a run")
    assert max(map(len, lines[newest:])) <= 31
    assert [line.split()[0] for line in lines[newest + 3 : newest + 8]] == ["1", "2", "3", "4", "5"]
    assert lines[-2:] == ["the summary", "the end"]


def test_a_terminal_that_redraws_nothing_gets_lines() -> None:
    screen, status = played(BEGIN + WRITES, environment={"TERM": "dumb"})
    assert status == 0
    assert sum(line.startswith("step ") for line in screen.lines) == 5
    assert not any("a run" in line for line in screen.lines)


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stdout.isatty()
    with live_board("a run") as board:
        assert board is None
        progress.tell_step(1, 2, {"episodes_total": 3, "time/elapsed": 1.0}, line=True)
        progress.tell_step(2, 2, {"episodes_total": 3, "time/elapsed": 1.0}, line=False)
        progress.tell_progress("round", 1, 2)
        progress.leave_board()
    assert capsys.readouterr().out.splitlines() == ["step    1/2  episodes      3  reward -  turns -  - tok/s  1 s"]
