"""Confidence intervals and pass@k, with numbers worked by hand."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.metrics import (
    mean_pass_at_k,
    pass_at_k,
    success_interval,
)


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


def test_pass_at_k_golden_and_by_counting():
    # 5 tries, 2 successes, 2 draws: 1 - C(3,2)/C(5,2) = 1 - 3/10
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0
    for n, c, k in [(6, 2, 3), (7, 3, 2), (5, 5, 1)]:
        draws = list(combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize("call", [lambda: success_interval(0, 0), lambda: success_interval(3, 2)])
def test_no_episodes_are_no_rate(call):
    with pytest.raises(ValueError, match="0 <= successes <= n"):
        call()


def test_pass_at_k_needs_k_tries():
    with pytest.raises(ValueError, match="evaluate each task at least 5 times"):
        pass_at_k(4, 1, 5)


def test_the_mean_over_tasks_counts_a_task_only_for_as_many_tries_as_it_had():
    # pass@1: (1/4 + 1/1) / 2; pass@2: 1 - C(3,2)/C(4,2) = 1/2, of the first task alone; 4 tries: at least one success
    assert mean_pass_at_k([[True, False, False, False], [True]]) == {1: 0.625, 2: 0.5, 4: 1.0}
    assert mean_pass_at_k([]) == {}
