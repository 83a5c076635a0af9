"""The schedule of kills follows from the seed alone, and misses no role."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.errors import ConfigError
from uirl.training.chaos.schedule import GAPS, Kill, kills_of


def test_two_minutes() -> None:
    kills = kills_of(120.0, seed=7)
    assert Counter(kill.role for kill in kills) == {"actor": 12, "server": 8, "engine": 4, "learner": 2, "node": 2}
    assert kills == kills_of(120.0, seed=7)
    assert kills != kills_of(120.0, seed=8)
    assert [kill.at for kill in kills] == sorted(kill.at for kill in kills)
    # the second learner dies in the second stretch of 50 s: 50 * (1 + 0.3) to 50 * (1 + 0.9)
    first, second = (kill.at for kill in kills if kill.role == "learner")
    assert 15 <= first <= 45
    assert 65 <= second <= 95


@given(st.floats(0.5, 1000.0), st.integers(0, 2**40))
def test_every_role_is_hit_in_time(seconds: float, seed: int) -> None:
    kills = kills_of(seconds, seed)
    assert {kill.role for kill in kills} == GAPS.keys()
    assert all(0 < kill.at < seconds for kill in kills)


def test_a_longer_time_begins_like_a_shorter_one() -> None:
    long = [kill for kill in kills_of(600.0, seed=1) if kill.role == "actor"]
    short = [kill for kill in kills_of(120.0, seed=1) if kill.role == "actor"]
    assert long[: len(short)] == short


@pytest.mark.parametrize(("draw", "chosen"), [(0.0, "a"), (0.34, "b"), (0.999, "c")])
def test_the_draw_chooses_among_those_there_are(draw: float, chosen: str) -> None:
    assert Kill(1.0, "actor", draw).choose(["a", "b", "c"]) == chosen
    assert Kill(1.0, "actor", draw).choose([]) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none(seconds: float) -> None:
    with pytest.raises(ConfigError, match="expected a positive number"):
        kills_of(seconds, seed=0)
