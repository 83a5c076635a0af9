"""Evidence and levels, with numbers worked by hand."""

from __future__ import annotations

import pytest

from uirl.curriculum.levels import Evidence, level_of


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
