"""Shapes, masks and precisions of the tensors that the functions of this folder take."""

import torch
from torch import Tensor

_REMEDIES = {
    "response_mask": "build the mask together with the tokens: one entry per column",
    "values": "cut the critic's output to the same columns as the rewards",
    "old_values": "cut the critic's output to the same columns as the returns",
    "vpreds": "cut the critic's output to the same columns as the returns",
    "turn_ids": "give the turn number of every response token, -1 elsewhere",
    "anchor_ids": "repeat each turn's anchor-state id on all its response tokens, -1 elsewhere",
    "rollout_log_probs": "does the engine return one log-prob for the stop token?",
    "ref_log_probs": "run the reference policy on the same token ids",
}
_DEFAULT_REMEDY = "align every tensor to the same tokens before the call"


def check_aligned(**tensors: Tensor) -> None:
    """Check that all tensors are `[B, T]` with the shape of the first one.

    Args:
        **tensors: Named tensors; the first one fixes the expected shape.

    Raises:
        ValueError: A tensor has another shape, or the first is not two-dimensional.
        TypeError: A value is not a tensor.
    """
    expected: torch.Size | None = None
    first = ""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name} must be a torch.Tensor [B, T]: got {type(tensor).__name__}; wrap it with torch.as_tensor(...)"
            )
        if expected is None:
            if tensor.dim() != 2:
                raise ValueError(
                    f"{name} must be [B, T]: got shape {tuple(tensor.shape)}, expected two axes; "
                    "a single sequence needs a batch axis, use tensor.unsqueeze(0)"
                )
            expected, first = tensor.shape, name
        elif tensor.shape != expected:
            raise ValueError(
                f"{name} must align with {first}: got shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected)}; {_REMEDIES.get(name, _DEFAULT_REMEDY)}"
            )


def as_bool_mask(mask: Tensor, name: str = "response_mask") -> Tensor:
    """Return the mask as booleans of the same shape, `[B, T]` or any other.

    Args:
        mask: Booleans, or numbers that are all 0 or 1.
        name: The argument's name, for the error.

    Raises:
        ValueError: An entry is neither 0 nor 1. A weight is not a mask: multiply the advantages instead.
    """
    if mask.dtype == torch.bool:
        return mask
    boolean = mask != 0
    if not torch.equal(boolean.to(mask.dtype), mask):
        raise ValueError(
            f"{name} must hold only 0 and 1: got values between {mask.min().item()} and {mask.max().item()}; "
            "to weight tokens, multiply the advantages"
        )
    return boolean


def zero_outside(values: Tensor, mask: Tensor) -> Tensor:
    """Return `values` `[B, T]` where the boolean `mask` is True, 0 elsewhere, whatever stands there, NaN included.

    The zero is a tensor of the dtype of `values`: with a Python number `torch.where` promotes and copies,
    which is six times slower on a CPU.
    """
    return torch.where(mask, values, values.new_zeros(()))


def float_dtype(tensor: Tensor) -> torch.dtype:
    """Choose float32 for every `tensor` `[...]` that is narrower: an advantage in bfloat16 keeps three digits."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def precise_dtype(tensor: Tensor) -> torch.dtype:
    """Choose float64 for sums over `tensor` `[...]`, except on Apple's GPU, which has none."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def check_unit_interval(**numbers: float) -> None:
    """Check that every number lies in [0, 1]; used for discounts.

    Raises:
        ValueError: A number lies outside.
    """
    for name, number in numbers.items():
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1]: got {number}; 1 means no discount")
