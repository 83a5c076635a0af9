"""AdamW with moments of 8 bits: its size, its curve beside AdamW's, its state on the disk, and its absence."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.learner.updates import TEXT, make_learner
from tests.learner.worlds import make_config, sample_trajectories
from uirl.errors import CheckpointError, ConfigError
from uirl.learner.optimizer import Optimizer, OptimizerSettings, bytes_of_moments
from uirl.training.plan import plan_of

EIGHT = "training.optimizer=adamw_8bit"
LARGE, SMALL = (96, 64), (17,)
"""A weight with moments of 8 bits, and one that is too small for them."""


class Toy:
    """Two weights that are to become others."""

    def __init__(self, *, eight_bit: bool) -> None:
        draw = torch.Generator().manual_seed(0)
        self.weights = [torch.nn.Parameter(torch.randn(size, generator=draw)) for size in (LARGE, SMALL)]
        self.goals = [torch.randn(size, generator=draw) for size in (LARGE, SMALL)]
        settings = OptimizerSettings(0.01, 0.01, (0.9, 0.99), 0.01, 4, None, eight_bit)
        self.optimizer = Optimizer(list(zip("ab", self.weights, strict=True)), [], settings)

    def losses(self, steps: int) -> list[float]:
        out = []
        for _ in range(steps):
            pairs = zip(self.weights, self.goals, strict=True)
            loss = torch.stack([(weight.float() - goal).square().mean() for weight, goal in pairs]).sum()
            loss.backward()
            self.optimizer.step()
            out.append(loss.item())
        return out


def test_both_moments_take_two_bytes_a_number() -> None:
    toy = Toy(eight_bit=True)
    toy.losses(1)
    state = toy.optimizer.state()
    large = [tensor for name, tensor in state.items() if name.endswith(".a") and not name.startswith("step")]
    numbers = LARGE[0] * LARGE[1]
    # two codes a number, and two scales of 4 bytes per 256 numbers
    assert sum(tensor.nbytes for tensor in large) == 2 * numbers + 2 * 4 * numbers // 256 == bytes_of_moments(numbers)
    small = [tensor for name, tensor in state.items() if name.endswith(".b") and not name.startswith("step")]
    assert sum(tensor.nbytes for tensor in small) == 8 * SMALL[0] == bytes_of_moments(SMALL[0])


def test_it_learns_as_adamw_does() -> None:
    ours, theirs = Toy(eight_bit=True).losses(120), Toy(eight_bit=False).losses(120)
    assert theirs[-1] < theirs[0] / 4
    for step in range(0, 120, 20):
        assert ours[step] == pytest.approx(theirs[step], rel=0.02)
    assert ours != theirs


def test_the_plan_counts_what_it_takes(images) -> None:
    learner = make_learner(images, TEXT, EIGHT)
    learner.update(sample_trajectories(learner.policy, images))
    kept = {name: t for name, t in learner.optimizer.state().items() if not name.startswith("step.")}
    config = make_config(TEXT, EIGHT)
    assert plan_of(config, limit=None, gpu=False).kept["optimizer"] == sum(tensor.nbytes for tensor in kept.values())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(
        ConfigError, match=r"adamw_8bit: cannot import bitsandbytes .* pip install 'uirl\[bitsandbytes\]'"
    ):
        Toy(eight_bit=True)


def test_the_moments_of_another_optimizer_are_refused() -> None:
    toy = Toy(eight_bit=False)
    with pytest.raises(CheckpointError, match=r"'state1' of 'a'; expected master, step, exp_avg.* training.optimizer"):
        toy.optimizer.load_state({"state1.a": torch.zeros(LARGE, dtype=torch.uint8)}, 1)
