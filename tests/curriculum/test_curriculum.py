"""Which task comes next, by how often each is solved now."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from typing import Any

import pytest

from uirl import ConfigError, Task
from uirl.curriculum import LEVELS, TaskCurriculum

ALL = ["never", "seldom", "often", "always"]
WINS = {"never": 0, "seldom": 3, "often": 7, "always": 10}


def played(**options: Any) -> TaskCurriculum:
    """Four tasks, each played ten times: one in every level."""
    made = TaskCurriculum(**{"window": 10**4, **options})
    made.register_tasks(ALL)
    for name, wins in WINS.items():
        made.update_group(name, [i < wins for i in range(10)], step=1)
    return made


def test_the_seed_documents_lines() -> None:
    made = TaskCurriculum(
        min_attempts_per_task=5,
        initial_distribution={"frontier": 0.1, "exploration": 0.3, "near_mastery": 0.4, "exploitation": 0.2},
    )
    made.register_tasks(["a", "b"])
    name = made.sample_task(difficulty_level="exploration")
    made.update_success_rate(name, success=True, step=100)
    assert (name, made.success_rate("a"), made.success_rate("b")) == ("a", 1.0, None)


def test_success_makes_levels() -> None:
    assert [played().level(name) for name in ALL] == list(LEVELS)


def test_new_tasks_come_in_turn_until_they_have_a_level() -> None:
    made = TaskCurriculum(min_attempts_per_task=2, new_share=1.0)
    made.register_tasks([Task("a"), Task("b"), Task("c")])
    drawn = []
    for _ in range(6):
        drawn.append(made.sample_task())
        made.update_success_rate(drawn[-1], False, step=0)
    assert drawn == ["a", "b", "c"] * 2
    assert {made.level(name) for name in "abc"} == {"exploration"}, "0 of 2: at most 1/3"


def test_new_tasks_leave_room_for_the_others() -> None:
    made = played(new_share=0.25, min_attempts_per_task=10)
    made.register_tasks([f"new{i}" for i in range(1000)])
    drawn = Counter(made.sample_task() in ALL for _ in range(400))
    assert 265 < drawn[True] < 335  # 300 expected, deviation 8.7


def test_levels_are_drawn_by_their_shares() -> None:
    made = played(initial_distribution={"frontier": 0.25, "exploitation": 0.75}, schedule="none")
    drawn = Counter(made.sample_task() for _ in range(400))
    assert set(drawn) == {"never", "always"}
    assert 265 < drawn["always"] < 335  # 300 expected, deviation 8.7


def test_the_mix_follows_mean_success() -> None:
    ends: dict[str, Any] = {"initial_distribution": {"near_mastery": 1}, "final_distribution": {"frontier": 1}}
    # ten tasks count before the mean is believed; there are four here, so the mean is (0 + .3 + .7 + 1) / 4
    made = played(**ends, schedule="success", schedule_start=0.25, schedule_end=0.75)
    assert made.mean_success == pytest.approx(0.5, abs=1e-3)
    assert made.distribution == pytest.approx(
        {"frontier": 0.5, "exploration": 0, "near_mastery": 0.5, "exploitation": 0}, abs=2e-3
    )
    for name in ALL:
        made.update_group(name, [True] * 10000, step=1)
    assert {made.sample_task() for _ in range(20)} <= set(ALL)
    assert made.distribution["frontier"] == 1.0


def test_the_mix_follows_the_updates() -> None:
    ends: dict[str, Any] = {"initial_distribution": {"near_mastery": 1}, "final_distribution": {"frontier": 1}}
    made = played(**ends, schedule="steps", schedule_start=1, schedule_end=5)
    found = []
    for step in (1, 3, 9):
        made.update_success_rate("often", True, step=step)
        found.append(made.distribution["frontier"])
    assert found == [0.0, 0.5, 1.0]


def test_few_tasks_do_not_move_the_mix() -> None:
    made = TaskCurriculum()
    made.register_tasks(str(i) for i in range(40))
    made.update_success_rate("0", True, step=0)
    assert made.mean_success == 0.1  # one of the ten that are missing


def test_a_named_level_is_asked_and_else_the_nearest() -> None:
    made = played()
    assert [made.sample_task(difficulty_level=level) for level in LEVELS] == ALL
    made.take_metrics()
    made.update_group("never", [True] * 30, step=1)
    assert made.sample_task("frontier") == "seldom"
    assert made.take_metrics()["count/levels_substituted"] == 1


def test_the_task_that_waits_longest_comes_first() -> None:
    made = TaskCurriculum(min_attempts_per_task=1)
    made.register_tasks("abc")
    for name in "bca":
        made.update_success_rate(name, True, step=0)
    assert [made.sample_task("exploitation") for _ in range(4)] == ["b", "c", "a", "b"]


def test_evidence_that_aged_brings_a_task_back() -> None:
    made = played(half_life=2.0)
    assert made.level("always") == "exploitation"
    made.update_success_rate("often", False, step=9)
    for _ in range(2):
        made.sample_task()
    assert made.level("always") == "near_mastery"


def test_a_task_that_is_never_heard_of_does_not_hold_up_the_others() -> None:
    made = played(min_attempts_per_task=4, new_share=1.0)
    made.register_tasks(["broken"])
    for _ in range(4):
        assert [made.sample_task() for _ in range(9)].count("broken") == 1, "once in an update is enough"
        made.update_success_rate("often", True, step=2)


def history(made: TaskCurriculum, draws: int, start: int = 0) -> list[str]:
    """Play `draws` groups whose outcomes follow from the task and the number of the draw."""
    drawn = []
    for at in range(start, start + draws):
        name = made.sample_task()
        drawn.append(name)
        outcome = random.Random(f"{name}:{at}")
        rate = int(name) % 7 / 6
        outcomes = [outcome.random() < rate for _ in range(4)]
        made.update_group(name, outcomes, step=at // 4, signal=len(set(outcomes)) > 1)
    return drawn


def made_of_forty(seed: int = 3) -> TaskCurriculum:
    made = TaskCurriculum(seed=seed, half_life=5.0)
    made.register_tasks(str(i) for i in range(40))
    return made


@pytest.mark.parametrize("at", [1, 30, 150, 333])
def test_it_continues_with_the_same_draws_and_numbers(at: int) -> None:
    whole, first, second = made_of_forty(), made_of_forty(), made_of_forty()
    expected = history(whole, 500)
    assert len(set(expected)) == 40
    found = history(first, at)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found += history(second, 500 - at, at)
    assert found == expected
    assert second.state_dict() == whole.state_dict()
    assert second.take_metrics() == whole.take_metrics()
    assert history(made_of_forty(seed=4), 500) != expected


def test_the_state_is_data_of_its_own() -> None:
    made = made_of_forty()
    history(made, 50)
    state = made.state_dict()
    kept = json.dumps(state)
    history(made, 50, 50)
    assert json.dumps(state) == kept
    made.load_state_dict(state)
    assert json.dumps(made.state_dict()) == kept, "back where it was"


def test_tasks_come_and_go_between_two_runs(caplog: pytest.LogCaptureFixture) -> None:
    made = played()
    later = TaskCurriculum()
    later.register_tasks(["often", "another"])
    with caplog.at_level(logging.WARNING):
        later.load_state_dict(made.state_dict())
    assert "3 tasks that are not registered" in caplog.text
    assert (later.level("often"), later.level("another")) == ("near_mastery", "new")
    assert later.mean_success == pytest.approx(0.7 / 2, abs=1e-3)
    alone = TaskCurriculum()
    alone.load_state_dict(made.state_dict())
    assert [alone.level(name) for name in ALL] == list(LEVELS)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("queues"),
        lambda state: state["evidence"].pop("wins"),
        lambda state: state["evidence"]["wins"].pop(),
        lambda state: state["queues"]["new"].append(99),
        lambda state: state["queues"]["new"].append(0),
        lambda state: state["tally"].pop("draws"),
    ],
)
def test_what_is_no_state_is_refused(spoil: Any) -> None:
    state = played().state_dict()
    spoil(state)
    with pytest.raises((KeyError, ValueError)):
        TaskCurriculum().load_state_dict(state)


def test_numbers_are_told_per_level() -> None:
    made = played()
    made.take_metrics()
    for _ in range(3):
        made.sample_task("frontier")
    made.sample_task("exploitation")
    made.update_group("never", [False, False], step=2, signal=False)
    made.update_group("never", [False, True], step=2, signal=True)
    row = made.take_metrics()
    assert row["curriculum/frontier/tasks"] == 1
    assert row["curriculum/frontier/drawn"] == 0.75
    assert row["curriculum/frontier/success"] == 0.25
    assert row["curriculum/frontier/live_groups"] == 0.5
    assert row["curriculum/exploitation/success"] is None
    again = made.take_metrics()
    assert "curriculum/frontier/drawn" not in again, "numbers are those since the last call"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial_distribution": {"frontier": -1}}, r"curriculum\.initial_distribution.*got -1"),
        ({"initial_distribution": {"frontiers": 1}}, "did you mean 'frontier'"),
        ({"final_distribution": {"frontier": 0}}, "no task can be drawn"),
        ({"window": 0}, r"curriculum\.window: got 0, expected whole number >= 1"),
        ({"windows": 3}, "did you mean 'curriculum.window'"),
        ({"schedule_start": 0.9}, "schedule_end must be above"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskCurriculum(**options)


def test_what_is_no_task_level_or_outcome_is_refused() -> None:
    made = TaskCurriculum()
    with pytest.raises(ConfigError, match=r"call register_tasks"):
        made.sample_task()
    with pytest.raises(ConfigError, match="got the task 3"):
        made.register_tasks([3])
    made.register_tasks(["a"])
    with pytest.raises(ConfigError, match="did you mean 'frontier'"):
        made.sample_task("frontir")
    with pytest.raises(ValueError, match="got the outcome None, expected True or False"):
        made.update_success_rate("a", None, step=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got step -1"):
        made.update_success_rate("a", True, step=-1)
    assert made.success_rate("a") is None
