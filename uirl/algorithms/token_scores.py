"""Log-probs of sampled tokens and entropies of what they were drawn from, without a second tensor of logits."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

_BLOCK_ELEMENTS = 2**19
"""Numbers of the vocabulary axis worked on at once: 2 MB of float32 stay in the cache of a core."""

T = TypeVar("T")


class _Wanted(NamedTuple):
    temperature: float
    entropy: bool
    entropy_gradient: bool


def score_tokens(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, *, entropy: bool = True, entropy_gradient: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return the log-prob of each target and the entropy of each distribution, in nats. It consumes `logits`.

    `z = logits / temperature`, `log_probs[n] = z[n, targets[n]] - logsumexp(z[n])`,
    `entropy[n] = -sum(p * log(p))` with `p = softmax(z[n])`.

    Args:
        logits: `[N, V]`; float16 and bfloat16 are computed in float32. Those of banned tokens may be -inf.
        targets: int64 `[N]`.
        temperature: above 0.
        entropy: false: None instead of the entropies.
        entropy_gradient: false: the entropies carry no gradient.

    Returns:
        `[N]` each, float32 (float64 for float64), differentiable.

    The backward pass writes the gradient over `logits`, which therefore must not be read by anybody else; a second
    backward pass is an error of torch. Both passes visit the rows in blocks.
    """
    if logits.dim() != 2 or not logits.is_floating_point() or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be floats [N, V] and targets [N]: got {logits.dtype}, shapes {tuple(logits.shape)} and "
            f"{tuple(targets.shape)}"
        )
    wanted = _Wanted(temperature, entropy, entropy and entropy_gradient)
    log_probs, entropies = cast(Any, _TokenScores).apply(logits, targets, wanted)
    return log_probs, entropies


class _TokenScores(torch.autograd.Function):
    """`d log_prob / dz = onehot - p` and `d entropy / dz = -p * (log(p) + entropy)`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, wanted: _Wanted) -> tuple[Tensor, Tensor | None]:
        parts = _visit(logits, lambda block: _score(_scaled(logits[block], wanted), targets[block], wanted))
        log_sums, log_probs, *more = (torch.cat(column) for column in zip(*parts, strict=True))
        entropies = more[0] if more else None
        ctx.wanted = wanted
        ctx.save_for_backward(logits, targets, log_sums, entropies if wanted.entropy_gradient else None)
        if entropies is not None and not wanted.entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor, of_entropies: Tensor | None) -> tuple[Tensor, None, None]:
        logits, targets, log_sums, entropies = ctx.saved_tensors
        wanted: _Wanted = ctx.wanted

        def write(block: slice) -> None:
            rows, outer = logits[block], of_log_probs[block, None]
            log_p = _scaled(rows, wanted).sub_(log_sums[block, None])
            if entropies is None or of_entropies is None:
                grad = log_p.exp_().mul_(-outer)
            else:
                p = log_p.exp()
                inner = _finite(log_p).add_(entropies[block, None]).mul_(of_entropies[block, None]).add_(outer)
                grad = inner.mul_(p).neg_()
            grad.scatter_add_(1, targets[block, None], outer)
            rows.copy_(grad if wanted.temperature == 1.0 else grad.div_(wanted.temperature))

        _visit(logits, write)
        return logits, None, None


def _score(z: Tensor, targets: Tensor, wanted: _Wanted) -> tuple[Tensor, ...]:
    """Return (logsumexp, log-probs, entropies if wanted) of the rows `z` [n, V], which it overwrites.

    With `s = sum(exp(z))` of rows whose largest number is 0: `log_prob = z[target] - log(s)` and
    `entropy = log(s) - sum(exp(z) * z) / s`.
    """
    largest = z.amax(1, keepdim=True)
    z.sub_(largest)
    chosen = z.gather(1, targets[:, None])
    unnormalised = z.exp()
    total = unnormalised.sum(1, keepdim=True)
    log_total = total.log()
    scores = [largest + log_total, chosen - log_total]
    if wanted.entropy:
        mean = unnormalised.mul_(_finite(z)).sum(1, keepdim=True).div_(total)
        scores.append(log_total - mean)
    return tuple(score[:, 0] for score in scores)


def _scaled(rows: Tensor, wanted: _Wanted) -> Tensor:
    """Return a copy of `rows` [n, V] in float32 or float64, divided by the temperature."""
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    copy = rows.to(dtype, copy=True)
    return copy if wanted.temperature == 1.0 else copy.div_(wanted.temperature)


def _finite(log_p: Tensor) -> Tensor:
    """Return log-probs [n, V], -inf replaced in place by a finite number that 0 may be multiplied by; NaN stays."""
    return log_p.clamp_(min=-1e30)


def _visit(rows: Tensor, act: Callable[[slice], T]) -> list[T]:
    """Return what `act` says of blocks of the `rows` [n, V] of about `_BLOCK_ELEMENTS` numbers, one after the other;
    of one empty block for no rows."""
    size = max(1, _BLOCK_ELEMENTS // max(1, rows.shape[-1]))
    return [act(slice(start, start + size)) for start in range(0, max(1, len(rows)), size)]
