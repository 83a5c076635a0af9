"""Confidence intervals and pass@k, with numbers worked by hand."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.metrics import by_instance, clustered_interval, mean_pass_at_k, pass_at_k, success_interval
from uirl.metrics.success_rate import student_t


def test_wilson_interval_golden():
    # p = 0.5, n = 10, z = 1.96: z^2/n = 0.38415; half = 1.96 / 1.38415 * sqrt(0.025 + 0.0096037) = 0.263413
    low, high = success_interval(5, 10)
    assert low == pytest.approx(0.236587, abs=1e-5)
    assert high == pytest.approx(0.763413, abs=1e-5)
    # 0 of 10: centre = half = 0.192073 / 1.38415, so the interval is [0, 0.277533]
    assert success_interval(0, 10) == (0.0, pytest.approx(0.277533, abs=1e-5))
    assert success_interval(10, 10) == (pytest.approx(0.722467, abs=1e-5), 1.0)


@given(n=st.integers(1, 5000), share=st.floats(0, 1))
def test_the_interval_holds_the_rate_and_mirrors(n, share):
    successes = round(share * n)
    low, high = success_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert high > low
    mirrored = success_interval(n - successes, n)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-12)


def test_the_quantiles_of_student():
    # tables: 12.706, 4.303, 3.182, 2.776, 2.262, 2.042, 1.984 for 95 %, 1.963 for 1 degree at 70 %
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 100: 1.984}
    assert {d: student_t(0.95, d) for d in table} == {d: pytest.approx(t, rel=2e-3) for d, t in table.items()}
    assert student_t(0.7, 1) == pytest.approx(1.963, rel=1e-3)
    # the expansion itself, where its last term still counts
    worked = {(0.95, 3): 3.1786169950540613, (0.99, 3): 5.794932457570617, (0.5, 4): 0.7406668416477286}
    assert {case: student_t(*case) for case in worked} == pytest.approx(worked, rel=1e-9)


def test_the_interval_by_instance_golden():
    # one try each: Wilson of 10 with t of 9 degrees = 2.2622
    assert clustered_interval([(1, 1)] * 5 + [(0, 1)] * 5) == pytest.approx(success_interval(5, 10, 2.2622), abs=1e-4)
    # 3, 1, 4, 0 of 4: p = .5, share = (1 + 1 + 4 + 4) / (.25 * 64) = .625, effective n = 4 * 6 / (4 * .625 + 2) = 5.333
    assert clustered_interval([(3, 4), (1, 4), (4, 4), (0, 4)]) == pytest.approx(
        success_interval(5.3333 / 2, 5.3333, 3.1786), abs=1e-4
    )
    assert by_instance([("a", True), ("b", False), ("a", False)]) == [(1, 2), (0, 1)]
    assert clustered_interval([(64, 64)]) == clustered_interval([(7, 900), (1, 1)]) == (0.0, 1.0)  # one instance


@given(outcomes=st.lists(st.booleans(), min_size=2, max_size=300), tries=st.sampled_from([1, 4, 64]))
def test_tries_that_end_alike_are_worth_one(outcomes, tries):
    """A greedy policy: n is the number of instances, also where everything or nothing is solved."""
    alike = clustered_interval([(won * tries, tries) for won in outcomes])
    assert alike == pytest.approx(clustered_interval([(won, 1) for won in outcomes]), abs=1e-9)
    low, high = alike
    assert 0 <= low <= sum(outcomes) / len(outcomes) <= high <= 1
    assert high - low > 1 / len(outcomes) ** 2


def test_independent_tries_are_worth_their_number():
    """Every instance solved in half of its tries: nothing but the draws of the policy differs."""
    low, high = clustered_interval([(8, 16)] * 256)
    assert high - low < 1.1 * (success_interval(2048, 4096)[1] - success_interval(2048, 4096)[0])


PRIORS = {
    "uniform": (1.0, 1.0),
    "alike": (30.0, 30.0),
    "mostly all or nothing": (0.2, 0.2),
    "mostly solved": (9.0, 1.0),
}


@pytest.mark.parametrize("instances", [3, 8, 128])
@pytest.mark.parametrize(("tries", "greedy"), [(1, False), (4, False), (4, True), (16, False), (16, True), (64, False)])
@pytest.mark.parametrize("prior", PRIORS)
def test_an_interval_holds_the_rate_as_often_as_it_says(prior, greedy, tries, instances):
    """Of evaluations with success per instance drawn from a beta distribution at least 93 % hold its mean, whether the
    tries of an instance are independent or all end alike."""
    rng, runs, (a, b) = np.random.default_rng([instances, tries, greedy]), 1500, PRIORS[prior]
    rates = rng.beta(a, b, (runs, instances))
    solved = tries * (rng.random(rates.shape) < rates) if greedy else rng.binomial(tries, rates)
    found = [clustered_interval([(int(s), tries) for s in row]) for row in solved]
    assert sum(low <= a / (a + b) <= high for low, high in found) / runs >= 0.93


@pytest.mark.parametrize("tries", [1, 4])
@pytest.mark.parametrize("draws", [8, 64])
def test_few_states_that_the_seed_draws_often_are_draws_of_their_own(draws, tries):
    """A game of two states: every draw of the seed counts, and the interval still holds the rate over both."""
    rng, runs = np.random.default_rng([draws, tries]), 1500
    rates = rng.random((runs, 2))
    drawn = np.take_along_axis(rates, rng.integers(2, size=(runs, draws)), axis=1)
    found = [clustered_interval([(int(s), tries) for s in row]) for row in rng.binomial(tries, drawn)]
    inside = [low <= rate <= high for (low, high), rate in zip(found, rates.mean(axis=1), strict=True)]
    assert sum(inside) / runs >= 0.93


def test_pass_at_k_golden_and_by_counting():
    # 5 tries, 2 successes, 2 draws: 1 - C(3,2)/C(5,2) = 1 - 3/10
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0
    for n, c, k in [(6, 2, 3), (7, 3, 2), (5, 5, 1)]:
        draws = list(combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: success_interval(0, 0), "0 <= successes <= n with n above 0, got 0 of 0"),
        (lambda: success_interval(3, 2), "0 <= successes <= n with n above 0, got 3 of 2"),
        (lambda: success_interval(-1, 2), "got -1 of 2"),
        (lambda: clustered_interval([]), r"expected groups of at least one episode, .* got \[\]"),
        (lambda: clustered_interval([(0, 0)]), "expected groups of at least one episode"),
        (lambda: clustered_interval([(1, 1), (3, 2)]), r"got \[\(1, 1\), \(3, 2\)\]"),
        (lambda: clustered_interval([(2, 2), (-1, 1)]), "expected groups"),
        (lambda: pass_at_k(4, 1, 5), "evaluate each task at least 5 times"),
        (lambda: pass_at_k(4, 1, 0), "needs 1 <= k <= n"),
        (lambda: pass_at_k(0, 0, 1), "n of at least 1, got 0 of 0"),
        (lambda: pass_at_k(1, 2, 1), "n of at least 1, got 2 of 1"),
        (lambda: pass_at_k(1, -1, 1), "n of at least 1, got -1 of 1"),
    ],
)
def test_counts_that_make_no_rate_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_mean_over_tasks_counts_a_task_only_for_as_many_tries_as_it_had():
    # pass@1: (1/4 + 1/1) / 2; pass@2: 1 - C(3,2)/C(4,2) = 1/2, of the first task alone; 4 tries: at least one success
    assert mean_pass_at_k([[True, False, False, False], [True]]) == {1: 0.625, 2: 0.5, 4: 1.0}
    assert mean_pass_at_k([]) == {}
