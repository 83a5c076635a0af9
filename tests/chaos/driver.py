"""The run under chaos: a child process that is killed and resumed, and others that are killed beside it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.chaos import processes
from tests.chaos.report import ChaosReport, Event, odd_rows, usable_below_floor
from tests.chaos.targets import LEASE, LocalServer, RayNodes
from uirl.config import ConfigStore
from uirl.errors import StorageError
from uirl.metrics import read_metrics
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.training.record.progress import say

T = TypeVar("T")

GAPS = {"actor": 10.0, "server": 15.0, "engine": 25.0, "learner": 50.0, "node": 60.0}
"""Role -> seconds between two kills of it, on average."""
_EARLY, _LATE = 0.3, 0.9
"""A kill comes in this part of its stretch, so that every role is hit and no two kills of it come at once."""
LEDGER, REPORT = "ledger.json", "chaos.json"
_LOOK = 0.1
_RESTART = 1.0
"""Seconds after which a learner or server that was killed is started again, as by a supervisor."""
_AFTERWARDS = 30.0
"""Seconds that processes may take to end after the run."""
_STUCK = 3
"""Ends in a row that chaos did not cause, after which the run counts as failed."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that will be killed, with SIGKILL."""

    at: float
    """Seconds after the run has begun."""
    role: str
    draw: float
    """0 to 1: which of those of the role there are by then."""

    def choose(self, candidates: list[T]) -> T | None:
        """Return the one that it hits; None: there is none."""
        return candidates[int(self.draw * len(candidates))] if candidates else None


def kills_of(seconds: float, seed: int) -> list[Kill]:
    """Return the kills of the first `seconds`, in their order: at least one of every role.

    The kills of a role do not depend on which other roles a run has.
    """
    kills = []
    for role, usual in GAPS.items():
        draw, gap = random.Random(f"{seed}/{role}"), min(usual, seconds)
        for i in range(int(seconds / gap)):
            at = gap * (i + draw.uniform(_EARLY, _LATE))
            kills.append(Kill(at, role, draw.random()))
    return sorted(kills, key=lambda kill: (kill.at, kill.role))


@dataclass(slots=True)
class ChaosOptions:
    """What is run, and how long it is disturbed."""

    config: ConfigStore
    run: Path
    """Its run directory."""
    command: Sequence[str]
    """Trains, and continues what was trained before."""
    seconds: float
    seed: int
    after_updates: int = 0
    """Updates of the run before the first kill, so that not all of them come in its warm start."""
    finish_seconds: float = 3600.0
    """That the run may take after the last kill."""
    servers: list[LocalServer] = field(default_factory=list)
    nodes: RayNodes | None = None
    """A cluster of Ray that the run plays on; None: chaos starts none."""


class Chaos:
    """Runs a job, kills what belongs to it, and accounts for it."""

    def __init__(self, options: ChaosOptions) -> None:
        self.options = options
        self.mark = uuid.uuid4().hex
        self.report = ChaosReport(str(options.run), options.seed, options.seconds)
        self._waiting: list[Event] = []
        """Kills of which nothing came back yet."""
        self._kills = deque(kills_of(options.seconds, options.seed))
        self._learner: subprocess.Popen[bytes] | None = None
        self._begun: float | None = None
        self._again: dict[str, float] = {}
        """Name of a server or node -> when it is started again."""
        self._own_ends = 0
        self._address = ""
        """Of the Ray cluster that chaos started; empty: it started none."""

    def execute(self) -> ChaosReport:
        """Run the job to its end. Ctrl-C ends all of it, and is raised."""
        processes.require_proc()
        try:
            for server in self.options.servers:
                server.start(self.mark)
            for server in self.options.servers:
                server.wait()
            if self.options.nodes is not None:
                self._address = self.options.nodes.start(self.mark)
            self._run()
            self.report.too_late.update(kill.role for kill in self._kills)
            if not self.report.ended and not self.report.events:
                self.report.ended = "it ended before anything was killed; chaos needs a longer job"
            self._account()
        finally:
            self._clear_up()
        return self.report

    # -- while it runs ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Start the learner, again where it was killed, until the run has come to its end."""
        started = time.monotonic()
        restart: float | None = started
        limit = self.options.seconds + self.options.finish_seconds
        while True:
            now = time.monotonic()
            if restart is not None and now >= restart:
                self._learner, restart = self._start_learner(), None
            if self._learner is not None and (status := self._learner.poll()) is not None:
                killed = any(event.role == "learner" and event.pid == self._learner.pid for event in self.report.events)
                if not killed and (status == 0 or self._gives_up(status)):
                    return
                self._learner, restart = None, now + _RESTART
            elapsed = self._elapsed(now)
            if elapsed > limit or (self._begun is None and now - started > self.options.finish_seconds):
                self.report.ended = (
                    f"it had not come to its end within {self.options.finish_seconds:g} s without a kill"
                )
                return
            while self._kills and self._begun is not None and self._kills[0].at <= elapsed:
                self._carry_out(self._kills.popleft(), elapsed)
            self._restart(now)
            self._note_who_is_back(elapsed)
            time.sleep(_LOOK)

    def _start_learner(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.options.command, *([f"ray.address={self._address}"] if self._address else [])],
            env={**os.environ, processes.MARK: self.mark},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is passed on once, not twice
        )

    def _gives_up(self, status: int) -> bool:
        """Return whether a learner that nobody killed ended so often in a row that the run has failed. One that lost
        what was killed beside it may end with words, and goes on from its checkpoint."""
        self._own_ends += 1
        say(f"chaos: the learner ended with status {status} by itself; it is started again")
        if self._own_ends < _STUCK and self._begun is not None:
            return False
        self.report.ended = f"the learner ended with status {status} by itself"
        return True

    def _elapsed(self, now: float) -> float:
        """Return the seconds since the run had come so far that its processes are killed; 0.0: it has not yet."""
        if self._begun is None and self._is_due():
            self._begun = now
        return 0.0 if self._begun is None else now - self._begun

    def _is_due(self) -> bool:
        directory = RunDirectory(self.options.run)
        if not directory.config_path.is_file():
            return False
        if self.options.after_updates == 0:
            return True
        with contextlib.suppress(StorageError):
            return len(read_metrics(directory.metrics_path)) >= self.options.after_updates
        return False

    def _carry_out(self, kill: Kill, elapsed: float) -> None:
        target = kill.choose(self._candidates(kill.role))
        if target is None or not processes.kill(target.pid, self.mark):
            self.report.missed[kill.role] += 1
            return
        event = Event(elapsed, kill.role, target.name, target.pid)
        self.report.events.append(event)
        self._waiting.append(event)
        say(f"chaos: {elapsed:.1f} s, killed {target.name} (pid {target.pid})")
        if kill.role == "learner":
            self._own_ends = 0
        if kill.role in ("server", "node"):
            self._again[target.name] = time.monotonic() + _RESTART

    def _candidates(self, role: str) -> list[processes.RunProcess]:
        """Return the processes of a role, in an order that does not depend on their numbers."""
        if role == "server":
            return [
                processes.RunProcess(server.name, role, server.process.pid)
                for server in self.options.servers
                if server.process is not None and server.process.poll() is None
            ]
        if role == "node":
            return [] if self.options.nodes is None else self.options.nodes.processes()
        if role == "learner":
            known = None if self._learner is None or self._learner.poll() is not None else self._learner.pid
            return [] if known is None else [processes.RunProcess("learner", role, known)]
        return sorted(
            (one for one in processes.read_table(self.options.run) if one.role == role), key=lambda one: one.name
        )

    def _restart(self, now: float) -> None:
        """Start servers and nodes again whose time has come."""
        nodes = [] if self.options.nodes is None else [name for name in self._again if name.startswith("node-")]
        for name in nodes:
            if self._again[name] <= now and self.options.nodes is not None:
                del self._again[name]
                self.options.nodes.start_node(name, self.mark)
        for server in self.options.servers:
            if self._again.get(server.name, float("inf")) <= now:
                del self._again[server.name]
                if server.process is not None:
                    server.process.wait(20.0)
                server.start(self.mark)

    def _note_who_is_back(self, elapsed: float) -> None:
        for event in list(self._waiting):
            if event.role == "server":
                back = any(one.name == event.name and one.answers() for one in self.options.servers)
            elif event.role == "node":
                back = any(one.name == event.name and one.pid != event.pid for one in self._candidates("node"))
            elif event.role == "learner":
                writer = processes.writer_of(self.options.run)
                back = self._learner is not None and writer == self._learner.pid and writer != event.pid
            else:
                others = processes.read_table(self.options.run)
                back = any(one.name == event.name and one.pid != event.pid for one in others)
            if back and elapsed - event.at >= _LOOK:
                event.back_after = elapsed - event.at
                self._waiting.remove(event)

    # -- afterwards ------------------------------------------------------------------------------------------------

    def _account(self) -> None:
        """Read what the run wrote, and look for what it left behind."""
        report, directory = self.report, RunDirectory(self.options.run)
        report.target = self.options.config.training.stop_at_success
        with contextlib.suppress(StorageError):
            report.ledger = directory.read_json(LEDGER)
        with contextlib.suppress(StorageError):
            summary = directory.read_json("summary.json")
            report.success, report.stopped_because = summary["success_after"], summary["stopped_because"]
        with contextlib.suppress(StorageError):
            report.odd_rows = odd_rows(read_metrics(directory.metrics_path))
        with contextlib.suppress(StorageError), TrajectoryStore(directory.trajectories_path, read_only=True) as store:
            floor = self.options.config.group_floor
            report.below_floor = usable_below_floor(store.list(split="train"), floor)
        if self.options.nodes is not None:
            self.options.nodes.stop()  # what is left behind is counted without it
        own = [server.process.pid for server in self.options.servers if server.process is not None]
        until = time.monotonic() + _AFTERWARDS
        while (left := processes.marked(self.mark, besides=own)) and time.monotonic() < until:
            time.sleep(_LOOK)
        report.processes_left = [processes.describe(pid) for pid in left]
        report.sessions_left = self._sessions_left()

    def _sessions_left(self) -> dict[str, int | None]:
        """Return the sessions on each server once those of players that were killed have run out."""
        until = time.monotonic() + 2 * LEASE
        while True:
            left = {server.url: server.sessions() for server in self.options.servers}
            if not any(count != 0 for count in left.values()) or time.monotonic() > until:
                return left
            time.sleep(1.0)

    def _clear_up(self) -> None:
        """End what is still there: the learner so that it saves; the rest at once."""
        if self._learner is not None and self._learner.poll() is None:
            say("chaos: waiting up to 60 s for the learner to save and end")
            self._learner.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._learner.wait(60.0)
        for server in self.options.servers:
            server.stop()
        if self.options.nodes is not None:
            self.options.nodes.stop()
        for pid in processes.marked(self.mark):
            processes.kill(pid, self.mark)
        with contextlib.suppress(StorageError, FileNotFoundError):
            if self.options.run.is_dir():
                RunDirectory(self.options.run).write_json(REPORT, self.report.to_dict())


def train_arguments(path: str | None, changes: Sequence[str], run: Path) -> list[str]:
    """Return the arguments of `uirl` that begin a run in the folder `run`, or continue the one that is there."""
    where = ["checkpoint.resume=auto", f"logging.runs_dir={run.parent}", f"logging.run_name={run.name}"]
    return ["train", *([] if path is None else [path]), *changes, *where]
