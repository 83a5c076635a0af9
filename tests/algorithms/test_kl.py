"""KL estimators, the penalty in the reward, and the controller."""

import math

import pytest
import torch

from uirl.algorithms import KLController, aggregation_denominator, apply_kl_penalty, compute_kl, compute_kl_loss


def test_estimators_by_hand():
    # d = -1 - (-1.5) = 0.5:  k1 = 0.5, k2 = 0.125, k3 = e^-0.5 - 1 + 0.5 = 0.106531, abs = 0.5
    log_probs, ref_log_probs = torch.tensor([-1.0]), torch.tensor([-1.5])
    got = [compute_kl(log_probs, ref_log_probs, name).item() for name in ("k1", "k2", "k3", "abs")]
    assert got == pytest.approx([0.5, 0.125, 0.106531, 0.5], rel=1e-5)
    # d = -0.5:  k3 = e^0.5 - 1 - 0.5 = 0.148721
    assert compute_kl(ref_log_probs, log_probs).item() == pytest.approx(0.148721, rel=1e-5)


def test_k1_and_k3_are_unbiased_and_k2_nearly():
    # The exact expectation over a small vocabulary, not a sample.
    g = torch.Generator().manual_seed(0)
    policy = torch.log_softmax(torch.randn(50, generator=g, dtype=torch.float64), 0)
    reference = torch.log_softmax(policy + 0.1 * torch.randn(50, generator=g, dtype=torch.float64), 0)
    exact = (policy.exp() * (policy - reference)).sum().item()
    expected = {n: (policy.exp() * compute_kl(policy, reference, n)).sum().item() for n in ("k1", "k2", "k3")}
    assert expected["k1"] == pytest.approx(exact, rel=1e-9)
    assert expected["k3"] == pytest.approx(exact, rel=1e-9)
    assert expected["k2"] == pytest.approx(exact, rel=0.2)
    assert expected["k2"] != pytest.approx(exact, rel=1e-6)


def test_expected_gradient_of_k2_is_that_of_the_kl_and_of_k1_is_zero():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(20, generator=g, dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.randn(20, generator=g, dtype=torch.float64), 0)

    def gradient(estimate) -> torch.Tensor:
        log_probs = torch.log_softmax(logits, 0)
        return torch.autograd.grad(estimate(log_probs), logits)[0]

    true = gradient(lambda lp: (lp.exp() * (lp - reference)).sum())
    sampled = {
        name: gradient(lambda lp, name=name: (lp.exp().detach() * compute_kl(lp, reference, name)).sum())
        for name in ("k1", "k2")
    }
    torch.testing.assert_close(sampled["k2"], true)
    assert sampled["k1"].abs().max() < 1e-12 < true.abs().max()


def test_a_huge_difference_stays_finite():
    assert compute_kl(torch.tensor([-500.0]), torch.tensor([0.0])).item() == pytest.approx(math.exp(20) - 21, rel=1e-6)


def test_penalty_by_hand():
    # kl = 0.5 and -0.2 on two response tokens, coefficient 0.1: rewards 0 - 0.05 and 1 + 0.02; mean kl 0.15
    penalized, kl_value = apply_kl_penalty(
        token_level_rewards=torch.tensor([[0.0, 5.0, 1.0]]),
        log_probs=torch.tensor([[-1.0, math.nan, -1.0]]),
        ref_log_probs=torch.tensor([[-1.5, 0.0, -0.8]]),
        response_mask=torch.tensor([[1, 0, 1]]),
        kl_coef=0.1,
    )
    torch.testing.assert_close(penalized, torch.tensor([[-0.05, 0.0, 1.02]]))
    assert kl_value.item() == pytest.approx(0.15)
    assert not penalized.requires_grad
    assert not kl_value.requires_grad


def test_kl_loss_by_hand_and_in_micro_batches():
    log_probs = torch.tensor([[-1.0, -math.inf], [-1.5, -1.0]], requires_grad=True)
    ref_log_probs = torch.tensor([[-1.5, 0.0], [-1.0, -1.0]])
    mask = torch.tensor([[1, 0], [1, 1]])
    loss, metrics = compute_kl_loss(log_probs, ref_log_probs, mask)
    loss.backward()
    assert loss.item() == pytest.approx((0.106531 + 0.148721 + 0) / 3, rel=1e-5)
    # d k3 / d log_prob = 1 - e^-d: 0.393469, -0.648721, 0
    torch.testing.assert_close(log_probs.grad, torch.tensor([[0.393469, 0.0], [-0.648721, 0.0]]) / 3)
    assert metrics["kl/max"] == pytest.approx(0.148721, rel=1e-5)
    assert metrics["kl/mean"] == pytest.approx(loss.item())
    parts = [
        compute_kl_loss(
            log_probs[i : i + 1], ref_log_probs[i : i + 1], mask[i : i + 1], denominator=aggregation_denominator(mask)
        )[0].item()
        for i in (0, 1)
    ]
    assert sum(parts) == pytest.approx(loss.item(), rel=1e-6)


def test_k1_is_refused_as_a_loss_and_unknown_names_everywhere():
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="'k1' cannot be a loss"):
        compute_kl_loss(zeros, zeros, torch.ones(1, 2), estimator="k1")
    with pytest.raises(ValueError, match="one of k1, k2, k3, abs: got 'k9'"):
        compute_kl(zeros, zeros, "k9")
    with pytest.raises(ValueError, match=r"got shape \(1, 2\), expected \(1, 3\); run the reference policy"):
        compute_kl(torch.zeros(1, 3), zeros)


def test_controller_by_hand():
    # 0.015 / 0.01 - 1 = 0.5, clipped to 0.2; factor 1 + 0.2 * 1024 / 10000 = 1.02048
    controller = KLController(init_kl_coef=0.01, target_kl=0.01, adaptive=True)
    assert controller.update(current_kl=0.015, n_steps=1024) == pytest.approx(0.0102048)
    assert controller.kl_coef == controller.value == pytest.approx(0.0102048)
    # 0.009 / 0.01 - 1 = -0.1, inside the clip; factor 1 - 0.1 * 1000 / 10000 = 0.99
    assert controller.update(torch.tensor(0.009), 1000) == pytest.approx(0.0102048 * 0.99)


def test_a_fixed_controller():
    fixed = KLController(init_kl_coef=0.01, target_kl=0.01, adaptive=False)
    assert fixed.update(current_kl=5.0, n_steps=10**9) == 0.01


def test_controller_errors():
    with pytest.raises(ValueError, match="can never leave 0"):
        KLController(0.0, 0.1, adaptive=True)
    for target, horizon in ((0.0, 100), (0.1, 0)):
        with pytest.raises(ValueError, match="init_kl_coef, target_kl and horizon above 0"):
            KLController(0.1, target, adaptive=True, horizon=horizon)
    with pytest.raises(ValueError, match="init_kl_coef must be a number of at least 0: got -1"):
        KLController(-1)
    with pytest.raises(ValueError, match="current_kl must be finite"):
        KLController(0.1).update(math.nan, 1)
    with pytest.raises(ValueError, match="below 5 horizons: got 50000"):
        KLController(0.1, 0.1, adaptive=True).update(0.0, 50_000)
