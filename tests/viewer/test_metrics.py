"""The metrics of a run: rows as its file grows, every peak of a long run in few points, and which charts there are."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest

from tests.patience import PATIENCE
from uirl.training.record.ledger import Ledger
from uirl.training.record.record import row_of
from uirl.types import Failure, Trajectory
from uirl.viewer import metrics, runs
from uirl.viewer.metrics import Curves, charts_of, ends_of, read_from, sampled_rows


def write(path, steps, **more):
    with path.open("a") as file:
        for step in steps:
            row = {"step": step, "time": float(step), "reward": float(step % 7)} | more.get(f"at_{step}", {})
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def short(monkeypatch):
    """Files of a few rows are long."""
    monkeypatch.setattr(metrics, "SHORT", 100)
    monkeypatch.setattr(metrics, "STRETCHES", 10)
    monkeypatch.setattr(metrics, "PATIENCE", 60.0)


def test_no_peak_of_a_long_run_is_lost(tmp_path, short):
    path = tmp_path / "metrics.jsonl"
    peaks = {"at_77": {"reward": 99.0}, "at_501": {"reward": -99.0}, "at_640": {"rare": 1.0}, "at_3": {"nan": None}}
    write(path, range(1, 1001), **peaks)
    piece = Curves(path).read(0)
    assert not piece.sample
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
    monkeypatch.setattr(metrics, "STRETCHES", 1)
    path = tmp_path / "metrics.jsonl"
    rewards = [5.0, 1.0, 9.0, 2.0, 3.0]  # stretches of 4: the low comes before the high; the newest row follows
    write(path, range(1, 6), **{f"at_{step}": {"reward": y} for step, y in enumerate(rewards, 1)})
    piece = Curves(path).read(0)
    assert [(row["step"], row["reward"]) for row in piece.rows] == [(1, 1.0), (4, 9.0), (5, 3.0)]


def test_a_short_file_is_shown_row_by_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 101))
    piece = Curves(path).read(0)
    assert (len(piece.rows), piece.sample) == (100, False)
    assert Curves(tmp_path / "none.jsonl").read(0) == read_from(tmp_path / "none.jsonl")


def test_a_file_that_grows_or_is_replaced_is_followed(tmp_path, short):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 101))
    one = Curves(path)
    assert not one.catch_up()
    write(path, range(101, 201), at_150={"reward": 50.0, "new": 1.0})
    piece = one.read(0)
    assert max(row["reward"] for row in piece.rows) == 50.0
    assert list(one.names()) == ["reward", "new"]
    fresh = tmp_path / "fresh.jsonl"
    write(fresh, range(1, 31))
    fresh.replace(path)
    piece = one.read(0)
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
    monkeypatch.setattr(metrics, "SHORT", 100)
    monkeypatch.setattr(metrics, "PATIENCE", -1.0)
    monkeypatch.setattr(metrics, "READ_AT_ONCE", 50)
    monkeypatch.setattr(runs.Indexing, "_work_on", lambda self, run: False)
    write(run / "metrics.jsonl", range(10, 4000), at_1234={"reward": 77.0})
    first = client.get("/api/runs/first/metrics").json()
    assert first["sample"] is True
    assert max(row["reward"] for row in first["rows"]) < 77.0
    again = f"/api/runs/first/metrics?since={first['next']}&sample=1"
    assert client.get(again).json()["rows"] == []
    monkeypatch.undo()
    monkeypatch.setattr(metrics, "SHORT", 100)
    deadline = time.monotonic() + PATIENCE
    while not client.get(again).json().get("restart"):  # the server reads on by itself
        assert time.monotonic() < deadline
    whole = client.get("/api/runs/first/metrics?since=0").json()
    assert "sample" not in whole
    assert max(row["reward"] for row in whole["rows"]) == 77.0
    assert len(client.get("/api/runs/first/metrics.csv").text.splitlines()) == 1 + 3 + 3990


def test_the_newest_value_is_found_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "CHUNK", 64)
    path = tmp_path / "metrics.jsonl"

    def newest() -> dict:
        return ends_of(path).evaluated or {}

    assert newest() == {}
    for step in range(1, 80):
        more = {"eval/success": 0.1} if step == 3 else {}
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "padding": "x" * (step % 17), **more}) + "\n")
        if step % 20 == 1:
            assert newest().get("step") == (3 if step >= 3 else None)
    with path.open("a") as file:
        file.write('{"step": 80, "eval/success": null}\n{"step": 81, "eval/success": 0.8')
    assert newest()["step"] == 3
    with path.open("a") as file:
        file.write("}\n")
    assert newest()["step"] == 81


# -- which charts there are ------------------------------------------------------------------------------------------


def series(names: list[str]) -> dict[str, list[str]]:
    return {chart["title"]: chart["series"] for chart in charts_of(names)}


def test_failures_are_drawn_by_kind_of_this_update_and_of_the_whole_run() -> None:
    ledger = Ledger()
    ledger.order(["a", "b", "c"])
    ledger.drop(["a"], "no signal")
    ledger.fail("b", "environment")
    row = row_of([Trajectory(failure=Failure("environment", "gone"))], ledger.row(), {})
    charts = series(list(row))
    assert "count/failures/environment" in charts["Failures"]
    assert charts["Ledger, why not trained"] == ["ledger/dropped/no_signal", "ledger/failed/environment"]
    assert charts["Ledger"] == ["ledger/trained", "ledger/dropped", "ledger/failed", "ledger/in_flight"]


def test_a_coefficient_is_no_divergence() -> None:
    charts = series(
        ["kl_loss_coef", "approx_kl", "mismatch_kl", "kl/reward", "kl_to_reference", "grad_norm", "kl_loss"]
    )
    assert charts["KL"] == ["approx_kl", "mismatch_kl", "kl/reward", "kl_to_reference"]
    assert charts["Learning"] == ["kl_loss_coef", "grad_norm"]
    assert charts["Losses"] == ["kl_loss"]


def test_every_metric_stands_in_one_chart() -> None:
    names = ["success", "success_low", "success_high", "time/collect", "time/other", "unheard/of"]
    drawn = [name for chart in charts_of(names) for name in [*chart["series"], *(chart["band"] or [])]]
    assert sorted(drawn) == sorted(names)


def test_a_phase_before_the_first_update_has_charts_and_an_axis_of_its_own() -> None:
    names = ["warm_start/step", "warm_start/loss", "warm_start/success", "warm_start/tokens", "policy_loss", "success"]
    charts = {chart["title"]: chart for chart in charts_of(names)}
    assert (charts["Success"]["series"], charts["Success"]["along"]) == (["success"], None)
    assert charts["Losses"]["series"] == ["policy_loss"]
    assert charts["Warm start, loss"]["series"] == ["warm_start/loss"]
    assert charts["Warm start, success"]["along"] == "warm_start/step"
    assert charts["more"]["series"] == ["warm_start/tokens"]
