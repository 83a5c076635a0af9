"""The config knows the estimators of the table of algorithms, and what they need."""

from typing import get_args

from uirl.algorithms import ALGORITHMS
from uirl.config.sections.training import GROUP_ESTIMATORS, Estimator

OTHER_NAMES = {"ppo", "grpo_mean", "dr_grpo"}
"""Second names in the table: in the config they are `gae`, and `grpo` with `algorithm.normalize_by_std=false`."""


def test_every_estimator_of_the_table_can_be_asked_for() -> None:
    names = set(ALGORITHMS) - OTHER_NAMES
    assert set(get_args(Estimator)) == names, "Estimator in config/sections/training.py lists these"


def test_group_estimators_are_those_that_need_a_group() -> None:
    needing = {name for name in get_args(Estimator) if ALGORITHMS[name].needs_group}
    assert set(GROUP_ESTIMATORS) == needing, "GROUP_ESTIMATORS in config/sections/training.py lists these"
