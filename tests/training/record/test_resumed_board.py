"""The board of a resumed run goes on where it was."""

from __future__ import annotations

from pathlib import Path

from tests.training.test_loop import cold, train
from uirl.training.record.board import Board
from uirl.training.record.progress import shown_on, tell_earlier


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
