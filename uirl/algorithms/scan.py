"""The one recurrence of this folder, `out[t] = x[t] + decay * out[t + 1]`, without a loop over tokens."""

from collections.abc import Callable

import torch
from torch import Tensor

from uirl.algorithms.checks import zero_outside

# Once decay**stride is below this, everything further right is below the rounding of float32.
_NEGLIGIBLE = 1e-12


def discounted_suffix_sum(x: Tensor, decay: float) -> Tensor:
    """Return `out[:, t] = sum over j >= t of decay**(j - t) * x[:, j]`, shape `[B, T]`.

    Pass k adds to each position the partial sum that starts 2**k to its right, so ceil(log2(T)) passes over
    the tensor replace T dependent steps; with decay < 1 the passes end early, as soon as `decay**stride`
    vanishes (Hillis and Steele, 1986). `benchmarks/gae.py` compares it with loops, blocked and matrix-product
    forms.

    Args:
        x: Floats, `[B, T]`; must be finite everywhere, so put 0 where there is nothing.
        decay: In [0, 1].

    Returns:
        A new tensor, `[B, T]`.

    It works in place between two buffers and records no gradient worth having: advantages are constants.
    """
    done, spare = x.clone(), torch.empty_like(x)
    stride, weight = 1, decay
    while stride < x.shape[1] and weight > _NEGLIGIBLE:
        torch.add(done[:, :-stride], done[:, stride:], alpha=weight, out=spare[:, :-stride])
        spare[:, -stride:] = done[:, -stride:]
        done, spare = spare, done
        stride, weight = 2 * stride, weight * weight
    return done


def without_holes(compute: Callable[..., Tensor], mask: Tensor, *tensors: Tensor) -> Tensor:
    """Return `compute(packed_mask, *packed)` with the masked-out columns squeezed out first and put back, as 0,
    afterwards.

    In a multi-turn sequence observation tokens (mask 0) stand between response tokens, and no recursion over
    time may see them. Packing moves the response tokens of each row together, order kept.

    Args:
        compute: From the packed mask and the packed tensors `[B, N]` to one tensor `[B, N]`.
        mask: Booleans, `[B, T]`.
        *tensors: `[B, T]` each; entries under mask False are dropped unread.

    Returns:
        `[B, T]`, 0 where mask is False.
    """
    if not _has_holes(mask):
        result = compute(mask, *(zero_outside(tensor, mask) for tensor in tensors))
        return zero_outside(result, mask)
    lengths = mask.sum(dim=1)
    width = int(lengths.max())
    packed_mask = torch.arange(width, device=mask.device) < lengths.unsqueeze(1)
    source = mask.flatten().nonzero().squeeze(1)
    row_offset = torch.arange(len(mask), device=mask.device) * width - (lengths.cumsum(0) - lengths)
    target = torch.arange(len(source), device=mask.device) + row_offset.repeat_interleave(lengths)
    packed = (_move(tensor, source, target, packed_mask.shape) for tensor in tensors)
    return _move(compute(packed_mask, *packed), target, source, mask.shape)


def _move(tensor: Tensor, source: Tensor, target: Tensor, shape: torch.Size) -> Tensor:
    """Return zeros of `shape` with the entries at flat positions `source` of `tensor` at flat positions `target`."""
    moved = tensor.new_zeros(shape.numel())
    return moved.index_copy_(0, target, tensor.flatten().index_select(0, source)).view(shape)


def _has_holes(mask: Tensor) -> bool:
    """Return whether some row has more than one run of True."""
    starts = (mask[:, 1:] & ~mask[:, :-1]).sum(dim=1, dtype=torch.int32) + mask[:, :1].sum(dim=1)
    return bool((starts > 1).any())
