"""The entropy of the policy: values, gradient, banned tokens, memory."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import uirl.algorithms.token_scores as entropy_module
from uirl.algorithms import EntropyController, compute_entropy, drop_unlikely


@pytest.mark.parametrize("block", [1, 40, 2**22])
def test_value_and_gradient_equal_the_plain_formula_and_the_logits_stay(block, monkeypatch):
    monkeypatch.setattr(entropy_module, "_BLOCK_ELEMENTS", block)
    logits = 3 * torch.randn(2, 5, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(compute_entropy, logits)
    log_p = torch.log_softmax(logits, -1)
    entropy, before = compute_entropy(logits), logits.detach().clone()
    torch.testing.assert_close(entropy, -(log_p.exp() * log_p).sum(-1))
    entropy.sum().backward()
    assert torch.equal(logits, before)


class LargestStorage(TorchDispatchMode):
    """Remembers the largest tensor, in elements, that an operation returned without sharing `known`'s memory."""

    def __init__(self, known: torch.Tensor) -> None:
        super().__init__()
        self.known = known.untyped_storage().data_ptr()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() != self.known:
            self.largest = max(self.largest, out.untyped_storage().nbytes() // out.element_size())
        return out


def test_no_second_tensor_of_the_size_of_the_logits(monkeypatch):
    monkeypatch.setattr(entropy_module, "_BLOCK_ELEMENTS", 4096)
    logits = torch.randn(64, 4096)
    with LargestStorage(logits) as seen:
        compute_entropy(logits)
    assert 0 < seen.largest <= 4096


def test_empty_and_wrong_inputs():
    assert compute_entropy(torch.zeros(0, 3, 5)).shape == (0, 3)
    for logits in (torch.tensor(1.0), torch.zeros(2, 3, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"logits must be floats \[..., V\]"):
            compute_entropy(logits)


class TestDropUnlikely:
    def test_by_hand(self):
        # probabilities 0.5, 0.4, 0.06, 0.04: a tenth of the likeliest is 0.05, so the last one goes
        probabilities = torch.tensor([0.5, 0.4, 0.06, 0.04])
        kept = drop_unlikely(probabilities.log(), 0.1)
        assert kept.tolist() == [*probabilities.log()[:3].tolist(), -math.inf]
        # the entropy of what is left, 0.5, 0.4, 0.06 of 0.96
        shares = [0.5 / 0.96, 0.4 / 0.96, 0.06 / 0.96]
        assert float(compute_entropy(kept)) == pytest.approx(-sum(p * math.log(p) for p in shares))

    def test_its_bonus_moves_no_token_outside_and_levels_those_inside(self):
        logits = torch.tensor([0.5, 0.4, 0.06, 0.04]).log().requires_grad_()
        compute_entropy(drop_unlikely(logits, 0.1)).backward()
        assert logits.grad[3] == 0
        # dH/dlogit = -p (log p + H): downwards for what is likelier than exp(-H), upwards for the rest
        p = torch.tensor([0.5, 0.4, 0.06]) / 0.96
        expected = -p * (p.log() - (p * p.log()).sum())
        torch.testing.assert_close(logits.grad[:3], expected)
        whole = torch.tensor([0.5, 0.4, 0.06, 0.04]).log().requires_grad_()
        compute_entropy(whole).backward()
        assert whole.grad[3] > 0

    def test_each_row_has_its_own_likeliest_token_and_banned_ones_stay_banned(self):
        logits = torch.tensor([[0.0, -1.0, -9.0], [-9.0, -12.0, -math.inf]])
        assert (drop_unlikely(logits, 0.01) > -math.inf).tolist() == [[True, True, False], [True, True, False]]

    def test_zero_keeps_every_token(self):
        logits = torch.tensor([0.0, -50.0])
        assert torch.equal(drop_unlikely(logits, 0.0), logits)

    @pytest.mark.parametrize("min_p", [-0.1, 1.0, math.nan])
    def test_a_share_that_is_none_is_refused(self, min_p):
        with pytest.raises(ValueError, match="min_p must be at least 0 and below 1: got"):
            drop_unlikely(torch.zeros(3), min_p)


class TestEntropyController:
    @pytest.mark.parametrize(
        ("updates", "factor"),
        [
            ([(0.45, 0.5)], math.exp(0.05)),  # 0.05 nats short: the weight grows by e^0.05
            ([(0.45, 0.5), (0.6, 0.5)], math.exp(0.05 - 0.1)),  # then 0.1 too many: it falls by e^-0.1
            ([(0.0, 3.0)], math.exp(0.2)),  # a large error is answered by a fifth
            ([(3.0, 0.0)], math.exp(-0.2)),
            ([(0.0, 1.0)] * 50, 10),  # it stays in its range
            ([(2.0, 1.0)] * 50, 0.1),
        ],
    )
    def test_by_hand(self, updates, factor):
        controller = EntropyController(0.1)
        last = [controller.update(entropy, target) for entropy, target in updates][-1]
        assert last == controller.value == pytest.approx(0.1 * factor)

    @pytest.mark.parametrize("init_coef", [0.0, -1.0, math.nan, math.inf])
    def test_a_weight_that_it_could_not_steer_is_refused(self, init_coef):
        with pytest.raises(ValueError, match="init_coef must be a number above 0"):
            EntropyController(init_coef)

    def test_an_entropy_that_is_no_number_is_refused(self):
        with pytest.raises(ValueError, match="entropy must be finite: got nan"):
            EntropyController(0.1).update(math.nan, 1.0)
