"""The entropy of the policy from its logits, at the memory cost of one row block."""

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
