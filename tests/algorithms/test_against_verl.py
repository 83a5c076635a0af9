"""Equality with verl's `core_algos` on random inputs; deselected unless asked for with `-m verl`.

    pip install "uirl[verl]" && pytest -m verl tests/algorithms/test_against_verl.py

Where the two differ on purpose (a group of one, rewards under mask 0, numbers standing outside the mask), the inputs
avoid the case or the test states both sides.
"""

import importlib
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from uirl.algorithms import (
    KLController,
    PolicyLossOptions,
    aggregate_loss,
    apply_kl_penalty,
    compute_entropy,
    compute_gae_advantage_return,
    compute_grpo_advantage,
    compute_kl,
    compute_policy_loss,
    compute_reinforce_plus_plus_advantage,
    compute_reinforce_plus_plus_baseline_advantage,
    compute_rloo_advantage,
    compute_value_loss,
    masked_mean,
    masked_whiten,
)

pytestmark = pytest.mark.verl

SEEDS = [0, 1, 2]
INDEX = np.array(["a", "b", "a", "c", "b", "c", "a", "b"], dtype=object)


@pytest.fixture(scope="module")
def verl() -> ModuleType:
    return importlib.import_module("verl.trainer.ppo.core_algos")


@pytest.fixture(scope="module")
def verl_functional() -> ModuleType:
    return importlib.import_module("verl.utils.torch_functional")


@pytest.fixture(params=SEEDS)
def batch(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Eight rows with holes in the mask; rewards only on response tokens."""
    g = torch.Generator().manual_seed(request.param)

    def normal() -> Tensor:
        return torch.randn(8, 15, generator=g)

    mask = (torch.rand(8, 15, generator=g) < 0.6).float()
    mask[:, 4] = 1
    return SimpleNamespace(
        mask=mask,
        rewards=normal() * mask,
        values=normal(),
        old=-normal().abs(),
        new=-normal().abs(),
        advantages=normal(),
    )


def same(ours: Tensor, theirs: Tensor, mask: Tensor | None = None) -> None:
    """Equal to float32 rounding, where the mask is 1."""
    if mask is not None:
        ours, theirs = ours * mask, theirs * mask
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)])
def test_gae(verl, batch, gamma, lam):
    ours = compute_gae_advantage_return(batch.rewards, batch.values, batch.mask, gamma, lam)
    theirs = verl.compute_gae_advantage_return(batch.rewards, batch.values, batch.mask, gamma, lam)
    same(ours[0], theirs[0], batch.mask)
    same(ours[1], theirs[1], batch.mask)


@pytest.mark.parametrize("normalize_by_std", [True, False])
def test_grpo(verl, batch, normalize_by_std):
    ours, _ = compute_grpo_advantage(batch.rewards, batch.mask, INDEX, normalize_by_std=normalize_by_std)
    theirs, _ = verl.compute_grpo_outcome_advantage(
        batch.rewards, batch.mask, INDEX, norm_adv_by_std_in_grpo=normalize_by_std
    )
    same(ours, theirs)


def test_a_group_of_one_is_where_we_differ(verl, batch):
    lonely = np.arange(8)
    theirs, _ = verl.compute_grpo_outcome_advantage(batch.rewards, batch.mask, lonely, norm_adv_by_std_in_grpo=False)
    same(theirs, batch.rewards.sum(-1, keepdim=True) * batch.mask)
    ours, _ = compute_grpo_advantage(batch.rewards, batch.mask, lonely, normalize_by_std=False)
    assert (ours == 0).all()


def test_rloo(verl, batch):
    ours, _ = compute_rloo_advantage(batch.rewards, batch.mask, INDEX)
    same(ours, verl.compute_rloo_outcome_advantage(batch.rewards, batch.mask, INDEX)[0])


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_plus_plus(verl, batch, gamma):
    ours = compute_reinforce_plus_plus_advantage(batch.rewards, batch.mask, gamma)
    theirs = verl.compute_reinforce_plus_plus_outcome_advantage(
        batch.rewards, batch.mask, config=SimpleNamespace(gamma=gamma)
    )
    same(ours[0], theirs[0])
    same(ours[1], theirs[1])


def test_reinforce_plus_plus_baseline(verl, batch):
    ours, _ = compute_reinforce_plus_plus_baseline_advantage(batch.rewards, batch.mask, INDEX)
    theirs, _ = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(batch.rewards, batch.mask, INDEX)
    same(ours, theirs)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo"])
@pytest.mark.parametrize("corrected", [False, True])
def test_policy_loss_and_gradient(verl, batch, aggregation, loss_mode, corrected):
    config_module = importlib.import_module("verl.workers.config")
    config = config_module.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=0.15,
        clip_ratio_high=0.25,
        clip_ratio_c=1.5,
        loss_agg_mode=aggregation,
    )
    weights = (batch.old - batch.values).clamp(-20, 20).exp().clamp(max=2.0)
    theirs_in, ours_in = batch.new.clone().requires_grad_(), batch.new.clone().requires_grad_()
    theirs, their_metrics = verl.get_policy_loss_fn(loss_mode)(
        old_log_prob=batch.old,
        log_prob=theirs_in,
        advantages=batch.advantages,
        response_mask=batch.mask,
        loss_agg_mode=aggregation,
        config=config,
        rollout_is_weights=weights if corrected else None,
    )
    ours, metrics = compute_policy_loss(
        batch.old,
        ours_in,
        batch.advantages,
        batch.mask,
        options=PolicyLossOptions(
            eps_low=0.15,
            eps_high=0.25,
            clip_ratio_c=1.5 if loss_mode == "vanilla" else None,
            ratio_level="token" if loss_mode == "vanilla" else "sequence",
            tis_cap=2.0 if corrected else None,
        ),
        aggregation=aggregation,
        rollout_log_probs=batch.values if corrected else None,
    )
    theirs.backward()
    ours.backward()
    same(ours, theirs)
    same(ours_in.grad, theirs_in.grad)
    clipped = metrics["policy/clip_fraction_high"] + metrics["policy/clip_fraction_low"]
    assert clipped == pytest.approx(their_metrics["actor/pg_clipfrac"], abs=1e-6)
    if loss_mode == "vanilla":
        dual = metrics["policy/clip_fraction_dual"]
        assert dual == pytest.approx(their_metrics["actor/pg_clipfrac_lower"], abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_value_loss(verl, batch, aggregation):
    ours, metrics = compute_value_loss(batch.new, batch.values, batch.old, batch.mask, 0.3, aggregation=aggregation)
    theirs, clip_fraction = verl.compute_value_loss(
        batch.new, batch.values, batch.old, batch.mask, 0.3, loss_agg_mode=aggregation
    )
    same(ours, theirs)
    assert metrics["value/clip_fraction"] == pytest.approx(clip_fraction.item(), abs=1e-6)


@pytest.mark.parametrize(
    ("aggregation", "loss_length"),
    [
        ("token-mean", None),
        ("seq-mean-token-mean", None),
        ("seq-mean-token-sum", None),
        ("seq-mean-token-sum-norm", 15),
    ],
)
def test_aggregation(verl, batch, aggregation, loss_length):
    mask = batch.mask.clone()
    mask[3] = 0
    ours = aggregate_loss(batch.values, mask, aggregation, loss_length=loss_length)
    same(ours, verl.agg_loss(batch.values, mask, aggregation))
    full = {"batch_num_tokens": 77} if aggregation == "token-mean" else {"global_batch_size": 77}
    ours = aggregate_loss(batch.values, mask, aggregation, denominator=77, loss_length=loss_length)
    same(ours, verl.agg_loss(batch.values, mask, aggregation, **full))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_kl(verl, batch, estimator):
    ours = compute_kl(batch.new, batch.old, estimator)
    # verl cuts k3 at 10, and its gradient with it; the random inputs reach beyond.
    expected = ours.clamp(max=10.0) if estimator == "k3" else ours
    same(expected, verl.kl_penalty(batch.new, batch.old, estimator))


def test_kl_penalty(verl, batch):
    ours, kl_value = apply_kl_penalty(batch.rewards, batch.new, batch.old, batch.mask, 0.1)
    same(ours, verl.compute_rewards(batch.rewards, batch.new, batch.old, 0.1), batch.mask)
    same(kl_value, masked_mean(verl.kl_penalty(batch.new, batch.old, "kl"), batch.mask))


def test_kl_controller(verl):
    ours = KLController(0.01, 0.05, adaptive=True, horizon=1000)
    theirs = verl.AdaptiveKLController(0.01, 0.05, horizon=1000)
    for current_kl, n_steps in ((0.2, 100), (0.049, 30), (0.0, 500), (0.051, 64)):
        theirs.update(current_kl, n_steps)
        assert ours.update(current_kl, n_steps) == pytest.approx(theirs.value)


def test_statistics_and_entropy(verl_functional, batch):
    same(masked_whiten(batch.values, batch.mask), verl_functional.masked_whiten(batch.values, batch.mask), batch.mask)
    same(masked_mean(batch.values, batch.mask), verl_functional.masked_mean(batch.values, batch.mask))
    logits = torch.stack([batch.values, batch.new, batch.old], dim=-1)
    same(compute_entropy(logits), verl_functional.entropy_from_logits(logits))
