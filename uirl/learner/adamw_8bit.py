"""AdamW with moments of 8 bits (Dettmers et al. 2022, 2110.02861), by the package bitsandbytes, on a GPU or a CPU.

The moments of a weight are quantised in blocks of 256 numbers, each with a scale: 2 bytes a number and 1/32 more, where
two of float32 take 8. Weights of fewer than 4096 numbers keep theirs in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from uirl.errors import ConfigError

BLOCK = 256
"""Numbers that share a scale."""
SMALLEST = 4096
"""Numbers of a weight below which its moments stay in float32."""
KINDS = ("step", "state1", "state2", "absmax1", "absmax2")
"""What is kept of a weight: steps, codes of the two moments, the scales of their blocks. The tables that codes are read
by are the same for all."""


def bytes_of_moments(numbers: int) -> int:
    """Return the bytes that both moments of a weight with so many `numbers` take."""
    if numbers < SMALLEST:
        return 8 * numbers
    return 2 * numbers + 8 * -(-numbers // BLOCK)


def adamw_8bit(
    groups: Sequence[Mapping[str, Any]], *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimizer over `groups` of parameters. Raises ConfigError where bitsandbytes is missing."""
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            f"training.optimizer=adamw_8bit: cannot import bitsandbytes ({error}); pip install 'uirl[bitsandbytes]', "
            "or take training.optimizer=adamw"
        ) from error
    return AdamW8bit(groups, betas=betas, weight_decay=weight_decay, min_8bit_size=SMALLEST)


def moments_of(adam: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return what `adam` keeps of `weight` [...], by the names in `KINDS`: codes [...], scales [blocks], steps [];
    nothing before the first step."""
    state = adam.state.get(weight, {})
    kept = {kind: state[kind] for kind in KINDS if kind in state}
    return {kind: value if isinstance(value, Tensor) else torch.tensor(float(value)) for kind, value in kept.items()}


def restore_moments(adam: Any, weight: Tensor, moments: Mapping[str, Tensor]) -> None:
    """Let `adam` go on with what `moments_of` gave of `weight` [...]."""
    group = next(i for i, one in enumerate(adam.param_groups) if any(p is weight for p in one["params"]))
    place = next(i for i, p in enumerate(adam.param_groups[group]["params"]) if p is weight)
    adam.init_state(adam.param_groups[group], weight, group, place)
    for kind, value in moments.items():
        kept = int(value) if kind == "step" else value.to(weight.device, copy=True)
        adam.state[weight][kind] = kept
