"""When two learners took the same step: the order of adding is no difference, a lost state is one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rollout.worlds import Countdown
from tests.training.checks.test_preflight import PREFLIGHT, findings_of
from uirl.learner import Learner
from uirl.training.checks.preflight import rounding_of, same_metrics

WEIGHTS = 134_515_008
"""Of SmolLM2-135M, which with two threads reported the norms below."""


def test_the_order_of_adding_is_tolerated_and_ten_times_the_tolerance_is_not() -> None:
    rounding = rounding_of(WEIGHTS, torch.float32)
    ours = {"loss": 2.5, "grad_norm": 6.3114214}
    assert same_metrics(ours, {"loss": 2.5, "grad_norm": 6.3114204}, rounding)
    assert same_metrics(ours, {**ours, "loss": 2.5 * (1 + 0.9 * rounding)}, rounding)
    for other in ({**ours, "loss": 2.5 * (1 + 1.1 * rounding)}, {**ours, "grad_norm": 6.3124}, {"loss": 2.5}):
        assert not same_metrics(ours, other, rounding)


def test_the_tolerance_covers_a_real_sum_in_another_order() -> None:
    terms = torch.rand(2**20, generator=torch.Generator().manual_seed(0))
    exact = math.fsum(terms.tolist())
    for strides in (1, 2, 3, 7, 16):
        total = float(torch.stack([terms[i::strides].sum() for i in range(strides)]).sum())
        assert abs(total - exact) <= rounding_of(terms.numel(), torch.float32) * exact


class Twin:
    """What `uirl check` loads a checkpoint into, with something done to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
        real = PREFLIGHT.load_checkpoint

        def load(path: Path, learner: Learner) -> Any:
            loaded = real(path, learner)
            change(learner)
            return loaded

        monkeypatch.setattr(PREFLIGHT, "load_checkpoint", load)


def _round(learner: Learner) -> None:
    """Give each weight another last digit, as another order of adding does, and each metric as well."""
    step = learner.supervised

    def rounded(samples: Any) -> dict[str, float]:
        found = step(samples)
        with torch.no_grad():
            for _, weight in learner.policy.named_trainable():
                weight.copy_(torch.nextafter(weight, torch.full_like(weight, math.inf)))
        return {
            name: float(torch.nextafter(torch.tensor(value), torch.tensor(math.inf))) for name, value in found.items()
        }

    learner.supervised = rounded  # type: ignore[method-assign]


def _forget_the_optimizer(learner: Learner) -> None:
    learner.optimizer = None


def _forget_the_moments(learner: Learner) -> None:
    for state in learner.use_optimizer("supervised")._adam.state.values():
        state["exp_avg"].zero_()


def test_a_twin_that_rounds_otherwise_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    Twin(monkeypatch, _round)
    finding = findings_of(Countdown())["resume"]
    assert finding.ok
    assert "but for rounding" in finding.detail


@pytest.mark.parametrize(
    ("change", "told"), [(_forget_the_optimizer, "became"), (_forget_the_moments, "away, though both report")]
)
def test_a_twin_that_lost_state_is_found(monkeypatch: pytest.MonkeyPatch, change: Any, told: str) -> None:
    Twin(monkeypatch, change)
    finding = findings_of(Countdown())["resume"]
    assert not finding.ok
    assert told in finding.detail
