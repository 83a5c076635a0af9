"""The optimiser of the grounded model: Muon for the matrices of the layers, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class MuonAndAdam:
    """Two optimisers with one learning rate.

    Muon (Jordan et al. 2024; scaled as in Liu et al. 2025, 2502.16982, equation 4) moves a matrix by the same amount in
    all directions. Embeddings, norms, biases and what is outside the layers keep AdamW, without decay.
    """

    def __init__(self, modules: Sequence[nn.Module], weight_decay: float) -> None:
        """`weight_decay`: of the matrices of the layers."""
        named = [pair for module in modules for pair in module.named_parameters()]
        matrices = [p for name, p in named if p.dim() == 2 and _in_a_layer(name)]
        others = [p for name, p in named if not (p.dim() == 2 and _in_a_layer(name))]
        self._both: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.98)),
        ]

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient, and forget the gradients."""
        for optimiser in self._both:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)


def _in_a_layer(name: str) -> bool:
    return any(part in name for part in ("layers.", "blocks.", "merger"))
