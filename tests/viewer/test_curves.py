"""The curves of long runs: every peak in few points, a sample at once, the whole when it was read."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from tests.patience import PATIENCE
from uirl.viewer import curves, live
from uirl.viewer.curves import Curves
from uirl.viewer.tail import read_from, sampled_rows


def write(path, steps, **more):
    with path.open("a") as file:
        for step in steps:
            row = {"step": step, "time": float(step), "reward": float(step % 7)} | more.get(f"at_{step}", {})
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def short(monkeypatch):
    """Files of a few rows are long."""
    monkeypatch.setattr(curves, "SHORT", 100)
    monkeypatch.setattr(curves, "STRETCHES", 10)
    monkeypatch.setattr(curves, "PATIENCE", 60.0)


def test_no_peak_of_a_long_run_is_lost(tmp_path, short):
    path = tmp_path / "metrics.jsonl"
    peaks = {"at_77": {"reward": 99.0}, "at_501": {"reward": -99.0}, "at_640": {"rare": 1.0}, "at_3": {"nan": None}}
    write(path, range(1, 1001), **peaks)
    piece, sample = Curves(path).opening()
    assert not sample
    assert 20 <= len(piece.rows) <= 40
    rewards = [row["reward"] for row in piece.rows]
    assert (max(rewards), min(rewards)) == (99.0, -99.0)
    assert rewards.index(99.0) < rewards.index(-99.0)
    assert [row["step"] for row in piece.rows if "rare" in row] == [577, 640]  # the ends of its stretch of 64
    assert [row["step"] for row in piece.rows] == sorted(row["step"] for row in piece.rows)
    assert piece.rows[0]["step"] == 1
    assert piece.rows[-1] == {"step": 1000, "time": 1000.0, "reward": float(1000 % 7)}
    assert read_from(path, piece.next).rows == []


def test_low_and_high_stand_in_the_order_in_which_they_came(tmp_path, short, monkeypatch):
    monkeypatch.setattr(curves, "STRETCHES", 1)
    path = tmp_path / "metrics.jsonl"
    rewards = [5.0, 1.0, 9.0, 2.0, 3.0]  # stretches of 4: the low comes before the high; the newest row follows
    write(path, range(1, 6), **{f"at_{step}": {"reward": y} for step, y in enumerate(rewards, 1)})
    piece, _ = Curves(path).opening()
    assert [(row["step"], row["reward"]) for row in piece.rows] == [(1, 1.0), (4, 9.0), (5, 3.0)]


def test_a_short_file_is_shown_row_by_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 101))
    piece, sample = Curves(path).opening()
    assert (len(piece.rows), sample) == (100, False)
    assert Curves(tmp_path / "none.jsonl").opening() == (read_from(tmp_path / "none.jsonl"), False)


def test_a_file_that_grows_or_is_replaced_is_followed(tmp_path, short):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 101))
    one = Curves(path)
    assert not one.catch_up()
    write(path, range(101, 201), at_150={"reward": 50.0, "new": 1.0})
    piece, _ = one.opening()
    assert max(row["reward"] for row in piece.rows) == 50.0
    assert list(one.names()) == ["reward", "new"]
    fresh = tmp_path / "fresh.jsonl"
    write(fresh, range(1, 31))
    fresh.replace(path)
    piece, _ = one.opening()
    assert piece.rows[-1]["step"] == 30
    assert list(one.names()) == ["reward"]


def test_a_sample_has_the_first_and_the_newest_row_and_goes_on_behind_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 5001))
    with path.open("a") as file:
        file.write('{"step": 5001')  # not finished
    piece = sampled_rows(path, 50)
    steps = [row["step"] for row in piece.rows]
    assert len(steps) in range(49, 53)
    assert (steps[0], steps[-1]) == (1, 5000)
    assert max(b - a for a, b in pairwise(steps)) < 120
    with path.open("a") as file:
        file.write(', "time": 1.0}\n')
    assert [row["step"] for row in read_from(path, piece.next).rows] == [5001]
    assert sampled_rows(tmp_path / "none.jsonl", 50).rows == []


def test_a_page_has_a_sample_first_and_is_told_when_there_is_more(client, run, monkeypatch):
    monkeypatch.setattr(curves, "SHORT", 100)
    monkeypatch.setattr(curves, "PATIENCE", -1.0)
    monkeypatch.setattr(curves, "ROWS", 50)
    monkeypatch.setattr(live.Indexing, "_work_on", lambda self, run: False)
    write(run / "metrics.jsonl", range(10, 4000), at_1234={"reward": 77.0})
    first = client.get("/api/runs/first/metrics").json()
    assert first["sample"] is True
    assert max(row["reward"] for row in first["rows"]) < 77.0
    again = f"/api/runs/first/metrics?since={first['next']}&sample=1"
    assert client.get(again).json()["rows"] == []
    monkeypatch.undo()
    monkeypatch.setattr(curves, "SHORT", 100)
    deadline = time.monotonic() + PATIENCE
    while not client.get(again).json().get("restart"):  # the server reads on by itself
        assert time.monotonic() < deadline
    whole = client.get("/api/runs/first/metrics?since=0").json()
    assert "sample" not in whole
    assert max(row["reward"] for row in whole["rows"]) == 77.0
    assert len(client.get("/api/runs/first/metrics.csv").text.splitlines()) == 1 + 3 + 3990


def test_the_band_is_that_of_the_run(tmp_path):
    """By instance, as the run says it: a row that does not say it has none, since its episodes share instances."""
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"step": 1, "success": 0.5, "count/judged_episodes": 4, "success_low": 0.1, "success_high": 0.9},
        {"step": 2, "success": 0.5, "count/judged_episodes": 4, "trajectories": 8},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bands = [(row.get("success_low"), row.get("success_high")) for row in read_from(path).rows]
    assert bands == [(0.1, 0.9), (None, None)]
