"""From logits: log-probs of sampled tokens and entropies of what they were drawn from, without a second tensor of
logits; and the weight of the entropy bonus."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from uirl.algorithms.checks import float_dtype

_BLOCK_ELEMENTS = 2**19
"""Numbers of the vocabulary axis worked on at once: 2 MB of float32 stay in the cache of a core."""

T = TypeVar("T")


class _Wanted(NamedTuple):
    temperature: float
    entropy: bool
    entropy_gradient: bool
    keeps_logits: bool = False


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
    def backward(ctx: Any, of_log_probs: Tensor, of_entropies: Tensor | None) -> tuple[Tensor, None, None]:  # type: ignore[override]
        logits, targets, log_sums, entropies = ctx.saved_tensors
        wanted: _Wanted = ctx.wanted
        gradient = torch.empty_like(logits) if wanted.keeps_logits else logits

        def write(block: slice) -> None:
            outer = of_log_probs[block, None]
            log_p = _scaled(logits[block], wanted).sub_(log_sums[block, None])
            if entropies is None or of_entropies is None:
                grad = log_p.exp_().mul_(-outer)
            else:
                p = log_p.exp()
                inner = _finite(log_p).add_(entropies[block, None]).mul_(of_entropies[block, None]).add_(outer)
                grad = inner.mul_(p).neg_()
            grad.scatter_add_(1, targets[block, None], outer)
            gradient[block] = grad if wanted.temperature == 1.0 else grad.div_(wanted.temperature)

        _visit(logits, write)
        return gradient, None, None


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
    copy = rows.to(float_dtype(rows), copy=True)
    return copy if wanted.temperature == 1.0 else copy.div_(wanted.temperature)


def _finite(log_p: Tensor) -> Tensor:
    """Return log-probs [n, V], -inf replaced in place by a finite number that 0 may be multiplied by; NaN stays."""
    return log_p.clamp_(min=-1e30)


def _visit(rows: Tensor, act: Callable[[slice], T]) -> list[T]:
    """Return what `act` says of each block of the `rows` [n, V], of about `_BLOCK_ELEMENTS` numbers, one after the
    other; of one empty block for no rows."""
    size = max(1, _BLOCK_ELEMENTS // max(1, rows.shape[-1]))
    return [act(slice(start, start + size)) for start in range(0, max(1, len(rows)), size)]


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
    rows = logits.reshape(-1, logits.shape[-1])
    nobody = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    _, entropy = cast(Any, _TokenScores).apply(rows, nobody, _Wanted(1.0, True, True, keeps_logits=True))
    return cast(Tensor, entropy).view(logits.shape[:-1])


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
