"""Evidence, levels and their mix, with numbers worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.curriculum.levels import LEVELS, Evidence, level_of, mixed, progress_of, shares


def evidence(wins: int, episodes: int, *, window: int = 10**9, step: int = 0) -> Evidence:
    made = Evidence(step=step)
    for i in range(episodes):
        made.add(i < wins, step, window=window, half_life=1.0)
    return made


def test_the_newest_episode_counts_fully_and_the_others_fade() -> None:
    made = Evidence(step=0)
    # window 2: each episode halves what came before it. Won, lost, won: 1/4 + 1 of 1/4 + 1/2 + 1
    for won in (True, False, True):
        made.add(won, 0, window=2, half_life=1.0)
    assert (made.wins, made.weight, made.attempts) == (1.25, 1.75, 3)
    # two half-lives later: (1.25 / 4 / 2) of (1.75 / 4 / 2 + 1)
    made.add(False, 2, window=2, half_life=1.0)
    assert (made.wins, made.weight, made.step) == (0.15625, 1.21875, 2)


def test_the_weight_has_a_limit() -> None:
    assert evidence(0, 2000, window=20).weight == pytest.approx(20)


def test_an_interval_widens_with_time() -> None:
    made = evidence(8, 8)
    # Wilson at z = 1, n = 8, all won: n / (n + z^2)
    assert made.interval(0, half_life=1.0, z=1.0) == (pytest.approx(8 / 9), 1.0)
    assert made.interval(2, half_life=1.0, z=1.0) == (pytest.approx(2 / 3), 1.0)  # 8 / 4 episodes are left
    assert made.interval(2000, half_life=1.0, z=1.0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("wins", "episodes", "level"),
    [
        (0, 5, "frontier"),  # at most 1/6
        (1, 5, "exploration"),  # at most 0.42
        (10, 100, "frontier"),  # at most 0.134
        (5, 10, "near_mastery"),  # 1/2 is possible, and the rate is not below it
        (4, 10, "exploration"),  # 1/2 is possible: at most 0.55
        (4, 5, "near_mastery"),  # at least 0.58
        (5, 5, "exploitation"),  # at least 5/6
        (2, 2, "near_mastery"),  # at least 2/3: too few to be sure
    ],
)
def test_a_task_has_the_possible_level_nearest_to_one_half(wins: int, episodes: int, level: str) -> None:
    assert Evidence(wins=wins, weight=episodes).level(0, half_life=1.0, z=1.0) == level


def test_old_evidence_lets_a_task_come_back() -> None:
    for wins, levels in ((0, ["frontier", "exploration"]), (8, ["exploitation", "near_mastery"])):
        made = evidence(wins, 8)
        assert [made.level(step, half_life=1.0, z=1.0) for step in (0, 2)] == levels


def test_levels_of_known_rates() -> None:
    assert [level_of(rate) for rate in (0, 0.25, 0.5, 0.75, 1)] == [
        *("frontier", "exploration", "near_mastery", "exploitation", "exploitation")
    ]


def test_progress_is_cut_to_the_way() -> None:
    assert [progress_of(value, 0.25, 0.75) for value in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="end above start"):
        progress_of(1, 2, 2)


def test_the_mix_moves_from_one_distribution_to_the_other() -> None:
    mix = mixed({"frontier": 1, "exploration": 3}, {"exploitation": 2}, 0.5)
    assert mix == {"frontier": 0.125, "exploration": 0.375, "near_mastery": 0.0, "exploitation": 0.5}


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([50, 50, 0, 0], [0.1, 0.9]),  # all that is missing is nearest to exploration
        ([30, 30, 0, 40], [0.1, 0.7, 0.2]),  # not to what is solved already: there is less to learn
        ([30, 0, 30, 40], [0.1, 0.7, 0.2]),
        ([0, 30, 30, 40], [0.4, 0.4, 0.2]),
        ([45, 44, 1, 10], [0.1, 0.66, 0.04, 0.2]),  # near_mastery may get 4 x 0.01; exploration has room for the rest
        ([85, 4, 1, 10], [0.4, 0.16, 0.04, 0.4]),  # it has not, so both neighbours of the two take what is over
    ],
)
def test_what_a_level_cannot_take_goes_to_the_nearest(tasks: list[int], expected: list[float]) -> None:
    mix = {"frontier": 0.1, "exploration": 0.3, "near_mastery": 0.4, "exploitation": 0.2}
    found = shares(mix, dict(zip(LEVELS, tasks, strict=True)), 4.0)
    assert list(found.values()) == pytest.approx(expected)


def test_a_small_level_is_not_played_over_and_over() -> None:
    # 1 of 10 tasks may get 2 x 0.1 of the draws; the other level gets the rest
    found = shares({"frontier": 0.1, "exploration": 0.9}, {"frontier": 9, "exploration": 1}, 2.0)
    assert found == {"frontier": pytest.approx(0.8), "exploration": pytest.approx(0.2)}


def test_tasks_of_levels_without_a_share_are_drawn_where_there_are_no_others() -> None:
    assert shares({"frontier": 1.0}, {"exploration": 1, "exploitation": 3}, 4.0) == {
        "exploration": 0.25,
        "exploitation": 0.75,
    }
    assert shares({"frontier": 1.0}, {"frontier": 0}, 4.0) == {}


@given(
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
    st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any),
    st.floats(0.1, 20),
)
def test_shares_are_a_distribution(mix: list[float], tasks: list[int], oversampling: float) -> None:
    found = shares(dict(zip(LEVELS, mix, strict=True)), dict(zip(LEVELS, tasks, strict=True)), oversampling)
    assert sum(found.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.values())
