"""What counts as balanced after chaos, worked by hand."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.chaos.report import ChaosReport, Event, balances, odd_rows, usable_below_floor
from uirl.storage.trajectories import TrajectorySummary

LEDGER = {"ordered": 20, "trained": 14, "dropped": {"stale": 3}, "failed": {"actor": 2}, "in_flight": 1}


def report(**changes: Any) -> ChaosReport:
    made = ChaosReport("runs/x", seed=3, seconds=120.0, ledger={**LEDGER, "balanced": True}, success=0.96, target=0.95)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_run_that_balances() -> None:
    found = report(
        events=[Event(12.25, "actor", "actor-1", 77, 1.5), Event(30.0, "learner", "learner", 70)],
        missed=Counter(engine=4),
        too_late=Counter(node=1),
        sessions_left={"http://127.0.0.1:8000": 0},
        below_floor=3,
        stopped_because="all epochs are done",
    )
    assert (found.status(), found.problems(), found.result()) == (0, [], "balanced")
    assert found.rows() == {
        "killed": "actor 1, learner 1",
        "came back": "1 of 2",
        "not there to kill": "engine 4",
        "the run ended before": "node 1",
        "ledger": "20 ordered: 14 trained, 3 dropped (stale 3), 2 failed (actor 2), 1 in flight",
        "usable episodes in groups below floor": 3,
        "sessions left on servers": "0 on 1 servers",
        "processes left behind": 0,
        "success": "96.0 %, wanted 95.0 %",
        "the run ended because": "all epochs are done",
        "result": "balanced",
    }
    assert found.events[0].line() == "  12.2 s  actor-1 (pid 77) killed, back after 1.5 s"
    assert found.events[1].line() == "  30.0 s  learner (pid 70) killed, not seen again"
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
    assert found.status() == 1
    (problem,) = found.problems()
    assert told in problem
    assert told in found.result()


def test_a_run_that_failed_is_no_verdict() -> None:
    found = report(ended="the learner ended with status 2 by itself", processes_left=["77 (x)"])
    assert found.status() == 2
    assert found.result() == "THE RUN FAILED: the learner ended with status 2 by itself"


def test_a_ledger_is_not_believed_but_counted() -> None:
    assert balances({**LEDGER, "balanced": True})
    assert not balances({**LEDGER, "balanced": False})
    assert not balances({**LEDGER, "in_flight": 0, "balanced": True})


def test_every_row_of_the_metrics_is_counted() -> None:
    row = {"step": 1, "ledger/ordered": 8, "ledger/trained": 5, "ledger/dropped": 1, "ledger/failed": 1}
    assert odd_rows([{"step": 0}, {**row, "ledger/in_flight": 1}]) == []
    (found,) = odd_rows([{**row, "step": 2, "ledger/in_flight": 2}])
    assert found.startswith("update 2 does not balance: 8 ordered")


def episode(id: str, group: str, failure: str | None = None, split: str = "train") -> TrajectorySummary:
    return TrajectorySummary(id, 1, split, 0.0, "t", "screen", group, "terminated", 1.0, True, failure, 2, None, None)


def test_groups_below_their_floor_are_counted_over_all_updates() -> None:
    episodes = [
        episode("a0", "a"), episode("a1", "a"),
        episode("b0", "b"), episode("b1", "b", "environment"), episode("b1-r1", "b", "environment"),
        episode("c0", "c", "actor"),
        episode("e0", "e", split="eval"),
        episode("alone", ""),
    ]  # fmt: skip
    assert usable_below_floor(episodes, 2) == 2  # b0 and the one that has no group
    assert usable_below_floor(episodes, 1) == 0
    assert usable_below_floor(episodes, 3) == 4
