"""`processes.json` says which processes work on a run, whenever that changes."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.inference.fake_engines import FakeEngine
from uirl.inference import Router
from uirl.inference.weight_files import WeightFiles
from uirl.inference.workers import RemoteEngine
from uirl.training.record.processes import PROCESSES, ProcessTable


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads((folder / PROCESSES).read_text())["processes"]}


def test_the_table_of_processes(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    seat: Any = SimpleNamespace(name="actor-0", state="ready", pid=12, since=1.0, incarnation=2, host=None, node="n")
    table.set("actor", [seat])
    found = rows(tmp_path)
    assert found["learner"]["role"] == "learner"
    assert found["actor-0"] == {
        **{"name": "actor-0", "role": "actor", "state": "ready", "pid": 12, "host": socket.gethostname()},
        **{"node": "n", "since": 1.0, "starts": 2},
    }
    written = (tmp_path / PROCESSES).stat().st_mtime_ns
    table.set("actor", [seat])
    assert (tmp_path / PROCESSES).stat().st_mtime_ns == written, "what did not change is not written again"
    seat.host, seat.state = "another-machine", "lost"
    table.set("actor", [seat])
    table.end()
    assert [(row["state"], row["pid"], row["host"]) for row in rows(tmp_path).values()] == [
        ("stopped", None, socket.gethostname()),
        ("lost", None, "another-machine"),
    ]


def test_engine_processes_are_followed(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "weights")
    processes = [RemoteEngine({}, files=files, name=f"engine-{n}") for n in range(2)]
    table = ProcessTable(tmp_path)
    table.follow_engine(Router([*processes, FakeEngine()], files=files))
    assert {name: (row["role"], row["state"]) for name, row in rows(tmp_path).items()} == {
        "learner": ("learner", "running"),
        "engine-0": ("engine", "not started"),
        "engine-1": ("engine", "not started"),
    }
    processes[1].supervisor.incarnation = 2
    processes[1].supervisor._note("ready")
    row = rows(tmp_path)["engine-1"]
    assert (row["state"], row["starts"]) == ("ready", 2)
