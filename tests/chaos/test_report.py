"""What counts as balanced after chaos, worked by hand; whose processes are killed; when which are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos import processes
from tests.chaos.driver import GAPS, kills_of
from tests.chaos.report import ChaosReport, Event, balances, odd_rows, usable_below_floor
from tests.environments.remote.running import until
from uirl.storage.trajectories import TrajectorySummary

LEDGER = {"ordered": 20, "trained": 14, "dropped": {"stale": 3}, "failed": {"actor": 2}, "in_flight": 1}
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
PARENT = [sys.executable, "-S", "-c", f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"]


def report(**changes: Any) -> ChaosReport:
    made = ChaosReport("runs/x", seed=3, seconds=120.0, ledger={**LEDGER, "balanced": True}, success=0.96, target=0.95)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_run_that_balances() -> None:
    found = report(
        events=[Event(12.25, "actor", "actor-1", 77, 1.5), Event(30.0, "learner", "learner", 70)],
        missed=Counter(engine=4),
        sessions_left={"http://127.0.0.1:8000": 0},
        below_floor=3,
    )
    assert (found.status(), found.problems(), found.result()) == (0, [], "balanced")
    assert found.rows()["ledger"] == "20 ordered: 14 trained, 3 dropped (stale 3), 2 failed (actor 2), 1 in flight"
    assert (found.rows()["came back"], found.rows()["not there to kill"]) == ("1 of 2", "engine 4")
    assert found.events[0].line() == "  12.2 s  actor-1 (pid 77) killed, back after 1.5 s"
    assert json.loads(json.dumps(found.to_dict()))["status"] == 0


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ledger": None}, "there is no ledger"),
        ({"ledger": {**LEDGER, "balanced": False}}, "the ledger does not balance: 20 ordered"),
        ({"ledger": {**LEDGER, "ordered": 21, "balanced": True}}, "the ledger does not balance: 21 ordered"),
        ({"odd_rows": ["update 3 does not balance"]}, "update 3 does not balance"),
        ({"below_floor": 4}, "4 usable episodes were in groups below their floor and only 3 were dropped"),
        ({"sessions_left": {"http://a": 2, "http://b": 0}}, "sessions are left on servers: http://a 2 sessions"),
        ({"sessions_left": {"http://a": None}}, "http://a does not answer"),
        ({"processes_left": ["77 (chrome)"]}, "1 processes are left: 77 (chrome)"),
    ],
)
def test_what_does_not_balance(changes: dict[str, Any], told: str) -> None:
    found = report(**changes)
    (problem,) = found.problems()
    assert (found.status(), told in problem, told in found.result()) == (1, True, True)
    assert report(ended="it failed", **changes).status() == 2


def test_everything_is_counted_and_nothing_believed() -> None:
    assert balances({**LEDGER, "balanced": True})
    assert not balances({**LEDGER, "in_flight": 0, "balanced": True})
    row = {"step": 2, "ledger/ordered": 8, "ledger/trained": 5, "ledger/dropped": 1, "ledger/failed": 1}
    assert odd_rows([{"step": 0}, {**row, "ledger/in_flight": 1}]) == []
    assert odd_rows([{**row, "ledger/in_flight": 2}])[0].startswith("update 2 does not balance: 8 ordered")


def episode(id: str, group: str, failure: str | None = None, split: str = "train") -> TrajectorySummary:
    return TrajectorySummary(id, 1, split, 0.0, "t", "screen", group, "terminated", 1.0, True, failure, 2, None, None)


def test_groups_below_their_floor_are_counted_over_all_updates() -> None:
    episodes = [
        episode("a0", "a"), episode("a1", "a"),
        episode("b0", "b"), episode("b1", "b", "environment"), episode("c0", "c", "actor"),
        episode("e0", "e", split="eval"), episode("alone", ""),
    ]  # fmt: skip
    assert [usable_below_floor(episodes, floor) for floor in (1, 2, 3)] == [0, 2, 4]  # b0 and the one without a group


def test_only_what_inherited_the_mark_is_found_and_killed() -> None:
    mark = uuid.uuid4().hex
    subprocess.run(PARENT, env={**os.environ, processes.MARK: mark}, check=True)
    (pid,) = until(lambda: processes.marked(mark))
    assert "time.sleep(600)" in processes.describe(pid)
    assert processes.kill(pid, mark)
    until(lambda: not processes.marked(mark))
    with subprocess.Popen(SLEEP) as other:
        assert not processes.kill(other.pid, mark)
        assert other.poll() is None
        other.kill()


def test_the_table_of_a_run_has_what_lives_here(tmp_path: Path) -> None:
    assert processes.read_table(tmp_path) == []
    rows = [
        {"name": "learner", "role": "learner", "pid": os.getpid()},
        {"name": "actor-1", "role": "actor", "pid": None},
        {"name": "actor-2", "role": "actor", "pid": os.getpid(), "host": "another-machine"},
    ]
    (tmp_path / "processes.json").write_text(json.dumps({"processes": rows}))
    assert [one.name for one in processes.read_table(tmp_path)] == ["learner"]


@given(st.floats(0.5, 1000.0), st.integers(0, 2**40))
def test_every_role_is_hit_in_time(seconds: float, seed: int) -> None:
    kills = kills_of(seconds, seed)
    assert {kill.role for kill in kills} == GAPS.keys()
    assert all(0 < kill.at < seconds for kill in kills)
    assert kills == kills_of(seconds, seed)
