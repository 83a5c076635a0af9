"""The entropy of the policy: values, gradient, banned tokens, memory."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import uirl.algorithms.entropy as entropy_module
from uirl.algorithms import compute_entropy


def test_by_hand():
    # uniform over 4: log 4;  probabilities 1/2, 1/4, 1/4: 0.5 log 2 + 0.5 log 4 = 1.5 log 2;  one choice: 0
    logits = torch.tensor([[[0.0, 0, 0, 0], [math.log(2), 0, 0, -math.inf], [0, -math.inf, -math.inf, -math.inf]]])
    expected = torch.tensor([[math.log(4), 1.5 * math.log(2), 0.0]])
    torch.testing.assert_close(compute_entropy(logits), expected)


@pytest.mark.parametrize("block", [1, 40, 2**22])
def test_value_and_gradient_equal_the_plain_formula(block, monkeypatch):
    monkeypatch.setattr(entropy_module, "_BLOCK_ELEMENTS", block)
    logits = 3 * torch.randn(2, 5, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    assert torch.autograd.gradcheck(compute_entropy, logits)
    log_p = torch.log_softmax(logits, -1)
    torch.testing.assert_close(compute_entropy(logits), -(log_p.exp() * log_p).sum(-1))


def test_banned_tokens_get_no_gradient_and_no_nan():
    logits = torch.tensor([[[1.0, 2.0, -math.inf]]], requires_grad=True)
    compute_entropy(logits).sum().backward()
    shorter = torch.tensor([[[1.0, 2.0]]], requires_grad=True)
    compute_entropy(shorter).sum().backward()
    torch.testing.assert_close(logits.grad[..., :2], shorter.grad)
    assert logits.grad[0, 0, 2] == 0


def test_bfloat16_is_computed_in_float32():
    logits = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    entropy = compute_entropy(logits)
    entropy.sum().backward()
    assert entropy.dtype == torch.float32
    assert logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(entropy, compute_entropy(logits.detach().float()))


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
    with pytest.raises(ValueError, match="logits must be floats"):
        compute_entropy(torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("logits", [torch.tensor(1.0), torch.zeros(2, 3, dtype=torch.long)])
def test_what_is_no_logits_is_refused(logits):
    with pytest.raises(ValueError, match=r"must be floats \[..., V\]"):
        compute_entropy(logits)
