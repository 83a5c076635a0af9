"""What the list of runs says of each: how it stands, how well it does on held-out episodes, and what it trains on."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.viewer.runs import make_run, trajectory
from uirl.metrics import clustered_interval
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Failure

PLANNED = "training:\n  num_epochs: 4\n  num_iters_per_epoch: 100\nenvironment:\n  name: screen_suite\n"


def listed(client, key: str):
    return {run["key"]: run for run in client.get("/api/runs").json()["runs"]}[key]


def old(folder: Path) -> None:
    """Let everything be written long ago."""
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))


def log(folder: Path, *rows: dict) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1e9, **row}) + "\n" for row in rows)


def test_a_run_is_live_finished_or_stopped_by_what_its_folder_says(client, run):
    path = run.parent / "other"
    make_run(path, rows=7, config=PLANNED)
    assert listed(client, "other")["state"] == "live"  # written a moment ago
    old(path)
    found = listed(client, "other")
    assert (found["state"], found["steps"], found["planned"]) == ("stopped", 7, 400)
    held = RunDirectory.create(path, PLANNED, resume=True)
    assert listed(client, "other")["state"] == "live"
    held.close()
    (path / "summary.json").write_text('{"success_after": 0.75, "success_after_interval": [0.6, 0.85], "steps": 7}')
    found = listed(client, "other")
    assert found["state"] == "finished"
    assert found["held_out"] == {"value": 0.75, "low": 0.6, "high": 0.85, "step": 7}
    assert listed(client, "first")["planned"] is None


def test_held_out_success_is_not_mixed_with_that_of_training(client, run, monkeypatch):
    monkeypatch.setattr("uirl.viewer.metrics.END", 300)
    assert (listed(client, "first")["held_out"], listed(client, "first")["training_success"]) == (None, 0.5)
    log(run, {"step": 4, "success": 0.6, "eval/success": 0.25})
    log(run, *({"step": step, "success": 0.9, "padding": "x" * 50} for step in range(5, 60)))
    found = listed(client, "first")
    assert (found["held_out"], found["training_success"]) == (
        {"value": 0.25, "low": None, "high": None, "step": 4},
        0.9,
    )
    log(run, {"step": 60, "success": 0.9, "eval/success": 0.5})
    assert listed(client, "first")["held_out"]["value"] == 0.5


def test_an_evaluation_says_its_result(client, run):
    path = run / "evaluations" / "step_000004.sqlite"
    episodes = [trajectory(f"t{i}", success=i % 4 > 0, group_id=f"g{i // 2}") for i in range(8)]
    broken = replace(trajectory("broken"), failure=Failure("environment", "lost", 0))
    with TrajectoryStore(path) as store:
        store.add_many([*episodes, broken, trajectory("unsaid", success=None)], step=4, split="test")
    os.utime(path, (1e9, 1e9))
    found = listed(client, "first.evaluations.step_000004.sqlite")
    low, high = clustered_interval([(1, 2), (2, 2), (1, 2), (2, 2), (0, 1)])  # who says nothing there has not solved it
    told = {"value": pytest.approx(6 / 9), "low": low, "high": high, "step": 4, "episodes": 9, "groups": 5}
    assert found["held_out"] == told
    assert (found["name"], found["state"], found["steps"]) == ("first/evaluations/step_000004", "recorded", 4)
    assert (found["trajectories"], found["training_success"]) == (10, None)
    assert time.time() - found["created"] < 600


def test_what_was_recorded_for_training_is_not_called_held_out(client, run):
    with TrajectoryStore(run / "episodes.sqlite") as store:
        store.add_many([trajectory("a"), trajectory("b", success=False)], step=1)
    found = listed(client, "first.episodes.sqlite")
    assert (found["held_out"], found["training_success"]) == (None, 0.5)


def test_a_metric_that_is_no_number_any_more_is_named(client, run):
    log(run, {"step": 4, "policy_loss": None, "success": 0.5}, {"step": 5, "policy_loss": float("nan"), "success": 0.5})
    assert listed(client, "first")["nonfinite"] == ["policy_loss"]
    log(run, {"step": 6, "policy_loss": 0.5})
    assert listed(client, "first")["nonfinite"] == []


def test_a_store_that_another_process_holds_keeps_nobody_waiting_long(client, run):
    make_run(run.parent / "held", [trajectory("a")])
    with closing(sqlite3.connect(run.parent / "held" / "trajectories.sqlite", isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("PRAGMA journal_mode = DELETE")
        holder.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        found = listed(client, "held")
        first = time.monotonic() - begun
        assert "busy" in found["problem"]
        assert (found["trajectories"], found["steps"]) == (None, 3)
        listed(client, "held")
        assert time.monotonic() - begun < first + 0.5, "it is not asked again at once"
        answer = client.get("/api/runs/held/trajectories")
        assert (answer.status_code, "busy" in answer.json()["error"]) == (503, True)
        assert first < 10
        assert client.get("/api/runs/held").json()["charts"] != []


def test_a_writer_waits_longer_than_a_reader(tmp_path):
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        store.add(trajectory("a"), step=1)
        holder = sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(1.5, lambda: holder.execute("COMMIT"))
        timer.start()
        store.add(trajectory("b"), step=1)
        timer.join()
        holder.close()
        assert store.count() == 2


@pytest.mark.parametrize("content", [b"", b"no database at all" * 999, b"SQLite format 3\0" + b"x" * 5000])
def test_a_damaged_store_hides_no_curves(client, run, content):
    (run / "trajectories.sqlite").write_bytes(content)
    for log_file in run.glob("trajectories.sqlite-*"):
        log_file.unlink()
    found = client.get("/api/runs/first")
    assert found.status_code == 200
    shown = found.json()
    assert [chart["title"] for chart in shown["charts"]][:2] == ["Success", "Reward"]
    assert (shown["trajectories"], shown["versions"]) == (None, None)
    assert "trajectories.sqlite" in shown["problem"]
    assert "still readable" not in shown["problem"]
