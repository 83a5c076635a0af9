"""How values of one name become one number."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uirl.metrics import Metrics, reduction_of


def reduced(*calls, **kwargs):
    metrics = Metrics()
    for call in calls:
        metrics.add(*call, **kwargs)
    return metrics.reduce()


@pytest.mark.parametrize(
    ("name", "reduction"),
    [
        ("success", "mean"),
        ("policy_loss", "mean"),
        ("reward/max", "max"),
        ("response_tokens_min", "min"),
        ("tokens_total", "sum"),
        ("time/rollout", "sum"),
        ("count/episodes", "sum"),
        ("time/tokens_per_second", "rate"),
        ("policy_version", "last"),
        ("learning_rate", "last"),
        ("x_count", "sum"),
        ("loss/last", "last"),
        ("max", "max"),
        ("time/max", "max"),
        ("climax", "mean"),
        ("summary", "mean"),
    ],
)
def test_the_table_of_reductions(name, reduction):
    assert reduction_of(name) == reduction


def test_golden_reductions():
    # mean: (1*1 + 4*2) / (1 + 2) = 3; rate: (100 + 300) tokens / (1 + 3) seconds = 100
    assert reduced(("loss", 1, 1), ("loss", 4, 2)) == {"loss": 3.0}
    assert reduced(("tokens_per_second", 100, 1), ("tokens_per_second", 300, 3)) == {"tokens_per_second": 100.0}
    assert reduced(("x_sum", 1), ("x_sum", 4)) == {"x_sum": 5.0}
    assert reduced(("x_max", -3), ("x_max", -4)) == {"x_max": -3.0}
    assert reduced(("x_min", 3), ("x_min", 4)) == {"x_min": 3.0}
    assert reduced(("version", 3), ("version", 2)) == {"version": 2.0}
    assert reduced(("loss", 3), ("loss", 5), reduction="max") == {"loss": 5.0}
    # without a weight it is 1
    metrics = Metrics()
    metrics.add("a_per_second", 3)
    metrics.add_all({"a_per_second": 5, "b_per_second": 7})
    assert metrics.reduce() == {"a_per_second": 4.0, "b_per_second": 7.0}


def test_no_evidence_is_none_and_not_zero():
    assert reduced(("success", None)) == {"success": None}
    assert reduced(("success", None), ("success", True), ("success", False)) == {"success": 0.5}
    assert reduced(("loss", 3, 0.0)) == {"loss": None}
    assert Metrics().reduce() == {}


def test_numbers_that_are_not_finite_become_none_and_are_counted():
    row = reduced(("loss", 1), ("loss", math.nan), ("x_max", math.inf), ("fine", 2))
    assert row == {"loss": None, "x_max": None, "fine": 2.0, "metrics/nonfinite": 2.0}
    assert reduced(("x_max", 1, math.inf), ("x_max", math.nan)) == {"x_max": None, "metrics/nonfinite": 2.0}
    assert reduced(("x_sum", 1.7e308), ("x_sum", 1.7e308)) == {"x_sum": None, "metrics/nonfinite": 1.0}


@given(
    pairs=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=20),
    seed=st.integers(0, 2**32),
    cut=st.integers(0, 20),
)
def test_the_order_of_arrival_and_the_merge_of_parts_change_no_digit(pairs, seed, cut):
    shuffled = random.Random(seed).sample(pairs, len(pairs))
    for name in ("mean", "a_sum", "a_max", "a_min", "a_per_second"):
        whole, left, right = Metrics(), Metrics(), Metrics()
        for pair in pairs:
            whole.add(name, *pair)
        for i, pair in enumerate(shuffled):
            (left if i < cut else right).add(name, *pair)
        left.merge(right.collected())
        assert left.reduce() == whole.reduce()


def test_array_scalars_are_numbers_and_texts_are_not():
    assert reduced(("a", np.float32(0.5)), ("a", np.int64(1)), ("a", np.array(0.0))) == {"a": 0.5}
    for bad in ("1.0", [1.0, 2.0], {}):
        with pytest.raises(TypeError, match="metric 'a' must be a number"):
            Metrics().add("a", bad)


def test_a_changed_reduction_and_a_negative_weight_are_refused():
    metrics = Metrics()
    metrics.add("a", 1)
    with pytest.raises(ValueError, match="already reduced by 'mean', got 'sum'"):
        metrics.add("a", 1, reduction="sum")
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        metrics.add("a", 1, weight=-1)


def test_prefix():
    metrics = Metrics()
    metrics.add_all({"success": 1.0, "turns": 2}, prefix="eval/")
    assert metrics.reduce() == {"eval/success": 1.0, "eval/turns": 2.0}
    assert len(metrics) == 2
