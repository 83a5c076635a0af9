"""Very many runs: what their list costs, and that nothing of those that nobody looks at any more stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.viewer.runs import make_run, trajectory
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.viewer import runs as module


@pytest.fixture
def many(tmp_path) -> Path:
    for number in range(12):
        make_run(tmp_path / "runs" / f"run-{number}", [trajectory(f"of-{number}")])
    return tmp_path / "runs"


def open_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.append(os.readlink(entry.path))
        except OSError:  # the one by which they are listed
            continue
    return [path for path in found if path.startswith(str(folder))]


def test_a_list_of_runs_keeps_none_of_them_open(client, runs, many):
    runs.paths.append(many)
    listed = client.get("/api/runs").json()["runs"]
    assert [run["trajectories"] for run in listed if run["name"].startswith("run-")] == [1] * 12
    assert open_below(many) == []


def test_a_list_that_is_read_again_counts_what_came_and_reads_no_run_that_stands_still(client, runs, many, monkeypatch):
    runs.paths[:] = [many]
    client.get("/api/runs")
    read = []
    ends = module.ends_of
    monkeypatch.setattr(module, "ends_of", lambda path: read.append(path.parent.name) or ends(path))
    directory = RunDirectory.open(many / "run-3")
    with TrajectoryStore(directory.trajectories_path) as store:
        store.add(trajectory("another"), step=2)
    with directory.metrics_path.open("a") as file:
        file.write('{"step": 9, "success": 0.75}\n')
    listed = {run["name"]: run for run in client.get("/api/runs").json()["runs"]}
    assert (listed["run-3"]["trajectories"], listed["run-3"]["steps"]) == (2, 9)
    assert read == ["run-3"]


def test_a_look_at_a_run_that_ended_does_not_make_it_live(client, runs, run, monkeypatch):
    for file in run.iterdir():
        os.utime(file, (1e9, 1e9))
    opened = []
    store = module.TrajectoryStore
    monkeypatch.setattr(module, "TrajectoryStore", lambda *a, **k: opened.append(1) or store(*a, **k))
    for _ in range(3):
        (listed,) = client.get("/api/runs").json()["runs"]
        assert (listed["state"], listed["updated"]) == ("stopped", 1e9)
        assert (run / "trajectories.sqlite-wal").exists(), "whoever reads a store makes its log, an empty one"
    assert opened == [1]


def test_a_run_that_nobody_asks_for_any_more_is_closed_and_opened_again(client, runs, run, monkeypatch):
    assert client.get("/api/runs/first/trajectories/b").status_code == 200
    (opened,) = runs.followed()
    assert open_below(run)
    monkeypatch.setattr(module, "KEPT", -1.0)
    assert runs.followed() == []
    assert open_below(run) == []
    monkeypatch.undo()
    assert client.get("/api/runs/first/trajectories/b").json()["id"] == "b"
    assert runs.followed() == [opened]


def test_a_run_that_is_looked_at_stays_open(client, runs, run, monkeypatch):
    client.get("/api/runs/first/trajectories")
    opened = runs.get("first")
    opened.used -= module.KEPT + 1
    client.get("/api/runs/first/facets")
    assert runs.followed() == [opened]
