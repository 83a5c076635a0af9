"""The mix of the levels, with numbers worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.curriculum.levels import LEVELS
from uirl.curriculum.schedule import mixed, progress_of, shares


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
