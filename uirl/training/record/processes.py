"""`processes.json`: which processes work on a run, for people and for `uirl chaos`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from uirl.inference.base import InferenceEngine
from uirl.inference.processes.start import processes_of
from uirl.runtime.files import write_atomically

PROCESSES = "processes.json"


class Worker(Protocol):
    """What is told of a process besides the learner's."""

    name: str
    state: str
    since: float
    incarnation: int

    @property
    def pid(self) -> int | None: ...


class ProcessTable:
    """The file `processes.json` of the run in `folder`: the learner from the beginning, others as they come."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / PROCESSES
        self._rows: dict[str, list[dict[str, Any]]] = {"learner": [_row("learner", "learner", "running", os.getpid())]}
        self._write()

    def set(self, role: str, workers: Iterable[Worker]) -> None:
        """Write what the processes of a role are now; those that were of it before are gone."""
        rows = [_row(one.name, role, one.state, one.pid, since=one.since, starts=one.incarnation) for one in workers]
        if rows != self._rows.get(role):
            self._rows[role] = rows
            self._write()

    def follow_engine(self, engine: InferenceEngine) -> None:
        """Write the processes that an engine consists of, now and whenever one of them is another."""
        processes = processes_of(engine)
        for process in processes:
            process.on_change = lambda: self.set("engine", processes)
        self.set("engine", processes)

    def _write(self) -> None:
        rows = [row for group in self._rows.values() for row in group]
        write_atomically(self.path, json.dumps({"processes": rows}, indent=2) + "\n")


def _row(name: str, role: str, state: str, pid: int | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "state": state, "pid": pid, **more}
