"""`processes.json` says what the engine consists of, whenever that changes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.inference.fake_engines import FakeEngine
from uirl.inference import Router
from uirl.inference.weight_files import WeightFiles
from uirl.inference.workers import RemoteEngine
from uirl.training.record.processes import PROCESSES, ProcessTable


def rows(folder: Path) -> dict[str, tuple[str, str, int]]:
    told = json.loads((folder / PROCESSES).read_text())["processes"]
    return {row["name"]: (row["role"], row["state"], row.get("starts", 1)) for row in told}


def test_engine_processes_are_followed(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "weights")
    processes = [RemoteEngine({}, files=files, name=f"engine-{n}") for n in range(2)]
    table = ProcessTable(tmp_path)
    table.follow_engine(Router([*processes, FakeEngine()], files=files))
    assert rows(tmp_path) == {
        "learner": ("learner", "running", 1),
        "engine-0": ("engine", "not started", 0),
        "engine-1": ("engine", "not started", 0),
    }
    processes[1].supervisor.incarnation = 2
    processes[1].supervisor._note("ready")
    assert rows(tmp_path)["engine-1"] == ("engine", "ready", 2)
    table.follow_engine(FakeEngine())
    table.end()
    told = json.loads((tmp_path / PROCESSES).read_text())["processes"]
    assert [(row["name"], row["role"], row["state"], row["pid"]) for row in told] == [
        ("learner", "learner", "stopped", None)
    ]
