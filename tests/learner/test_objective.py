"""The losses of a minibatch, by hand: which trajectories are in it, which options they take, what comes out."""

import json
from dataclasses import asdict

import pytest
import torch

from tests.learner.worlds import make_config
from uirl.images import ImageStore
from uirl.learner import Policy, collate
from uirl.learner.policy import TokenScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.steps import MinibatchSchedule, Objective, UpdateTensors
from uirl.types import Sample

TEXT = "model.model_name=uirl/tiny-lm"


@pytest.fixture(scope="module")
def small() -> Policy:
    return Policy.from_config(make_config(TEXT))


def test_every_option_of_the_loss_is_its_key_in_the_config() -> None:
    chosen = {"dual_clip": 4.0, "ratio": "sequence", "tis_cap": 3.0, "tis_level": "sequence"}
    chosen |= {"mismatch_range": (0.5, 1.5), "mismatch_level": "sequence"}
    asked = [f"algorithm.{key}={json.dumps(value)}" for key, value in chosen.items()]
    clips = ["training.clip_ratio=0.1", "training.clip_ratio_high=0.3"]
    found = LearnerSettings.of(make_config(TEXT, *clips, *asked)).loss["options"]
    chosen |= {"clip_ratio_c": chosen.pop("dual_clip"), "ratio_level": chosen.pop("ratio")}
    assert asdict(found) == {"eps_low": 0.1, "eps_high": 0.3, **chosen}


def test_the_minibatches_of_an_epoch_hold_each_live_trajectory_once() -> None:
    schedule = MinibatchSchedule(sample_rows=(0, 1, 1, 2, 3, 4), live=(0, 1, 3, 4), per_epoch=2, shares=2, scale=1.0)
    first, second, third, fourth = schedule.minibatches(2, "seed")
    assert sorted(first + second) == sorted(third + fourth) == [0, 1, 2, 4, 5]
    assert {schedule.sample_rows[i] for i in first}.isdisjoint(schedule.sample_rows[i] for i in second)


def test_the_value_clip_is_centred_on_the_values_at_the_start_of_the_update(small: Policy) -> None:
    sample = Sample((10, 11, 12, 13), (False, True, True, True), (0, -1, -1, -1), (0, 0, 0, 1), (-1, 0, 0, 0))
    batch = collate(small.loaded, [sample], ImageStore())
    settings = LearnerSettings.of(make_config(TEXT, "training.adv_estimator=gae", "training.value_clip=0.2"))
    old, returns = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])
    zeros = torch.zeros(3)
    tensors = UpdateTensors([torch.ones(3)], [returns], [zeros - 1], [zeros - 1], None, [old])
    now = batch.scatter(torch.tensor([0.5, 0.1, 0.9])).requires_grad_()
    scores = TokenScores(batch.scatter(zeros - 1), batch.scatter(zeros), now, None)
    objective = Objective.of(settings, tensors, 1, entropy_coef=0.02, kl_loss_coef=0.0)
    terms = objective.terms(scores, objective.rows(batch, [0]), batch.response_mask)
    term = next(term for term in terms if term.name == "value_loss")
    loss = term.loss
    assert loss is not None
    # 0.5 was 0 and may have moved to 0.2 at most: (0.2 - 1)^2 = 0.64 > 0.25; the others moved by 0.1 and stay
    assert loss.item() == pytest.approx(0.5 * (0.64 + 0.01 + 0.01) / 3)
    assert term.metrics["value_clip_fraction"] == pytest.approx(1 / 3)
    assert term.tokens == 3
    assert term.weight == settings.training.value_coef
    loss.backward()
    # what moved too far towards its return has no gradient any more; d/dv of (v - r)^2 / 2 / 3 elsewhere
    assert now.grad is not None
    assert now.grad[0].tolist() == pytest.approx([0, 0, 0.1 / 3, -0.1 / 3])
