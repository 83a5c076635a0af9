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
    assert (name, made.drawn_level) == ("a", "new")
    assert (made.success_rate("a"), made.success_rate("b")) == (1.0, None)


def test_the_draws_follow_from_the_seed_and_what_was_heard() -> None:
    """All numbers of a short life: levels, the draws of them and of new tasks, metrics, report and state."""
    made = played(window=10**12, half_life=1e12)  # nothing fades
    assert [made.level(name) for name in ALL] == list(LEVELS)
    drawn = [made.sample_task() for _ in range(16)]
    assert " ".join(drawn) == (
        "often seldom seldom seldom often seldom seldom seldom always seldom always always often always never never"
    )
    assert made.drawn_level == "frontier"
    made.register_tasks(["n1", "n2"])
    drawn = [made.sample_task() for _ in range(16)]
    assert " ".join(drawn) == (
        "always n1 seldom often n2 never seldom seldom seldom often often seldom never often often seldom"
    )
    made.update_group("never", [False, True], step=2, signal=True)
    # the mean is (1/12 + .3 + .7 + 1) / 6, of the way from .3 to .8; 40 episodes and 20 wins were of new tasks
    nothing = {"success": None, "live_groups": None}
    levels = {
        "new": {"tasks": 2, "drawn": 2 / 32, "success": 20 / 40, "live_groups": None},
        "frontier": {"tasks": 1, "drawn": 4 / 32, "success": 1 / 2, "live_groups": 1.0},
        "exploration": {"tasks": 1, "drawn": 13 / 32, **nothing},
        "near_mastery": {"tasks": 1, "drawn": 8 / 32, **nothing},
        "exploitation": {"tasks": 1, "drawn": 5 / 32, **nothing},
    }
    mean = (1 / 12 + 2.0) / 6
    row = made.take_metrics()
    assert row == pytest.approx({
        "curriculum/mean_success": mean, "curriculum/progress": (mean - 0.3) / 0.5, "count/levels_substituted": 0,
        **{f"curriculum/{place}/{name}": value for place, of in levels.items() for name, value in of.items()},
    }, abs=1e-6)  # fmt: skip
    # the next row holds what came since then, the report all of it
    made.sample_task("frontier")
    made.update_group("n1", [True] * 5, step=3, signal=False)
    mean = (1 / 12 + 3.0) / 6
    sizes = {"new": 1, "frontier": 1, "exploration": 1, "near_mastery": 1, "exploitation": 2}
    assert made.take_metrics() == pytest.approx({
        "curriculum/mean_success": mean, "curriculum/progress": (mean - 0.3) / 0.5, "count/levels_substituted": 0,
        **{f"curriculum/{place}/tasks": size for place, size in sizes.items()},
        "curriculum/frontier/drawn": 1.0, "curriculum/frontier/success": None, "curriculum/frontier/live_groups": None,
        "curriculum/new/drawn": 0.0, "curriculum/new/success": 1.0, "curriculum/new/live_groups": 0.0,
    }, abs=1e-6)  # fmt: skip
    report = made.report()
    levels["new"] |= {"success": 25 / 45, "live_groups": 0.0}
    draws = {"new": 2, "frontier": 5, "exploration": 13, "near_mastery": 8, "exploitation": 5}
    assert report.pop("levels") == {
        place: pytest.approx({**of, "tasks": sizes[place], "drawn": draws[place] / 33})
        for place, of in levels.items()
    }  # fmt: skip
    assert report == pytest.approx(
        {"mean_success": mean, "progress": (mean - 0.3) / 0.5, "draws": 33, "levels_substituted": 0}, abs=1e-6
    )
    state = made.state_dict()
    evidence = state["evidence"]
    assert evidence.pop("wins") == pytest.approx([1, 3, 7, 10, 5, 0])
    assert evidence.pop("weight") == pytest.approx([12, 10, 10, 10, 5, 0])
    assert evidence == {"step": [2, 1, 1, 1, 3, 1], "attempts": [12, 10, 10, 10, 5, 0], "heard": [5, 4, 4, 4, 4, 4]}
    assert state["tasks"] == [*ALL, "n1", "n2"]
    assert state["queues"] == {
        "new": [5], "frontier": [0], "exploration": [1], "near_mastery": [2], "exploitation": [3, 4],
    }  # fmt: skip
    assert state["counts"] == pytest.approx({"step": 3, "draws": 33, "heard": 6, "tried": 5, "rates": 3 + 1 / 12})
    none: dict[str, Any] = {name: {} for name in ("draws", "episodes", "wins", "groups", "live")}
    assert state["tally"] == none | {"substituted": 0}
    assert state["total"] == {
        "draws": draws, "episodes": {"new": 45, "frontier": 2}, "wins": {"new": 25, "frontier": 1},
        "groups": {"new": 1, "frontier": 1}, "live": {"frontier": 1}, "substituted": 0,
    }  # fmt: skip


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


ENDS: dict[str, Any] = {"initial_distribution": {"near_mastery": 1}, "final_distribution": {"frontier": 1}}


def test_the_mix_follows_mean_success() -> None:
    # ten tasks count before the mean is believed; there are four here, so the mean is (0 + .3 + .7 + 1) / 4
    made = played(**ENDS, schedule="success", schedule_start=0.25, schedule_end=0.75)
    assert made.mean_success == pytest.approx(0.5, abs=1e-3)
    assert made.distribution == pytest.approx(
        {"frontier": 0.5, "exploration": 0, "near_mastery": 0.5, "exploitation": 0}, abs=2e-3
    )
    for name in ALL:
        made.update_group(name, [True] * 10000, step=1)
    assert {made.sample_task() for _ in range(20)} <= set(ALL)
    assert made.distribution["frontier"] == 1.0


@pytest.mark.parametrize(("schedule", "expected"), [("steps", [0.0, 0.5, 1.0]), ("none", [0.0, 0.0, 0.0])])
def test_the_mix_follows_the_updates(schedule: str, expected: list[float]) -> None:
    made = played(**ENDS, schedule=schedule, schedule_start=1, schedule_end=5)
    found = []
    for step in (1, 3, 9):
        made.update_success_rate("often", True, step=step)
        found.append(made.distribution["frontier"])
    assert found == expected


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
    assert [made.sample_task("frontier") for _ in range(2)] == ["seldom"] * 2
    assert made.take_metrics()["count/levels_substituted"] == 2
    new = TaskCurriculum()
    new.register_tasks(["a"])
    assert (new.sample_task("exploitation"), new.drawn_level) == ("a", "new")


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
    ("spoil", "error", "message"),
    [
        (lambda state: state["counts"].pop("heard"), KeyError, "heard"),
        (lambda state: state["evidence"]["wins"].pop(), ValueError, "is longer than argument 1"),
        (lambda state: state["queues"]["new"].append(99), ValueError, "no state of a curriculum: list index"),
        (lambda state: state["queues"]["new"].append(0), ValueError, "its queues do not hold each task once"),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(spoil: Any, error: type[Exception], message: str) -> None:
    state, made = played().state_dict(), played()
    spoil(state)
    with pytest.raises(error, match=message):
        made.load_state_dict(state)
    assert made.state_dict() == played().state_dict()


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
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: made.sample_task(), ConfigError, "call register_tasks"),
        (lambda: made.register_tasks([3]), ConfigError, "got the task 3"),
        (lambda: made.sample_task("frontir"), ConfigError, "did you mean 'frontier'"),
        (lambda: made.update_success_rate("a", None), ValueError, "got the outcome None, expected True or False"),  # type: ignore[arg-type]
        (lambda: made.update_success_rate("a", 2), ValueError, "got the outcome 2"),  # type: ignore[arg-type]
        (lambda: made.update_success_rate("a", True, step=-1), ValueError, "got step -1"),
        (lambda: made.level("a"), KeyError, "a"),
    ]
    for call, error, message in refused:
        with pytest.raises(error, match=message):
            call()
    made.update_group("a", [], step=7)
    assert (made.level("a"), made.state_dict()["counts"]["heard"]) == ("new", 0)
