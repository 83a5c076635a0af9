"""The numbers of one update: how the episodes went, which tools were called, how fast the engine was."""

from __future__ import annotations

from typing import Any

import pytest

from uirl.metrics import clustered_interval
from uirl.success import UNSAID
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
    low, high = clustered_interval([(True, 1), (False, 1)])
    assert row == {
        # three usable episodes; two of them say whether they were solved, and how many tokens they took
        **{"success": 0.5, "success_low": low, "success_high": high, "success_at_worst": pytest.approx(1 / 3)},
        **{"reward": pytest.approx(1.5 / 3), "reward_max": 1.0, "reward_min": 0.0, "turns": pytest.approx(8 / 3)},
        # replies that could not be read, per turn: 1/2, 0 and 0
        **{"response_tokens": 20, "parse_error_rate": pytest.approx(0.5 / 3), "time/environment": 1.5},
        # all that were played
        **{"stop/terminated": 0.25, "stop/max_turns": 0.5, "stop/failure": 0.25},
        **{"count/evidence_episodes": 3, "count/judged_episodes": 2, "count/unsaid_episodes": 0},
        **{"count/failed_episodes": 1, "count/failures/environment": 1, "count/unseen_attempts": 1},
        **{"policy_loss": 0.25, "time/engine_prefill": 0.0, "time/engine_decode": 0.0},
    }


def numbers(row: dict[str, Any], *beginnings: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name.startswith(beginnings)}


def test_failures_are_counted_by_kind_those_that_were_repeated_too() -> None:
    attempts = [Trajectory(failure=Failure(kind, "gone")) for kind in ("engine", "environment", "engine")]
    silent = played([1.0], **{UNSAID: 1.0})
    row = row_of([silent, played([0.0], failed=True)], {}, {}, attempts, {"straggler": 2})
    assert numbers(row, "count/") == {
        **{"count/failures/engine": 2, "count/failures/environment": 2, "count/failed_attempts": 3},
        # two were given up, four failed
        **{"count/failed_episodes": 1, "count/unseen_attempts": 6, "count/unsaid_episodes": 1},
        **{"count/evidence_episodes": 1, "count/judged_episodes": 0},
    }
    assert not numbers(row_of([played([1.0])], {}, {}, []), "count/failures/", "tools/", "count/judge/")


def test_what_rules_and_judge_did_is_counted() -> None:
    def verified(failure: str = "", **metrics: float) -> Trajectory:
        one = Trajectory(metrics={f"verification/{name}": value for name, value in metrics.items()})
        one.failure = Failure("judge", failure) if failure else None
        return one

    row = row_of(
        [
            verified(),
            verified(rule=0.0, judge=1.0, asked=1.0),
            verified(rule=1.0, judge=1.0, asked=1.0),
            verified(rule=1.0, judge=0.0, asked=1.0),
            verified(rule=0.0, saved=1.0),
            verified(asked=0.0, nobody=1.0),
            verified("judge server: down", asked=1.0, no_answer=1.0),
        ],
        {},
        {},
        [verified("hm", asked=1.0, no_answer=1.0)],
    )
    assert numbers(row, "count/judge/") == {
        **{"count/judge/asked": 5.0, "count/judge/saved": 1.0, "count/judge/disagreed": 2.0},
        **{"count/judge/nobody": 1.0, "count/judge/no_answer": 2.0},
        **{"count/judge/failed/server": 1.0, "count/judge/failed/other": 1.0},
    }
    for name in ("rule", "asked", "nobody"):  # each alone says that the episodes were verified
        assert len(numbers(row_of([verified(**{name: 0.0})], {}, {}), "count/judge/")) == 5


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({}, {"time/engine_prefill": 0.0, "time/engine_decode": 0.0}),
        (
            {"prefill_seconds": 1.0, "decode_seconds": 3.0, "generated_tokens": 200, "prefill_tokens": 30},
            {"tokens_per_second": 50.0, "cache_hit_rate": 0.0, "time/engine_prefill": 1.0, "time/engine_decode": 3.0},
        ),
        (
            {"decode_seconds": 2.0, "sleep_seconds": 0.5, "update_seconds": 0.25}
            | {"generated_tokens": 10, "prefill_tokens": 30, "reused_tokens": 90}
            | {"engines_out": 1.0, "engine_moves": 2.0, "early_swaps": 3.0},
            {"tokens_per_second": 5.0, "cache_hit_rate": 0.75, "time/engine_prefill": 0.0, "time/engine_decode": 2.0}
            | {"time/engine_sleep": 0.5, "time/engine_update": 0.25}
            | {"count/engines_out": 1.0, "count/engine_moves": 2.0, "count/early_swaps": 3.0},
        ),
        (
            {"decode_seconds": 2.0, "generated_tokens": 10},
            {"tokens_per_second": 5.0, "cache_hit_rate": None, "time/engine_prefill": 0.0, "time/engine_decode": 2.0},
        ),
    ],
)
def test_the_speed_of_the_engine(engine: dict[str, float], told: dict[str, Any]) -> None:
    row, without = (row_of([played([1.0])], {}, of) for of in (engine, {}))
    assert row == without | told


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
    assert numbers(row, "tools/") == {
        "tools/calls": pytest.approx(4 / 3),
        "tools/success_rate": 0.5,
        "tools/seconds": 0.25,
        "tools/look/calls": pytest.approx(2 / 3),
        "tools/look/success_rate": 0.5,
        "tools/add/calls": pytest.approx(1 / 3),
        "tools/add/success_rate": 1.0,
    }
