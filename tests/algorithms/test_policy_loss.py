"""The policy and likelihood losses: numbers by hand, gradients, micro-batches, garbage under the mask."""

import dataclasses
import math

import pytest
import torch

from uirl.algorithms import (
    PolicyLossOptions,
    aggregation_denominator,
    compute_policy_loss,
    compute_rejection_sampling_loss,
    compute_value_loss,
    kept_mask,
    mismatch_log_weight,
    mismatch_mask,
)

OPTIONS = {field.name for field in dataclasses.fields(PolicyLossOptions)}
LEVELS = ("ratio", "tis", "mismatch")
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def policy_loss(*tensors, **keywords) -> tuple[torch.Tensor, dict[str, float]]:
    """`compute_policy_loss` with its options as keywords."""
    options = PolicyLossOptions(**{name: keywords.pop(name) for name in OPTIONS & keywords.keys()})
    return compute_policy_loss(*tensors, options=options, **keywords)


def one_token(log_ratio: float, advantage: float, **options) -> tuple[float, float, dict[str, float]]:
    """Loss, its gradient by the log-prob, and metrics of a single token."""
    log_probs = torch.tensor([[log_ratio - 1.0]], requires_grad=True)
    loss, metrics = policy_loss(
        torch.tensor([[-1.0]]), log_probs, torch.tensor([[advantage]]), torch.ones(1, 1), **options
    )
    loss.backward()
    return loss.item(), log_probs.grad.item(), metrics


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "options", "loss", "gradient"),
    [
        # ratio e^0.1 = 1.10517 inside 0.8..1.2: loss = -A * ratio, gradient the same
        (0.1, 1.0, {}, -1.10517, -1.10517),
        # ratio e^0.5 = 1.649 clips to 1.2, A = +1: loss = -1.2, no gradient
        (0.5, 1.0, {}, -1.2, 0.0),
        # A = -1: the larger loss wins, 1.649 unclipped
        (0.5, -1.0, {}, 1.64872, 1.64872),
        # ratio e^-0.5 = 0.60653 clips to 0.8, A = -1: loss = 0.8, no gradient
        (-0.5, -1.0, {}, 0.8, 0.0),
        (-0.5, 1.0, {}, -0.60653, -0.60653),
        # asymmetric: 1.3 above, 0.9 below
        (0.5, 2.0, {"eps_high": 0.3}, -2.6, 0.0),
        (-0.5, -2.0, {"eps_low": 0.1}, 1.8, 0.0),
        # dual clip: ratio e^2 = 7.389, A = -1: loss min(7.389, 3) = 3, no gradient; A = +1 not concerned
        (2.0, -1.0, {"clip_ratio_c": 3.0}, 3.0, 0.0),
        (2.0, -1.0, {}, 7.38906, 7.38906),
        (2.0, 1.0, {"clip_ratio_c": 3.0}, -1.2, 0.0),
        # a ratio beyond e^20 stays finite
        (90.0, -1.0, {}, math.exp(20), 0.0),
    ],
)
def test_one_token_by_hand(log_ratio, advantage, options, loss, gradient):
    got_loss, got_gradient, _ = one_token(log_ratio, advantage, clip_ratio=0.2, **options)
    assert got_loss == pytest.approx(loss, rel=1e-4)
    assert got_gradient == pytest.approx(gradient, rel=1e-4, abs=1e-7)


def test_metrics_by_hand():
    # ratios: e^0.5 = 1.649 (A+, high), e^-0.5 = 0.607 (A-, low), e^2 = 7.389 (A-, dual), 1 (inside); one masked.
    log_ratio = torch.tensor([[0.5, -0.5, 2.0, 0.0, 3.0]])
    advantages = torch.tensor([[1.0, -1.0, -1.0, 1.0, 1.0]])
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    _, metrics = policy_loss(torch.zeros(1, 5), log_ratio, advantages, mask, 0.2, clip_ratio_c=3.0)
    expected = {f"policy/clip_fraction_{side}": 0.25 for side in ("high", "low", "dual")}
    expected |= {"policy/ratio_mean": (1.64872 + 0.60653 + 7.38906 + 1) / 4, "policy/ratio_max": 7.38906}
    # k3: ratio - 1 - log ratio = 0.14872, 0.10653, 4.38906, 0
    expected |= {"policy/approx_kl": (0.14872 + 0.10653 + 4.38906) / 4, "policy/tokens": 4}
    assert metrics == pytest.approx(expected, rel=1e-5)


def test_sequence_ratio_by_hand():
    # Row 0: log ratios 0.1, 0.3, mean 0.2, ratio e^0.2 = 1.2214 for both tokens; A = 1, eps 0.3: inside.
    # Row 1: log ratios 0.6, 0.2, mean 0.4, e^0.4 = 1.4918, clips to 1.3.  loss = -(1.2214 + 1.3) / 2
    log_probs = torch.tensor([[0.1, 5.0, 0.3], [0.6, 0.2, 9.0]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    loss, metrics = policy_loss(
        torch.zeros(2, 3),
        log_probs,
        torch.ones(2, 3),
        mask,
        0.3,
        ratio_level="sequence",
        aggregation="seq-mean-token-mean",
    )
    loss.backward()
    assert loss.item() == pytest.approx(-(1.22140 + 1.3) / 2, rel=1e-5)
    # d loss / d log_prob of each token of row 0 = -1.2214 / 2 tokens / 2 sequences; row 1 is clipped
    expected = torch.tensor([[-0.30535, 0, -0.30535], [0, 0, 0]])
    torch.testing.assert_close(log_probs.grad, expected, rtol=1e-4, atol=1e-6)
    assert metrics["policy/clip_fraction_high"] == 0.5


@pytest.mark.parametrize(("advantage", "high", "low"), [(0.5, 1.0, 0.0), (-0.5, 0.0, 1.0), (0.0, 0.0, 0.0)])
def test_a_gradient_is_cut_by_the_sign_of_the_advantage(advantage, high, low):
    # both ratios lie outside the clip: e^1 = 2.718 above, e^-1 = 0.368 below
    for log_ratio, share in ((1.0, high), (-1.0, low)):
        _, metrics = policy_loss(
            torch.zeros(1, 1), torch.tensor([[log_ratio]]), torch.tensor([[advantage]]), torch.ones(1, 1), 0.2
        )
        side = "high" if log_ratio > 0 else "low"
        assert metrics[f"policy/clip_fraction_{side}"] == share


def test_truncated_importance_weights_by_hand():
    # weights exp(old - rollout): e^0 = 1, e^1 = 2.718 capped to 2, e^-1 = 0.36788; ratio 1 everywhere, A = 1, 2, 3
    # loss = -(1*1 + 2*2 + 3*0.36788) / 3 = -2.03455
    old = torch.tensor([[-1.0, -1.0, -2.0]])
    rollout = torch.tensor([[-1.0, -2.0, -1.0]])
    log_probs = old.clone().requires_grad_()
    arguments = (old, log_probs, torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3))
    loss, metrics = policy_loss(*arguments, rollout_log_probs=rollout, tis_cap=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(-2.03455, rel=1e-5)
    torch.testing.assert_close(log_probs.grad, -torch.tensor([[1.0, 4.0, 3 * 0.367879]]) / 3)
    seen = {name: value for name, value in metrics.items() if "mismatch" in name}
    # k3 of the engine against the learner: w - 1 - log w = 0, 0.71828, 0.36788
    expected = {"weight_mean": (1 + 2.71828 + 0.36788) / 3, "weight_max": 2.71828, "kl": (0.71828 + 0.36788) / 3}
    expected |= {"capped_fraction": 1 / 3}
    assert seen == pytest.approx({f"policy/mismatch_{name}": value for name, value in expected.items()}, rel=1e-5)
    measured, measured_metrics = policy_loss(*arguments, rollout_log_probs=rollout)
    assert measured.item() == pytest.approx(-2.0)  # reported, not corrected
    assert metrics.keys() - measured_metrics.keys() == {"policy/mismatch_capped_fraction"}


@pytest.mark.parametrize(
    ("level", "kept", "loss"),
    [
        # weights exp(old - rollout): 1, 2.718, 0.368 of the first row, 1, 1, 2.718 of the second; A = 1
        ("token", [[True, False, False], [True, True, False]], -3 / 6),
        # geometric means: exp(0) = 1 and exp(1 / 3) = 1.396
        ("sequence", [[True] * 3, [False] * 3], -3 / 6),
    ],
)
def test_masked_importance_weights_by_hand(level, kept, loss):
    old = torch.full((2, 3), -2.0)
    rollout = torch.tensor([[-2.0, -3.0, -1.0], [-2.0, -2.0, -3.0]])
    mask = torch.ones(2, 3)
    found = mismatch_mask(mismatch_log_weight(old, rollout, mask), mask, 0.5, 1.25, level)
    assert found.tolist() == kept
    log_probs = old.clone().requires_grad_()
    options = {"mismatch_range": (0.5, 1.25), "mismatch_level": level}
    got, metrics = policy_loss(old, log_probs, torch.ones(2, 3), mask, rollout_log_probs=rollout, **options)
    got.backward()
    # what is left out weighs 0, and the others weigh what they weighed: the denominator is still 6 tokens
    assert got.item() == pytest.approx(loss)
    torch.testing.assert_close(log_probs.grad, -torch.tensor(kept).float() / 6)
    assert metrics["policy/mismatch_masked_fraction"] == pytest.approx(0.5)
    both, _ = policy_loss(old, old, torch.ones(2, 3), mask, rollout_log_probs=rollout, tis_cap=0.5, **options)
    assert both.item() == pytest.approx(loss / 2 if level == "token" else -(0.5 + 0.5 + 0.36788) / 6, rel=1e-4)


def test_tokens_that_do_not_count_are_never_kept_by_the_mask():
    log_weight, mask = torch.zeros(1, 3), torch.tensor([[True, False, True]])
    assert mismatch_mask(log_weight, mask, 0.5, 2.0).tolist() == [[True, False, True]]
    assert mismatch_mask(log_weight, mask, 0.5, 2.0, "sequence").tolist() == [[True, False, True]]


def test_the_mismatch_of_an_engine_that_is_too_sure_is_k3():
    # every weight is e^-1 = 0.36788: w - 1 - log w = 0.36788
    old, rollout = torch.full((1, 2), -2.0), torch.full((1, 2), -1.0)
    _, metrics = policy_loss(old, old, torch.ones(1, 2), torch.ones(1, 2), rollout_log_probs=rollout)
    assert metrics["policy/mismatch_kl"] == pytest.approx(0.36788, rel=1e-4)


def random_batch(seed: int = 0, rows: int = 6, columns: int = 7) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, columns, generator=g) < 0.6
    mask[2] = False  # a row without response tokens
    return {
        "old_log_probs": -torch.rand(rows, columns, generator=g),
        "log_probs": -torch.rand(rows, columns, generator=g),
        "advantages": torch.randn(rows, columns, generator=g),
        "response_mask": mask,
    }


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", ["token", "sequence", "value", "rejection"])
def test_micro_batches_sum_to_the_full_batch(kind, aggregation):
    batch = random_batch()
    old, advantages, mask = batch["old_log_probs"], batch["advantages"], batch["response_mask"]
    rollout = old - 0.1 * advantages
    solved = (torch.arange(6) % 2 == 0).float().unsqueeze(1).expand(6, 7)
    lengths = {"aggregation": aggregation} | ({"loss_length": 11} if aggregation.endswith("norm") else {})
    policy = {"ratio_level": kind, "clip_ratio_c": 1.5, "tis_cap": 1.1}

    def loss_of(rows: slice, now: torch.Tensor, denominator: float | None) -> torch.Tensor:
        how = lengths | {"denominator": denominator}
        if kind == "value":
            return compute_value_loss(now[rows], advantages[rows], old[rows], mask[rows], 0.2, **how)[0]
        if kind == "rejection":
            return compute_rejection_sampling_loss(now[rows], solved[rows], mask[rows], **how)[0]
        how |= policy | {"rollout_log_probs": rollout[rows]}
        return policy_loss(old[rows], now[rows], advantages[rows], mask[rows], **how)[0]

    whole, pieces = (batch["log_probs"].clone().requires_grad_() for _ in range(2))
    full = loss_of(slice(None), whole, None)
    full.backward()
    denominator = aggregation_denominator(kept_mask(solved, mask) if kind == "rejection" else mask, aggregation)
    total = 0.0
    for rows in (slice(0, 1), slice(1, 2), slice(2, 6)):  # nothing of the second is kept by rejection sampling
        loss = loss_of(rows, pieces, denominator)
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(full.item(), rel=1e-6)
    torch.testing.assert_close(pieces.grad, whole.grad)
    assert whole.grad.abs().sum() > 0


def test_the_first_pass_is_the_plain_policy_gradient():
    batch = random_batch()
    log_probs = batch["old_log_probs"].clone().requires_grad_()
    loss, metrics = policy_loss(**batch | {"log_probs": log_probs})
    loss.backward()
    mask = batch["response_mask"]
    torch.testing.assert_close(log_probs.grad, -batch["advantages"] * mask / mask.sum())
    assert metrics["policy/ratio_mean"] == 1
    assert metrics["policy/approx_kl"] == 0


def test_only_the_current_log_probs_get_a_gradient():
    batch = {name: tensor.clone() for name, tensor in random_batch().items()}
    for name in ("old_log_probs", "log_probs", "advantages"):
        batch[name].requires_grad_()
    rollout = batch["old_log_probs"] - 0.1
    policy_loss(**batch, rollout_log_probs=rollout, tis_cap=2.0)[0].backward()
    assert batch["log_probs"].grad is not None
    assert batch["old_log_probs"].grad is None
    assert batch["advantages"].grad is None
    returns, old_values = torch.ones(1, 2, requires_grad=True), torch.zeros(1, 2, requires_grad=True)
    vpreds = torch.full((1, 2), 0.5, requires_grad=True)
    compute_value_loss(vpreds, returns, old_values, torch.ones(1, 2), 0.8)[0].backward()
    assert vpreds.grad is not None
    assert returns.grad is None
    assert old_values.grad is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tis_cap": 2.0}, "tis_cap=2.0 and mismatch_range=None need rollout_log_probs"),
        ({"mismatch_range": (0.5, 2.0)}, r"mismatch_range=\(0.5, 2.0\) need rollout_log_probs"),
        ({"mismatch_range": (2.0, 0.5), "rollout_log_probs": torch.zeros(2, 3)}, "0 <= low < high: got"),
        *(({f"{of}_level": "row"}, f"{of}_level must be 'token' or 'sequence': got 'row'") for of in LEVELS),
        ({"eps_low": 1.5}, "eps_low=1.5"),
        ({"clip_ratio_c": 1.0}, "clip_ratio_c must be above 1: got 1.0"),
        ({"tis_cap": 0.0}, "tis_cap must be positive: got 0.0"),
        ({"mismatch_range": (-0.1, 0.5)}, "0 <= low < high: got"),
        ({"mismatch_range": (0.5, 0.5)}, "0 <= low < high: got"),
        ({"eps_low": -0.1}, "eps_low=-0.1"),
        ({"eps_high": -0.1}, "eps_high=-0.1"),
        ({"rollout_log_probs": torch.zeros(2, 2)}, r"got shape \(2, 2\), expected \(2, 3\); does the engine"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    zeros = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=message):
        policy_loss(zeros, zeros, zeros, torch.ones(2, 3), **options)


def test_the_outermost_options_are_taken():
    PolicyLossOptions(mismatch_range=(0.0, 0.1), eps_low=0.0, eps_high=0.0).clip_range(0.2)
    assert PolicyLossOptions(eps_low=1.0).clip_range(0.2) == (1.0, 0.2)
    with pytest.raises(ValueError, match="cliprange_value must be positive: got 0"):
        compute_value_loss(*[torch.zeros(1, 1)] * 3, torch.ones(1, 1), 0)


def test_value_loss_by_hand():
    # returns 1, old value 0, range 0.2.
    # v = 0.5: clipped 0.2, errors 0.25 and 0.64 -> 0.64.  v = 0.1: unclipped 0.81.  v = 2: clipped 0.2, 1 and 0.64 -> 1
    # loss = (0.64 + 0.81 + 1) / 3 / 2 = 0.408333; the masked token does not count.
    vpreds = torch.tensor([[0.5, 0.1, 2.0, 50.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0]])
    loss, metrics = compute_value_loss(vpreds, torch.ones(1, 4), torch.zeros(1, 4), mask, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(0.408333, rel=1e-5)
    # gradient (v - 1) / 3 where the unclipped error is the larger one: -0.9 / 3 and 1 / 3
    torch.testing.assert_close(vpreds.grad, torch.tensor([[0.0, -0.3, 1 / 3, 0.0]]))
    assert metrics == pytest.approx({"value/clip_fraction": 1 / 3, "value/tokens": 3})
    unclipped, _ = compute_value_loss(vpreds, torch.ones(1, 4), torch.zeros(1, 4), mask, None)
    assert unclipped.item() == pytest.approx((0.25 + 0.81 + 1) / 6, rel=1e-5)


def test_rejection_sampling_loss_by_hand():
    # kept: the first row's two response tokens, -log p = 1 and 3, mean 2. The second row is rejected.
    log_probs = torch.tensor([[-1.0, -9.0, -3.0], [-5.0, -5.0, -5.0]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [1, 1, 1]])
    advantages = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    loss, metrics = compute_rejection_sampling_loss(log_probs, advantages, mask)
    loss.backward()
    assert loss.item() == 2.0
    torch.testing.assert_close(log_probs.grad, torch.tensor([[-0.5, 0, -0.5], [0, 0, 0]]))
    assert metrics == pytest.approx({"policy/kept_fraction": 0.4, "policy/nll": 2.0, "policy/tokens": 2})
