"""A process that follows, without the others."""

from types import SimpleNamespace
from typing import Any

import torch

from uirl.learner import follower
from uirl.learner.data_parallel import Restore


def test_a_restored_follower_draws_other_numbers_than_the_leader(monkeypatch):
    monkeypatch.setattr(follower, "load_checkpoint", lambda folder, learner: torch.manual_seed(5))
    ranks: Any = SimpleNamespace(rank=1, count=2)
    one = follower.Follower(ranks)
    learner: Any = SimpleNamespace(config=SimpleNamespace(training=SimpleNamespace(seed=4)), updates=3)
    one._learner = learner
    torch.manual_seed(5)
    of_leader = torch.rand(4)
    one._do(Restore("step_000003"))
    assert not torch.equal(torch.rand(4), of_leader)
