"""Log-probs and entropies of sampled tokens: values, gradients, banned tokens, memory."""

import math

import pytest
import torch

import uirl.algorithms.token_scores as module
from tests.algorithms.test_entropy import LargestStorage
from uirl.algorithms import score_tokens

TARGETS = torch.tensor([0, 12, 4, 4, 7])


def logits_of(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(5, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain(logits: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = torch.log_softmax(logits / temperature, -1)
    return log_p.gather(1, TARGETS[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def test_by_hand():
    # probabilities 1/2, 1/4, 1/4 and 1, 0, 0: log 1/4 and 1.5 log 2; log 1 and 0
    logits = torch.tensor([[math.log(2), 0, 0], [5, -math.inf, -math.inf]])
    log_probs, entropy = score_tokens(logits, torch.tensor([2, 0]))
    torch.testing.assert_close(log_probs, torch.tensor([-math.log(4), 0.0]))
    torch.testing.assert_close(entropy, torch.tensor([1.5 * math.log(2), 0.0]))


@pytest.mark.parametrize("block", [1, 30, 2**19])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_plain_formula(block, temperature, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", block)
    ways = {"ours": lambda logits: score_tokens(logits.clone(), TARGETS, temperature)}
    ways["plain"] = lambda logits: plain(logits, temperature)
    weights = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = {}
    for name, way in ways.items():
        logits = logits_of().requires_grad_()
        scores = torch.stack(way(logits))
        (scores * weights).sum().backward()
        found[name] = (scores.detach(), logits.grad)
    torch.testing.assert_close(found["ours"], found["plain"])


def test_without_its_gradient_the_entropy_is_the_same_number():
    logits = logits_of().requires_grad_()
    log_probs, entropy = score_tokens(logits.clone(), TARGETS, entropy_gradient=False)
    assert not entropy.requires_grad
    torch.testing.assert_close(entropy, plain(logits, 1.0)[1])
    (log_probs * torch.arange(5)).sum().backward()
    alone = logits_of().requires_grad_()
    only, nothing = score_tokens(alone.clone(), TARGETS, entropy=False)
    assert nothing is None
    (only * torch.arange(5)).sum().backward()
    assert torch.equal(logits.grad, alone.grad)


def test_banned_tokens_get_no_gradient_and_no_nan():
    logits = torch.tensor([[1.0, 2.0, -math.inf]], requires_grad=True)
    log_probs, entropy = score_tokens(logits.clone(), torch.tensor([1]))
    (log_probs + 2 * entropy).sum().backward()
    shorter = torch.tensor([[1.0, 2.0]], requires_grad=True)
    log_probs, entropy = score_tokens(shorter.clone(), torch.tensor([1]))
    (log_probs + 2 * entropy).sum().backward()
    torch.testing.assert_close(logits.grad[:, :2], shorter.grad)
    assert logits.grad[0, 2] == 0


def test_what_is_not_finite_stays_so():
    log_probs, entropy = score_tokens(torch.tensor([[1.0, math.nan], [1.0, math.inf]]), torch.tensor([0, 0]))
    assert not log_probs.isfinite().any()
    assert not entropy.isfinite().any()


def test_bfloat16_is_computed_in_float32():
    rough = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    fine = rough.float().requires_grad_()
    rough.requires_grad_()
    for logits in (rough, fine):
        log_probs, entropy = score_tokens(logits.clone(), TARGETS, 0.9)
        assert log_probs.dtype == entropy.dtype == torch.float32
        (log_probs + entropy).sum().backward()
    torch.testing.assert_close(rough.grad, fine.grad.bfloat16(), rtol=0, atol=0)


def test_neither_pass_makes_a_second_tensor_of_logits(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 26)
    logits = logits_of().requires_grad_()
    owned = logits.clone()
    with LargestStorage(owned) as seen:
        log_probs, entropy = score_tokens(owned, TARGETS)
        (grad,) = torch.autograd.grad((log_probs + entropy).sum(), owned)
    assert seen.largest == 26
    assert grad.data_ptr() == owned.data_ptr()


def test_a_second_backward_pass_is_refused():
    log_probs, _ = score_tokens(logits_of().requires_grad_().clone(), TARGETS)
    log_probs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_probs.sum().backward()


@pytest.mark.parametrize(("shape", "tokens"), [((5, 13), 4), ((1, 5, 13), 5)])
def test_shapes_that_do_not_fit_are_refused(shape, tokens):
    with pytest.raises(ValueError, match=r"expected|got"):
        score_tokens(torch.zeros(shape), TARGETS[:tokens])
