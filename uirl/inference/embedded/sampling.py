"""From logits to one sampled token per row, and the log-prob of what was really sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from uirl.inference.base import SamplingParams


def sampling_log_probs(logits: Tensor, temperature: Tensor, top_p: Tensor | None, top_k: Tensor | None) -> Tensor:
    """Return log-probs [B, V] of the distribution tokens are drawn from; -inf for what cannot be drawn.

    log_softmax(logits / temperature), then only the `top_k` likeliest, then the smallest set whose mass reaches
    `top_p` (Holtzman et al. 2020), renormalised. `temperature` [B] where 0 counts as 1 (greedy rows report the
    log-prob of the plain distribution); `top_p`, `top_k` [B], None where no row asks for it.
    """
    scale = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    log_probs = (logits.float() / scale[:, None]).log_softmax(-1)
    if top_k is None and top_p is None:
        return log_probs
    ordered, order = log_probs.sort(-1, descending=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)[None]
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        limit = torch.where(top_k > 0, top_k, torch.full_like(top_k, logits.shape[-1]))
        keep &= ranks < limit[:, None]
    if top_p is not None:
        probs = ordered.masked_fill(~keep, float("-inf")).softmax(-1)
        keep &= (probs.cumsum(-1) - probs) < top_p[:, None]
    kept = torch.zeros_like(keep).scatter(-1, order, keep)
    return log_probs.masked_fill(~kept, float("-inf")).log_softmax(-1)


def draw(log_probs: Tensor, greedy: Tensor, uniforms: Tensor) -> Tensor:
    """Return one token per row [B]: the likeliest where `greedy`, else the inverse CDF at `uniforms` in [0, 1).

    A row depends on its own uniform alone, so a response does not depend on what else is in the batch.
    """
    cumulative = log_probs.exp().cumsum(-1)
    target = uniforms[:, None].to(cumulative.dtype) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, target, right=True)[:, 0]
    # rounding may step past the last token with mass; the likeliest is then as good as any
    best = log_probs.argmax(-1)
    drawn = drawn.clamp(max=log_probs.shape[-1] - 1)
    impossible = log_probs.gather(-1, drawn[:, None])[:, 0] == float("-inf")
    return torch.where(greedy | impossible, best, drawn)


class BatchSampling:
    """The sampling parameters of the rows of a batch, as tensors."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        self.temperature = torch.tensor([p.temperature for p in params], device=device)
        self.greedy = self.temperature == 0
        nucleus = any(p.top_p < 1 for p in params)
        self.top_p = torch.tensor([p.top_p for p in params], device=device) if nucleus else None
        limited = any(p.top_k > 0 for p in params)
        self.top_k = torch.tensor([p.top_k for p in params], device=device) if limited else None

    def sample(self, logits: Tensor, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
        """Return (token, log-prob) of each row of `logits` [B, V]."""
        log_probs = sampling_log_probs(logits, self.temperature, self.top_p, self.top_k)
        tokens = draw(log_probs, self.greedy, torch.tensor(uniforms, device=logits.device))
        return tokens.tolist(), log_probs.gather(-1, tokens[:, None])[:, 0].tolist()
