"""The entropy of the policy: from its logits, over its likely tokens alone, and what steers the weight of its bonus."""

import math
from typing import Any, cast

import torch
from torch import Tensor

# Rows of the vocabulary axis worked on at once: 2**22 numbers are 16 MB of float32.
_BLOCK_ELEMENTS = 2**22


def compute_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each distribution, in nats.

    `p = softmax(logits)`, `entropy = -sum(p * log(p))` over the last axis.

    Args:
        logits: `[B, T, V]` (any leading axes); float16 and bfloat16 are computed in float32. Logits of banned
            tokens may be -inf.

    Returns:
        `[B, T]`, float32 (float64 for float64), differentiable. Give it to `aggregate_loss`, multiply by the
        entropy coefficient and SUBTRACT it from the loss.

    Neither pass makes a second tensor of the size of `logits`, except the gradient itself: rows are visited
    in blocks and the probabilities recomputed on the way back. The gradient cannot be differentiated again.
    """
    if logits.dim() < 1 or not logits.is_floating_point():
        raise ValueError(f"logits must be floats [..., V]: got {logits.dtype}, shape {tuple(logits.shape)}")
    entropy: Tensor = cast(Any, _Entropy).apply(logits)
    return entropy


def drop_unlikely(logits: Tensor, min_p: float) -> Tensor:
    """Return the logits with the tokens at -inf whose probability is below `min_p` times that of the likeliest.

    `compute_entropy(drop_unlikely(logits, min_p))` is the entropy of the choice among the likely tokens, renormalised.
    As a bonus it raises no token outside them: of a vocabulary of 150,000, all that are never right weigh more together
    than the few that might be.

    Args:
        logits: `[B, T, V]` (any leading axes). Which tokens are likely is read from them without a gradient.
        min_p: At least 0, which keeps every token, and below 1.

    Returns:
        `[B, T, V]`; the gradient is that of `logits` where a token is likely, and 0 elsewhere.

    Papers: AEnt (2509.03493), section 4, the clamped entropy, there over the likeliest tokens by count; min-p sampling
    (2407.01082), algorithm 1, for the choice of tokens, which needs no sorting.
    """
    if not 0 <= min_p < 1:
        raise ValueError(f"min_p must be at least 0 and below 1: got {min_p}; try 0.001")
    if min_p == 0:
        return logits
    seen = logits.detach()
    return logits.masked_fill(seen < seen.amax(-1, keepdim=True) + math.log(min_p), -math.inf)


class EntropyController:
    """The weight of the entropy bonus, steered so that the entropy approaches a target.

    `coef *= exp(clip(target - entropy, -0.2, 0.2))` after every update, kept in [`init_coef` / 10, `init_coef` x 10].

    Papers: soft actor-critic (1812.05905), section 5, the dual step on the logarithm of the weight; Skywork-OR1
    (2505.22312), section 4, the same idea for language models, by constant steps.
    """

    LARGEST_STEP = 0.2
    """Nats: a larger error changes the logarithm of the weight by no more than this."""
    RANGE = 10.0

    def __init__(self, init_coef: float) -> None:
        """Start at `init_coef`, above 0."""
        if not (math.isfinite(init_coef) and init_coef > 0):
            raise ValueError(f"init_coef must be a number above 0: got {init_coef}; a weight of 0 can never leave it")
        self.init_coef = init_coef
        self.value = init_coef

    def update(self, entropy: float, target: float) -> float:
        """Return the weight after an update whose tokens had `entropy`, in nats per token, where it should be `target`;
        it stays in `value`. Raises ValueError for an entropy that is no number."""
        if not math.isfinite(entropy):
            raise ValueError(f"entropy must be finite: got {entropy}; look at the logits of this batch")
        error = min(max(target - entropy, -self.LARGEST_STEP), self.LARGEST_STEP)
        lowest, highest = self.init_coef / self.RANGE, self.init_coef * self.RANGE
        self.value = min(max(self.value * math.exp(error), lowest), highest)
        return self.value


class _Entropy(torch.autograd.Function):
    """`H = sum(entr(p))` with `dH/dlogits = entr(p) - p * H`, where `entr(p) = -p log p` and entr(0) = 0."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        rows = logits.reshape(-1, logits.shape[-1])
        entropy = torch.cat([torch.special.entr(_probabilities(rows[block])).sum(dim=-1) for block in _blocks(rows)])
        ctx.save_for_backward(logits, entropy)
        return entropy.view(logits.shape[:-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        logits, entropy = ctx.saved_tensors
        rows = logits.reshape(-1, logits.shape[-1])
        grad = torch.empty_like(rows)
        outer = grad_output.reshape(-1, 1)
        for block in _blocks(rows):
            p = _probabilities(rows[block])
            local = torch.special.entr(p).addcmul_(p, entropy[block].unsqueeze(-1), value=-1.0)
            grad[block] = local.mul_(outer[block])
        return grad.view(logits.shape)


def _probabilities(rows: Tensor) -> Tensor:
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    return torch.softmax(rows, dim=-1, dtype=dtype)


def _blocks(rows: Tensor) -> list[slice]:
    """Return row ranges of about `_BLOCK_ELEMENTS` numbers; one empty range for no rows."""
    size = max(1, _BLOCK_ELEMENTS // max(1, rows.shape[-1]))
    return [slice(start, start + size) for start in range(0, max(1, len(rows)), size)]
