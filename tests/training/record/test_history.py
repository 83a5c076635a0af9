"""One entry per epoch: means over the updates that have a metric."""

from __future__ import annotations

from typing import Any

from uirl.training.record.run_state import fold_row


def test_a_mean_is_over_the_rows_that_have_the_metric() -> None:
    history: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    for success in (1.0, None, 0.0):
        counts = fold_row(history, counts, {"epoch": 0, "success": success, "reward": 3.0})
    assert history == [{"epoch": 0, "updates": 3, "policy_loss": None, "success": 0.5, "reward": 3.0}]


def test_a_metric_that_is_left_out_counts_for_nothing_either() -> None:
    history: list[dict[str, Any]] = []
    counts = fold_row(history, {}, {"epoch": 0, "policy_loss": 4.0})
    counts = fold_row(history, counts, {"epoch": 0})
    counts = fold_row(history, counts, {"epoch": 0, "policy_loss": 1.0})
    assert history[0]["policy_loss"] == 2.5


def test_a_new_epoch_counts_anew() -> None:
    history: list[dict[str, Any]] = []
    counts = fold_row(history, {}, {"epoch": 0, "success": 1.0})
    counts = fold_row(history, counts, {"epoch": 1, "success": 0.0})
    fold_row(history, counts, {"epoch": 1, "success": 1.0})
    assert [entry["success"] for entry in history] == [1.0, 0.5]
