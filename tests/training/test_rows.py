"""The numbers of one update: how the episodes went, which tools were called, how fast the engine was."""

from __future__ import annotations

from typing import Any

import pytest

from uirl.training.record.record import row_of
from uirl.types import Failure, Observation, ToolResult, Trajectory, Turn


def played(rewards: list[float], *, stopped: str = "terminated", failed: bool = False, **metrics: float) -> Trajectory:
    failure = Failure("environment", "gone") if failed else None
    trajectory = Trajectory(stop_reason=stopped, failure=failure, metrics=dict(metrics))
    trajectory.turns = [Turn(Observation("look"), reward=reward) for reward in rewards]
    return trajectory


def calling(*results: ToolResult, failed: bool = False) -> Trajectory:
    trajectory = played([0.0], failed=failed)
    trajectory.turns = [Turn(Observation("look"), tool_results=(result,)) for result in results]
    return trajectory


def test_means_are_those_of_the_episodes_that_are_evidence() -> None:
    row = row_of(
        [
            played([0.0, 1.0], success=1.0, response_tokens=10, parse_errors=1, environment_seconds=0.5),
            played([0.0, 0.0, 0.0, 0.5], stopped="max_turns", success=0.0, response_tokens=30, environment_seconds=1.0),
            played([9.0], stopped="failure", failed=True, success=1.0, response_tokens=99, environment_seconds=9.0),
            played([0.0, 0.0], stopped="max_turns"),
        ],
        {"policy_loss": 0.25},
        {},
    )
    # three usable episodes; two of them say whether they were solved, and how many tokens they took
    assert row["success"] == 0.5
    assert row["reward"] == pytest.approx(1.5 / 3)
    assert (row["reward_max"], row["reward_min"]) == (1.0, 0.0)
    assert row["turns"] == pytest.approx(8 / 3)
    assert row["response_tokens"] == 20
    # replies that could not be read, per turn: 1/2, 0 and 0
    assert row["parse_error_rate"] == pytest.approx(0.5 / 3)
    assert row["time/environment"] == 1.5
    # all that were played
    assert {name: value for name, value in row.items() if name.startswith("stop/")} == {
        "stop/terminated": 0.25,
        "stop/max_turns": 0.5,
        "stop/failure": 0.25,
    }
    assert row["policy_loss"] == 0.25
    assert not [name for name in row if name.startswith("tools/")]


def test_failures_are_counted_by_kind_those_that_were_repeated_too() -> None:
    attempts = [Trajectory(failure=Failure(kind, "gone")) for kind in ("engine", "environment", "engine")]
    row = row_of([played([1.0]), played([0.0], failed=True)], {}, {}, attempts)
    failures = {name: value for name, value in row.items() if name.startswith("count/failures/")}
    assert failures == {"count/failures/engine": 2, "count/failures/environment": 2}
    assert not [name for name in row_of([played([1.0])], {}, {}, []) if name.startswith("count/failures/")]


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({}, {"time/engine_prefill": 0.0, "time/engine_decode": 0.0}),
        (
            {"prefill_seconds": 1.0, "decode_seconds": 3.0, "generated_tokens": 200, "prefill_tokens": 30},
            {"tokens_per_second": 50.0, "cache_hit_rate": 0.0, "time/engine_prefill": 1.0, "time/engine_decode": 3.0},
        ),
        (
            {"decode_seconds": 2.0, "generated_tokens": 10, "prefill_tokens": 30, "reused_tokens": 90},
            {"tokens_per_second": 5.0, "cache_hit_rate": 0.75, "time/engine_prefill": 0.0, "time/engine_decode": 2.0},
        ),
        (
            {"decode_seconds": 2.0, "generated_tokens": 10},
            {"tokens_per_second": 5.0, "cache_hit_rate": None, "time/engine_prefill": 0.0, "time/engine_decode": 2.0},
        ),
    ],
)
def test_the_speed_of_the_engine(engine: dict[str, float], told: dict[str, Any]) -> None:
    row = row_of([played([1.0])], {}, engine)
    speeds = ("tokens_per_second", "cache_hit_rate", "time/engine_prefill", "time/engine_decode")
    assert {name: row[name] for name in speeds if name in row} == told


def test_a_tool_has_numbers_of_its_own_once_a_call_succeeded() -> None:
    row = row_of(
        [
            calling(
                ToolResult("look", seconds=0.25), ToolResult("look", success=False, seconds=0.5), ToolResult("add")
            ),
            calling(ToolResult("invented", success=False, seconds=0.25)),
            calling(),
            calling(*[ToolResult("look")] * 9, failed=True),
        ],
        {},
        {},
    )
    tools = {name: value for name, value in row.items() if name.startswith("tools/")}
    assert tools == {
        "tools/calls": pytest.approx(4 / 3),
        "tools/success_rate": 0.5,
        "tools/seconds": 0.25,
        "tools/look/calls": pytest.approx(2 / 3),
        "tools/look/success_rate": 0.5,
        "tools/add/calls": pytest.approx(1 / 3),
        "tools/add/success_rate": 1.0,
    }
