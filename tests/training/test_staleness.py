"""The staleness that is found: simulated runs whose log-prob gap grows with the age of the data."""

import itertools
import json
import random
from collections.abc import Callable

import pytest

from uirl.training.flow import LARGEST, StalenessBound, StalenessLimits

LIMITS = StalenessLimits(max_gap=0.1, min_ess=0.8)
Response = Callable[[float, int], tuple[float, float]]
"""(age of the data, update) -> (gap, effective sample size)."""


def linear(slope: float, ess: float = 0.0) -> Response:
    return lambda age, update: (slope * age, 1 - ess * age)


def play(
    controller: StalenessBound, response: Response, updates: int, reach: int = LARGEST, begin: int = 0
) -> tuple[list[int], list[str]]:
    """The bound after each update, and what was said; data are as old as the bound of `bound` updates ago allowed."""
    bounds, words, ages = [], [], [controller.bound]
    for update in range(begin, begin + updates):
        ages.append(min(max(min(controller.bound, ages[-1] + 1), ages[-1] - 1), reach))
        gap, ess = response(ages[-1], update)
        said = controller.observe({"stale/gap": gap, "stale/ess": ess, "stale/age_max": float(ages[-1])})
        if said is not None:
            words.append(said)
        bounds.append(controller.bound)
    return bounds, words


@pytest.mark.parametrize(
    ("response", "best"),
    [
        (linear(0.1 / 6.5), 6),  # the gap reaches 0.1 between the ages 6 and 7
        (linear(0.0, 0.2 / 9.5), 9),  # the effective sample size falls to 0.8 between 9 and 10
        (linear(0.1 / 1.5), 1),
        (linear(0.001), LARGEST),
    ],
)
def test_the_largest_bound_inside_the_limits_is_found_and_kept(response, best):
    bounds, _ = play(StalenessBound(limits=LIMITS), response, 600)
    late = bounds[300:]
    # one step of the margin below the limit at least, and never long above it
    assert 0.8 * best - 1 <= sorted(late)[len(late) // 2] <= best
    assert sum(bound > best for bound in late) <= 0.1 * len(late)


def cliff(edge: int, gap: float = 1.0, ess: float = 1.0) -> Response:
    """Data up to the age `edge` are close, older ones are not."""
    return lambda age, update: (0.01, 1.0) if age <= edge else (gap, ess)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        # doubles once 4 updates are seen, the data of the smaller bound gone and as old as the larger one allows;
        # falls after 4 updates that break a limit
        (
            cliff(4),
            [(1, 3), (2, 4), (4, 6), (8, 4), (4, 13), (5, 4), (4, 16), (5, 4), (4, 32), (5, 4), (4, 64), (5, 4)],
        ),
        (cliff(4, gap=0.01, ess=0.5), [(1, 3), (2, 4), (4, 6), (8, 4), (4, 13), (5, 4), (4, 16), (5, 4), (4, 32)]),
        # the gap is 0.092 at 6: less than the limit, more than the margin
        (linear(0.1 / 6.5), [(1, 3), (2, 4), (4, 6), (8, 5), (4, 13), (5, 7), (6, 100)]),
    ],
)
def test_a_search_step_by_step(response, expected):
    bounds, _ = play(StalenessBound(limits=LIMITS), response, sum(n for _, n in expected))
    assert [(bound, len(list(same))) for bound, same in itertools.groupby(bounds)] == expected


@pytest.mark.parametrize(
    ("gap", "ess", "broken", "room"),
    [
        (0.1, 0.8, "", False),
        (0.079, 0.85, "", True),
        (0.081, 1.0, "", False),
        (0.0, 0.83, "", False),
        (0.101, 1.0, "the log-prob gap of stale tokens is 0.101 nats, above actors.max_gap=0.1", False),
        (0.0, 0.79, "the effective sample size of stale tokens is 0.79, below actors.min_ess=0.8", False),
    ],
)
def test_limits_and_their_margin(gap, ess, broken, room):
    assert LIMITS.broken_by(gap, ess) == broken
    assert LIMITS.leave_room(gap, ess) is room


@pytest.mark.parametrize("seed", range(5))
def test_it_does_not_follow_noise(seed):
    noise = random.Random(seed)
    bounds, words = play(
        StalenessBound(limits=LIMITS), lambda age, update: (0.02 * age * noise.lognormvariate(0, 0.5), 1.0), 400
    )
    moves = [i for i in range(1, len(bounds)) if bounds[i] != bounds[i - 1]]
    assert len(moves) < 40
    assert min(b - a for a, b in itertools.pairwise(moves)) >= 4
    assert len(words) >= len(moves)
    assert 1 <= max(bounds[100:]) <= 8


def test_it_falls_by_halves_when_the_policy_begins_to_move_faster_and_every_move_says_why():
    controller = StalenessBound(limits=LIMITS)
    early, words = play(controller, cliff(8), 60)
    assert early[-1] == 8
    measured = "log-prob gap 0.01 of at most 0.1 nats, effective sample size 1 of at least 0.8"
    assert words[0] == f"staleness 1 -> 2: {measured}, over 4 updates"
    late, words = play(controller, cliff(0), 20, begin=60)
    assert [bound for bound, _ in itertools.groupby(late)] == [8, 4, 2]
    assert "the log-prob gap of stale tokens is 1 nats, above actors.max_gap=0.1" in words[0]


def test_a_bound_that_the_data_never_reach_is_not_raised():
    bounds, _ = play(StalenessBound(limits=LIMITS), linear(0.0001), 100, reach=3)
    assert max(bounds) == 4


def test_limits_that_cannot_be_kept_are_told_once():
    bounds, words = play(StalenessBound(limits=LIMITS), lambda age, update: (9.0, 0.1), 50)
    assert set(bounds) == {1}
    assert len(words) == 1
    assert "staleness stays 1, its least, although the log-prob gap" in words[0]


def test_updates_without_stale_data_change_nothing():
    controller = StalenessBound(limits=LIMITS)
    assert all(controller.observe({"loss": 1.0}) is None for _ in range(100))
    assert controller == StalenessBound(limits=LIMITS)


def test_a_fixed_bound_stays():
    controller = StalenessBound(7)
    bounds, words = play(controller, lambda age, update: (9.0, 0.1), 50)
    assert (set(bounds), words) == ({7}, [])
    controller.load_state_dict(StalenessBound(3, LIMITS).state_dict())
    assert controller.bound == 7


@pytest.mark.parametrize("fixed", [0, 5])
def test_a_run_whose_bound_was_given_before_says_nothing_of_the_one_to_be_found(fixed):
    controller = StalenessBound(limits=LIMITS)
    controller.load_state_dict(StalenessBound(fixed).state_dict())
    assert controller == StalenessBound(limits=LIMITS)
    controller.load_state_dict({"bound": 0})  # of checkpoints that held the bound of a synchronous run
    assert controller.bound == 1


@pytest.mark.parametrize("cut", [3, 17, 60])
def test_it_goes_on_from_a_checkpoint_as_if_there_had_been_none(cut):
    response = linear(0.1 / 6.5)
    whole, resumed = StalenessBound(limits=LIMITS), StalenessBound(limits=LIMITS)
    play(whole, response, cut)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert resumed == whole
    assert play(whole, response, 100, begin=cut) == play(resumed, response, 100, begin=cut)
