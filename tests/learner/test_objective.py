"""The losses of a minibatch, by hand: which trajectories are in it, which options they take, what comes out."""

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch

from tests.learner.updates import TEXT
from tests.learner.worlds import make_config
from uirl.errors import NonFiniteError
from uirl.images import ImageStore
from uirl.learner import Policy, collate
from uirl.learner.policy import TokenScores
from uirl.learner.settings import LearnerSettings
from uirl.learner.steps import MinibatchSchedule, Objective, UpdateTensors, require_finite
from uirl.types import Sample


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
    for minibatch in (first, second, third, fourth):
        assert len({schedule.sample_rows[i] for i in minibatch}) == 2
    drawn = [list(schedule.minibatches(2, seed)) for seed in ("seed", "seed", "another")]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("minibatches", "trajectories", "live", "more", "expected"),
    [
        (2, 4, 4, {}, (2, 2, 1.0)),
        (8, 4, 4, {}, (4, 4, 1.0)),  # no more than trajectories
        (4, 8, 4, {}, (2, 4, 1.0)),
        (4, 8, 4, {"scale": True}, (2, 4, 0.5)),
        (4, 8, 4, {"loss": "rejection_sampling"}, (2, 2, 1.0)),
        (2, 8, 1, {"scale": True}, (1, 2, 0.125)),  # a quarter of a minibatch is one
    ],
)
def test_fewer_live_trajectories_make_fewer_minibatches(minibatches, trajectories, live, more, expected) -> None:
    settings = SimpleNamespace(
        training=SimpleNamespace(minibatches=minibatches),
        spec=SimpleNamespace(loss=more.get("loss", "policy")),
        algorithm=SimpleNamespace(scale_step_by_live=more.get("scale", False)),
    )
    view = MagicMock(sample_rows=tuple(range(trajectories)), __len__=lambda _: trajectories)
    credit = SimpleNamespace(live=torch.arange(trajectories) >= trajectories - live)
    found = MinibatchSchedule.of(settings, view, credit)  # type: ignore[arg-type]
    assert (found.per_epoch, found.shares, found.scale) == expected
    assert found.live == tuple(range(trajectories - live, trajectories))


@pytest.mark.parametrize(("minibatches", "loss_length"), [(1, None), (2, None), (1, 6)])
def test_every_term_of_the_loss_by_hand(small: Policy, minibatches: int, loss_length: int | None) -> None:
    sample = Sample((10, 11, 12, 13), (False, True, True, True), (0, -1, -1, -1), (0, 0, 0, 1), (-1, 0, 0, 0))
    batch = collate(small.loaded, [sample], ImageStore())
    chosen = ["training.adv_estimator=gae", "training.value_clip=0.2", "training.value_coef=0.7"]
    if loss_length:
        chosen += ["algorithm.loss_aggregation=seq-mean-token-sum-norm", f"algorithm.loss_length={loss_length}"]
    settings = LearnerSettings.of(make_config(TEXT, *chosen))
    old, returns = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])
    zeros = torch.zeros(3)
    tensors = UpdateTensors([torch.ones(3)], [returns], [zeros - 1], [zeros - 1], [zeros - 1.5], [old])
    now = batch.scatter(torch.tensor([0.5, 0.1, 0.9])).requires_grad_()
    entropy, likely = (batch.scatter(torch.tensor([1.0, 2.0, 3.0]) * share) for share in (1.0, 0.5))
    scores = TokenScores(batch.scatter(zeros - 1), entropy, now, None, likely)
    objective = Objective.of(settings, tensors, minibatches, entropy_coef=0.02, kl_loss_coef=0.3)
    terms = {term.name: term for term in objective.terms(scores, objective.rows(batch, [0]), batch.response_mask)}
    same = {"clip_fraction": 0, **{f"clip_fraction_{side}": 0 for side in ("high", "low", "dual")}, "approx_kl": 0}
    same |= {
        "mismatch_kl": 0,
        **{f"{name}_{kind}": 1 for name in ("ratio", "mismatch_weight") for kind in ("mean", "max")},
    }
    expected = {
        "policy_loss": (1.0, -1.0, same | {"entropy": 2.0}),
        "entropy_loss": (-0.02, 1.0, {"bonus_entropy": 1.0}),
        # 0.5 was 0 and may have moved to 0.2 at most: (0.2 - 1)^2 = 0.64 > 0.25; the others moved by 0.1 and stay
        "value_loss": (0.7, 0.5 * (0.64 + 0.01 + 0.01) / 3, {"value_clip_fraction": 1 / 3}),
        "kl_loss": (0.3, math.exp(-0.5) - 0.5, {"kl_reference": math.exp(-0.5) - 0.5}),
    }
    assert terms.keys() == expected.keys()
    # means over 3 tokens; of two minibatches each divides by half of them; else sums over 1 sequence by 6
    factor = 0.5 if loss_length else minibatches
    for name, (weight, loss, metrics) in expected.items():
        term = terms[name]
        assert (term.weight, term.loss.item(), term.tokens) == pytest.approx((weight, factor * loss, 3)), name
        assert term.metrics == pytest.approx(metrics, abs=1e-6), name
    terms["value_loss"].loss.backward()
    # what moved too far towards its return has no gradient any more; d/dv of (v - r)^2 / 2 / 3 elsewhere
    assert now.grad is not None
    assert now.grad[0].tolist() == pytest.approx([0, 0, factor * 0.1 / 3, factor * -0.1 / 3])
    alone = Objective.of(settings, tensors, 1, entropy_coef=0.0, kl_loss_coef=0.0)
    without = TokenScores(scores.log_probs, entropy, None, None)
    left = alone.terms(without, alone.rows(batch, [0]), batch.response_mask)
    assert [term.name for term in left] == ["policy_loss"]
    # ratios of e^0.5 where the advantage is 1 and of e^-0.5 where it is -1 are clipped, at either side
    rows = replace(alone.rows(batch, [0]), advantages=batch.scatter(torch.tensor([1.0, -1.0, 1.0])))
    moved = replace(without, log_probs=batch.scatter(torch.tensor([-0.5, -1.5, -1.0])))
    (policy,) = alone.terms(moved, rows, batch.response_mask)
    clipped = [policy.metrics[f"clip_fraction{side}"] for side in ("", "_low", "_high")]
    assert clipped == pytest.approx([2 / 3, 1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("ids", "told"), [(["b", "a", "b"], "trajectories a, b;"), ([*"edcba"], "trajectories a, b, c, d, ...;")]
)
def test_a_loss_that_is_no_number_names_its_trajectories(ids: list[str], told: str) -> None:
    samples = [Sample((1, 2), (False, True), (0, 0), (0, 0), (-1, 0), trajectory_id=id) for id in ids]
    require_finite("policy_loss", torch.tensor(3.0), samples)
    for bad in (math.nan, math.inf):
        with pytest.raises(NonFiniteError, match=f"policy_loss is {bad} on {len(ids)} samples of the {told}"):
            require_finite("policy_loss", torch.tensor(bad), samples)
