"""Group arithmetic: which rows belong together, and each score relative to its group."""

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

ROUNDING = 2.0**-21
"""Four units in the last place of float32, in which the learner keeps rewards: 0.1 + 0.2 is 0.3."""


def at_most(one: Any, other: Any, size: Any) -> Any:
    """Return whether `one <= other` but for rounding, where both are sums of numbers that sum up to `size` without
    their signs; of tensors `[...]`, elementwise. NaN is at most nothing."""
    return one - other <= ROUNDING * size


def differ(sums: Sequence[float], sizes: Sequence[float]) -> bool:
    """Return whether some of `sums` differ by more than rounding; `sizes`: the same sums without signs."""
    return bool(sums) and not at_most(max(sums), min(sums), max(sizes))


GroupIndex: TypeAlias = Tensor | np.ndarray[Any, Any] | Sequence[Hashable]


def group_codes(index: GroupIndex, batch_size: int, device: torch.device | str = "cpu") -> Tensor:
    """Return one integer per row, equal exactly where the group ids are equal; int64 `[B]`, counted from 0.

    Args:
        index: One id per row: a tensor, an array, or a list; integers or strings.
        batch_size: B, to check the length against.
        device: Where the codes shall live.

    Raises:
        ValueError: Wrong length, more than one axis, or a missing id (None).
    """
    ids = index.tolist() if isinstance(index, (Tensor, np.ndarray)) else list(index)
    if len(ids) != batch_size:
        raise ValueError(f"index must name one group per row: got {len(ids)} ids, expected {batch_size}")
    codes: dict[Hashable, int] = {}
    for row, group_id in enumerate(ids):
        if group_id is None or isinstance(group_id, list):
            raise ValueError(
                f"index[{row}] must be one group id: got {group_id!r}; "
                "give an integer or a string per row, the same for all rows of one task"
            )
        codes.setdefault(group_id, len(codes))
    return torch.tensor([codes[group_id] for group_id in ids], dtype=torch.int64, device=device)


def group_sizes(codes: Tensor) -> Tensor:
    """Return how many entries share the code of each entry; int64, the shape of `codes` `[N]`."""
    return torch.bincount(codes)[codes]


def centred_in_group(scores: Tensor, codes: Tensor, sizes: Tensor | None = None) -> Tensor:
    """Return `scores[i] - mean(scores of the group of i)`, shape `[N]`.

    Args:
        scores: Floats `[N]`; float64 keeps the group mean exact.
        codes: int64 `[N]` from `group_codes`, dense from 0.
        sizes: `[N]`, what each score would be if all that it sums up were positive; None: the scores are no sums.

    Returns:
        `[N]`. Exactly 0 in a group of one and in a group whose scores are all equal but for rounding (`at_most`), so
        that such a group can be recognised by `== 0` and cannot leak rounding into a division by a standard deviation
        near 0.
    """
    if scores.numel() == 0:
        return scores.clone()
    groups = int(codes.max()) + 1
    sums = scores.new_zeros(groups).index_add_(0, codes, scores)
    centred = scores - (sums / torch.bincount(codes))[codes]
    lowest = scores.new_full((groups,), torch.inf).scatter_reduce_(0, codes, scores, "amin")
    highest = scores.new_full((groups,), -torch.inf).scatter_reduce_(0, codes, scores, "amax")
    largest = scores.new_zeros(groups).scatter_reduce_(0, codes, scores.abs() if sizes is None else sizes, "amax")
    return centred.masked_fill(at_most(highest, lowest, largest)[codes], 0.0)


def relative_to_group(
    scores: Tensor, codes: Tensor, normalize_by_std: bool, epsilon: float, sizes: Tensor | None = None
) -> Tensor:
    """Return `(scores - mean) / (std + epsilon)` within each group, or only `scores - mean`; shape `[N]`.

    Args:
        scores: Floats `[N]`.
        codes: int64 `[N]`.
        normalize_by_std: Whether to divide by the group's standard deviation (unbiased: n - 1).
        epsilon: Added to the standard deviation.
        sizes: As in `centred_in_group`.

    Returns:
        `[N]`; exactly 0 in a group of one or of equal scores.
    """
    centred = centred_in_group(scores, codes, sizes)
    if not normalize_by_std or scores.numel() == 0:
        return centred
    squares = centred.new_zeros(int(codes.max()) + 1).index_add_(0, codes, centred.square())
    variance = squares / (torch.bincount(codes) - 1).clamp(min=1)
    return centred / (variance.sqrt()[codes] + epsilon)
