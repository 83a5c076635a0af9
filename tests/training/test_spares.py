"""Spare groups: what replays of constant and heavy-tailed times say of them."""

import json
import random

import pytest

from uirl.training.spares import (
    DURATIONS,
    ENOUGH,
    EVERY,
    WORTH,
    Replay,
    SpareGroups,
    Work,
    bought,
    choose_spares,
    replay,
    with_censored,
)

SYNCHRONOUS = Work(groups=8, members=4, slots=64, update_seconds=0.5)


def times(sigma: float, seed: int = 0, n: int = 400) -> list[float]:
    """Lognormal with the mean 1."""
    draw = random.Random(seed)
    return [draw.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(n)]


@pytest.mark.parametrize(
    ("work", "spares", "seconds", "played"),
    [
        # all at once: one time of 2 s, then the update
        (Work(groups=3, members=2, slots=6, update_seconds=0.5), 0, 2.5, 6),
        # two at a time: three rounds
        (Work(groups=3, members=2, slots=2, update_seconds=0.5), 0, 6.5, 6),
        # spares that find a place cost no time and nothing else
        (Work(groups=3, members=2, slots=8, update_seconds=0.5), 1, 2.5, 8),
        # those that find none begin when the third round ends, and are given up
        (Work(groups=3, members=2, slots=2, update_seconds=0.5), 1, 6.5, 8),
    ],
)
def test_a_synchronous_replay_of_equal_times_by_hand(work, spares, seconds, played):
    got = replay([2.0], work, spares, updates=10)
    assert got.seconds == pytest.approx(seconds)
    assert got.played == 10 * played


def test_actors_that_run_ahead_hide_the_update():
    # an update of 2 s behind episodes of 2 s on as many places: only the first one is waited for
    work = Work(groups=2, members=1, slots=2, staleness=1, update_seconds=2.0)
    assert replay([2.0], work, 0, updates=10).seconds == pytest.approx((2.0 + 10 * 2.0) / 10)
    synchronous = Work(groups=2, members=1, slots=2, update_seconds=2.0)
    assert replay([2.0], synchronous, 0, updates=10).seconds == pytest.approx(4.0)


class InTurn(list[float]):
    """Times that are drawn one after the other."""

    def __init__(self, *times: float) -> None:
        super().__init__(times)
        self._left = list(times)

    def __getitem__(self, index):
        return self._left.pop(0)


def test_what_is_too_old_is_dropped():
    # a: 0 to 5 s; b: 0 to 1, update to 2; c: 2 to 3, update to 4; d: 4 to 5. a is two updates old and dropped, e begins
    # in its stead, d is learned from until 6
    work = Work(groups=1, members=1, slots=2, staleness=1, update_seconds=1.0)
    got = replay(InTurn(5.0, 1.0, 1.0, 1.0, 1.0, 1.0), work, 0, updates=3)
    assert (got.seconds, got.played) == (2.0, 5)


def test_equal_times_need_no_spares():
    assert choose_spares([1.0] * 100, SYNCHRONOUS)[0] == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_heavy_tail_buys_spares_and_a_light_one_few(seed):
    light, *_ = choose_spares(times(0.05, seed), SYNCHRONOUS)
    heavy, without, with_them = choose_spares(times(1.5, seed), SYNCHRONOUS)
    assert light <= 1
    assert heavy >= 2
    assert without.seconds > 1.3 * with_them.seconds


def test_the_fewest_of_those_that_buy_as_much_are_chosen():
    durations = times(1.0)
    chosen, without, with_them = choose_spares(durations, SYNCHRONOUS)
    seconds = {n: replay(durations, SYNCHRONOUS, n).seconds for n in (0, 1, 2, 3, 4, 6, 8)}
    assert with_them == replay(durations, SYNCHRONOUS, chosen)
    assert without == replay(durations, SYNCHRONOUS, 0)
    best = min(seconds.values())
    assert seconds[chosen] <= best * (1 + WORTH)
    assert all(seconds[n] > best * (1 + WORTH) for n in seconds if n < chosen)


def test_the_replayed_gain_is_there_on_times_that_were_not_seen():
    chosen, without, with_them = choose_spares(times(1.2, seed=1), SYNCHRONOUS)
    fresh = [replay(times(1.2, seed=2, n=5000), SYNCHRONOUS, n, seed=3).seconds for n in (0, chosen)]
    assert fresh[0] / fresh[1] == pytest.approx(without.seconds / with_them.seconds, rel=0.35)
    assert fresh[0] > 1.1 * fresh[1]


def test_episodes_that_were_given_up_took_longer_than_those_that_ended():
    # 3 s or more: 4 or 5 in turn; 6 s or more: nobody knows, so 6
    assert with_censored([1.0, 2.0, 4.0, 5.0], [3.0, 3.0, 3.0, 6.0]) == [1, 2, 4, 5, 4, 5, 4, 6]


def test_it_chooses_once_enough_has_ended_and_says_what_it_buys():
    spares = SpareGroups(adapts=True)
    said = []
    for update in range(3 * EVERY):
        spares.note(times(1.5, seed=update, n=32))
        said.append(spares.observe(SYNCHRONOUS))
    assert next(i for i, words in enumerate(said) if words) == EVERY - 1
    assert spares.count >= 2
    words = next(filter(None, said))
    assert words.startswith("spare groups 0 -> ")
    assert " spares bought " in words


def test_what_was_given_up_counts():
    """The episodes that ended are all short, because the long ones were given up."""
    spares = SpareGroups(3, adapts=True)
    spares.note([1.0] * 200, [20.0] * 20)
    for _ in range(EVERY):
        spares.observe(SYNCHRONOUS)
    assert spares.count >= 2
    blind = SpareGroups(3, adapts=True)
    blind.note([1.0] * 200)
    for _ in range(EVERY):
        blind.observe(SYNCHRONOUS)
    assert blind.count == 0


def test_too_little_evidence_chooses_nothing():
    spares = SpareGroups(adapts=True)
    spares.note(times(2.0, n=ENOUGH - 1))
    assert [spares.observe(SYNCHRONOUS) for _ in range(50)] == [None] * 50
    assert spares.count == 0


def test_spares_go_where_the_tail_does():
    spares = SpareGroups(4, adapts=True)
    spares.note([1.0] * DURATIONS)
    said = [spares.observe(SYNCHRONOUS) for _ in range(EVERY)]
    assert spares.count == 0
    assert said[-1] == "spare groups 4 -> 0: none buys more than 3 % throughput"


def test_words():
    assert bought(3, Replay(4.96, 320), Replay(4.2, 350)) == (
        "3 spares bought 18 % throughput (4.2 instead of 4.96 s per update) for 9 % more episodes, in a replay of the "
        "times that the run's episodes took"
    )
    assert bought(1, Replay(2.0, 100), Replay(1.0, 100)).startswith("1 spare bought 100 %")


def test_a_number_that_is_given_stays():
    spares = SpareGroups(2)
    spares.note(times(2.0))
    assert [spares.observe(SYNCHRONOUS) for _ in range(50)] == [None] * 50
    spares.load_state_dict(SpareGroups(5, adapts=True).state_dict())
    assert spares.count == 2


def test_spares_that_were_given_before_are_not_those_to_be_chosen():
    spares, given = SpareGroups(adapts=True), SpareGroups(7)
    given.note(times(1.5))
    spares.load_state_dict(given.state_dict())
    assert spares.count == 0
    assert spares.state_dict()["ended"] == given.state_dict()["ended"]


def test_it_goes_on_from_a_checkpoint():
    spares, resumed = SpareGroups(adapts=True), SpareGroups(adapts=True)
    spares.note(times(1.5), [3.0, 4.0])
    for _ in range(EVERY - 3):
        spares.observe(SYNCHRONOUS)
    resumed.load_state_dict(json.loads(json.dumps(spares.state_dict())))
    assert resumed == spares
    assert [spares.observe(SYNCHRONOUS) for _ in range(5)] == [resumed.observe(SYNCHRONOUS) for _ in range(5)]
