"""A process that follows, without the others."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.storage.episodes import PNG
from uirl.images import Screenshot
from uirl.learner import follower
from uirl.learner.data_parallel import End, Learn, Restore


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


def test_what_goes_wrong_before_there_is_a_learner_ends_it_and_the_others_are_told():
    told: list[Any] = []
    ranks: Any = SimpleNamespace(
        hear=iter([Restore("step_000003"), End()]).__next__,
        agreed=lambda work: work(),
        mourn=told.append,
        close=lambda: told.append("closed"),
        lost=False,
    )
    with pytest.raises(AssertionError, match="the leader begins with Begin") as raised:
        follower.Follower(ranks).run()
    assert told == [raised.value, "closed"]


def test_it_learns_from_the_pictures_that_the_call_brings():
    one: Any = follower.Follower(SimpleNamespace())
    shot, seen = Screenshot(PNG), []
    learner: Any = SimpleNamespace(supervised=lambda samples: seen.append(one._images.get(shot.hash).data))
    one._learn(learner, Learn([], {shot.hash: PNG}, supervised=True, run_length=1))
    assert seen == [PNG]
