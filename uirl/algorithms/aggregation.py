"""From one number per token to one number per batch: masked means, whitening, loss aggregation."""

from typing import Literal, get_args

import torch
from torch import Tensor

from uirl.algorithms.checks import as_bool_mask, check_aligned, precise_dtype, zero_outside
from uirl.algorithms.groups import at_most

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the mean of `values` where `mask` is 1: `sum(values * mask) / sum(mask)`.

    Args:
        values: Numbers, `[B, T]`. Whatever stands under mask 0, NaN included, is ignored.
        mask: 0 and 1, the shape of `values`.
        dim: The axis to reduce; None means all of them.

    Returns:
        A scalar, or `values` without axis `dim`.

    An empty selection has mean 0, so that a row without response tokens adds nothing to a sum of rows. Raises
    ValueError where the mask has another shape.
    """
    check_aligned(values=values, mask=mask)
    selected = as_bool_mask(mask, "mask")
    kept = zero_outside(values, selected)
    if dim is None:
        return kept.sum() / selected.sum().clamp(min=1)
    return kept.sum(dim) / selected.sum(dim).clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Return `values` with mean 0 and variance 1 over the masked entries, 0 elsewhere.

    `whitened = (values - mean) / sqrt(variance + epsilon)`, with the unbiased variance (divided by n - 1).

    Args:
        values: Numbers, `[B, T]`.
        mask: 0 and 1, `[B, T]`.
        epsilon: Added to the variance.

    Returns:
        A tensor `[B, T]`, in the dtype of `values`.

    Entries that are all equal but for rounding (`at_most`), or a single one, whiten to exactly 0: they carry no signal.
    The statistics are accumulated in float64, because `1 / sqrt(epsilon)` would blow float32 rounding of an all-equal
    batch up to order one. Whiten the whole batch before it is cut into micro-batches, never each of them.
    """
    check_aligned(values=values, mask=mask)
    selected = as_bool_mask(mask, "mask")
    count = int(selected.count_nonzero())
    kept = zero_outside(values, selected)
    if not count:
        return kept
    mean = kept.sum(dtype=precise_dtype(values)) / count
    chosen = values[selected]
    if at_most(chosen.max(), chosen.min(), chosen.abs().max()):
        centred = torch.zeros_like(kept)
    else:
        centred = zero_outside(values - mean.to(values.dtype), selected)
    # No early return for one entry: centred is 0 then, and 0 / sqrt(epsilon) stays 0.
    variance = centred.square().sum(dtype=precise_dtype(values)) / max(count - 1, 1)
    return centred * torch.rsqrt(variance + epsilon).to(values.dtype)


def aggregation_denominator(response_mask: Tensor, aggregation: Aggregation = "token-mean") -> float:
    """Return the number that `aggregate_loss` divides by, for the batch with this mask.

    Response tokens for 'token-mean'; sequences with at least one response token for the 'seq-mean-*' kinds.

    Args:
        response_mask: 0 and 1, `[B, T]`, of the FULL batch.
        aggregation: As in `aggregate_loss`.

    Returns:
        A float of at least 1. Give it as `denominator` to every micro-batch; the micro-batch losses, and
        their gradients, then sum to those of the full batch. With W data-parallel ranks that average
        gradients, give the count over all ranks divided by W.
    """
    _check_aggregation(aggregation)
    mask = as_bool_mask(response_mask)
    count = mask.sum() if aggregation == "token-mean" else mask.any(dim=-1).sum()
    return float(max(int(count), 1))


def aggregate_loss(
    token_loss: Tensor,
    response_mask: Tensor,
    aggregation: Aggregation = "token-mean",
    denominator: float | Tensor | None = None,
    loss_length: int | None = None,
) -> Tensor:
    """Return one scalar from the loss of each token.

    - 'token-mean': `sum(token_loss * response_mask) / denominator`; every token weighs the same (DAPO).
    - 'seq-mean-token-mean': mean over the tokens of a sequence, then over sequences (the GRPO paper).
    - 'seq-mean-token-sum': sum over the tokens of a sequence, then mean over sequences.
    - 'seq-mean-token-sum-norm': the same divided by the constant `loss_length` (Dr. GRPO).

    Args:
        token_loss: `[B, T]`. Whatever stands under mask 0, NaN included, is ignored.
        response_mask: 0 and 1, `[B, T]`: the tokens that count. Pass the loss mask here if it is narrower
            than the response mask.
        aggregation: One of the four names above.
        denominator: What to divide by; None means the count of this very batch,
            `aggregation_denominator(response_mask, aggregation)`. For a micro-batch give the full batch's.
        loss_length: The constant of 'seq-mean-token-sum-norm', for instance the largest response length; None
            otherwise. It never defaults to T, which changes with the padding.

    Returns:
        A scalar tensor that carries the gradient.

    Raises:
        ValueError: Unknown aggregation, shapes that differ, a denominator that is not positive, or
            a `loss_length` that is missing or not wanted.

    Papers: DAPO (2503.14476), GRPO (2402.03300), Dr. GRPO (2503.20783).

    A batch without any response token has loss 0, with a zero gradient and no error. A sequence without
    response tokens is not counted as a sequence.
    """
    check_aligned(token_loss=token_loss, response_mask=response_mask)
    _check_aggregation(aggregation)
    _check_loss_length(aggregation, loss_length)
    mask = as_bool_mask(response_mask)
    if denominator is None:
        denominator = aggregation_denominator(mask, aggregation)
    elif float(denominator) <= 0:
        raise ValueError(
            f"denominator must be positive: got {float(denominator)}; "
            "compute it with aggregation_denominator(full_batch_mask, aggregation)"
        )
    kept = zero_outside(token_loss, mask)
    if aggregation == "seq-mean-token-mean":
        return masked_mean(token_loss, mask, dim=-1).sum() / denominator
    total = kept.sum() / denominator
    return total / loss_length if loss_length is not None else total


def metrics_as_floats(metrics: dict[str, Tensor]) -> dict[str, float]:
    """Return the same dict with floats, fetched from the device in one transfer."""
    numbers = torch.stack([metric.detach().double() for metric in metrics.values()]).tolist()
    return dict(zip(metrics, numbers, strict=True))


def _check_aggregation(aggregation: str) -> None:
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation must be one of {', '.join(get_args(Aggregation))}: got {aggregation!r}")


def _check_loss_length(aggregation: str, loss_length: int | None) -> None:
    if aggregation == "seq-mean-token-sum-norm":
        if loss_length is None or loss_length <= 0:
            raise ValueError(
                f"'seq-mean-token-sum-norm' needs a positive loss_length: got {loss_length}; give a constant "
                "of the run, such as the largest response length (T would change with the padding)"
            )
    elif loss_length is not None:
        raise ValueError(
            f"loss_length belongs to 'seq-mean-token-sum-norm': got {loss_length} with {aggregation!r}; "
            "drop it or change the aggregation"
        )
