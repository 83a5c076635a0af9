"""`processes.json`: which processes work on a run, for people and for `uirl chaos`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from uirl.runtime.files import write_atomically

PROCESSES = "processes.json"


class Worker(Protocol):
    """What is told of a process besides the learner's."""

    name: str
    state: str
    pid: int | None
    since: float
    incarnation: int


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

    def _write(self) -> None:
        rows = [row for group in self._rows.values() for row in group]
        write_atomically(self.path, json.dumps({"processes": rows}, indent=2) + "\n")


def _row(name: str, role: str, state: str, pid: int | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "role": role, "state": state, "pid": pid, **more}
