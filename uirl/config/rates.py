"""Learning rates that nobody chose: by what is trained."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from uirl.config.sections.evolve import EvolveConfig
from uirl.config.sections.training import TrainingConfig, WarmStartConfig
from uirl.config.tree import ConfigTree


class Rates(NamedTuple):
    """Peak learning rates of AdamW."""

    built_in: float
    """The tiny models of this package."""
    adapters: float
    """Of a checkpoint."""
    full: float
    """All weights of a checkpoint."""


USUAL = {"training": Rates(4e-4, 2e-5, 1e-6), "warm_start": Rates(1e-3, 1e-4, 1e-5), "evolve": Rates(5e-4, 1e-4, 1e-5)}
"""By phase. Reinforcement learning of all weights: DeepSeekMath (2402.03300) and DAPO (2503.14476); adapters want ten
times as much, and more in short runs (Schulman et al. 2025, LoRA Without Regret)."""


def usual_rate(config: ConfigTree, phase: str) -> float:
    """Return the rate of `phase`, a key of `USUAL`, for what `config` trains."""
    rates = USUAL[phase]
    if config.model.built_in:
        return rates.built_in
    return rates.adapters if config.model.use_lora else rates.full


def rate_of(config: ConfigTree, phase: str) -> float:
    """Return the learning rate of `phase`: what its section says, or the usual one where that is None."""
    written = _sections(config)[phase].learning_rate
    return usual_rate(config, phase) if written is None else written


def choose_rates(config: ConfigTree, phases: Collection[str]) -> dict[str, float]:
    """Set the learning rates of `phases` that are None, and of 'training' the weight of the entropy bonus, in place;
    return key -> value of those."""
    chosen: dict[str, float] = {}
    for phase, section in _sections(config).items():
        if phase in phases and section.learning_rate is None:
            section.learning_rate = chosen[f"{section.key}.learning_rate"] = usual_rate(config, phase)
    if "training" in phases and config.training.entropy_coef is None:
        chosen["training.entropy_coef"] = config.training.entropy_coef = config.entropy_coef
    return chosen


def _sections(config: ConfigTree) -> dict[str, TrainingConfig | WarmStartConfig | EvolveConfig]:
    return {"training": config.training, "warm_start": config.training.warm_start, "evolve": config.evolve}
