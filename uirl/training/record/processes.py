"""`processes.json`: which processes work on a run, for people and for `make chaos`."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from uirl.inference.base import InferenceEngine
from uirl.inference.workers import supervisors_of
from uirl.runtime.files import write_atomically
from uirl.workers.supervisor import Supervisor

PROCESSES = "processes.json"


_OVER = ("stopped", "lost", "given up")
"""States without a process: a pid that was its may be another program's by now."""


class ProcessTable:
    """The file `processes.json` of the run in `folder`: the learner from the beginning, others as they come."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / PROCESSES
        self._rows: dict[str, list[dict[str, Any]]] = {"learner": [_row("learner", "learner", "running", os.getpid())]}
        self._write()

    def set(self, role: str, supervisors: Iterable[Supervisor]) -> None:
        """Write what the processes of a role are now; those that were of it before are gone."""
        rows = [
            _row(one.name, role, one.state, one.pid, one.host, node=one.node, since=one.since, starts=one.incarnation)
            for one in supervisors
        ]
        if rows != self._rows.get(role):
            self._rows[role] = rows
            self._write()

    def follow_engine(self, engine: InferenceEngine) -> None:
        """Write the processes that an engine consists of, now and whenever one of them is another."""
        supervisors = supervisors_of(engine)
        for supervisor in supervisors:
            supervisor.on_change = lambda: self.set("engine", supervisors)
        self.set("engine", supervisors)

    def end(self) -> None:
        """Write that the learner works on the run no more. One that is killed writes nothing: its pid tells."""
        self._rows["learner"] = [_row("learner", "learner", "stopped", None)]
        self._write()

    def _write(self) -> None:
        rows = [row for group in self._rows.values() for row in group]
        write_atomically(self.path, json.dumps({"processes": rows}, indent=2) + "\n")


def _row(name: str, role: str, state: str, pid: int | None, host: str | None = None, **more: Any) -> dict[str, Any]:
    """Return what is told of a process; `host`: its machine, None where it is the learner's."""
    lives = None if state in _OVER else pid
    return {"name": name, "role": role, "state": state, "pid": lives, "host": host or socket.gethostname(), **more}
