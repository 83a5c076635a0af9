"""Refuses a run that cannot fit before anything of it is loaded."""

from __future__ import annotations

import torch

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.inference.models.precision import device_of, dtype_of
from uirl.runtime.memory import whole_memory
from uirl.training.plan.moment import Moment, gib
from uirl.training.plan.states import copies_beside, policy_of_shapes, states_of


def memory_here(config: ConfigStore) -> tuple[bool, int | None]:
    """Return (whether the run is on a GPU, all bytes of that GPU or of this machine; None: unknown)."""
    device = device_of(config.model.device)
    if device.type == "cuda":
        return True, torch.cuda.get_device_properties(device).total_memory
    return False, whole_memory()


def require_room(config: ConfigStore) -> None:
    """Raise ConfigError where what a run keeps for good (weights, gradients, optimiser, copies) is more than all the
    memory there is. What only its longest sequences take does not count: they may never come, and micro-batches
    shrink."""
    if config.model.built_in:
        return
    gpu, memory = memory_here(config)
    if memory is None:
        return
    moment = _kept(config, gpu, memory)
    if moment.fits:
        return
    where, name = moment.where, config.model.source
    parts = ", ".join(f"{name} {gib(size)}" for name, size in moment.parts.items() if size)
    raise ConfigError(
        f"{name} cannot be trained here: got {parts}, {gib(moment.total)} GiB in all, expected at most "
        f"the {gib(memory)} GiB of this {where}; {_remedy(config, gpu, memory)} `uirl plan` says what would fit"
    )


def _kept(config: ConfigStore, gpu: bool, memory: int) -> Moment:
    """Return what a run keeps for good."""
    config = config.model_copy(deep=True)
    config.model.dtype = dtype_of(config.model, gpu=gpu)  # type: ignore[assignment]
    policy = policy_of_shapes(config)
    sizes = {**states_of(policy, config), **copies_beside(policy, config)}
    return Moment("GPU" if gpu else "machine", "training", sizes, memory)


def _remedy(config: ConfigStore, gpu: bool, memory: int) -> str:
    """Return the first changes that make room, tried one on top of the other."""
    changes: list[str] = []
    for change in ("model.use_lora=true", "model.dtype=bfloat16", "model.quantization=nf4"):
        try:
            changed = config.override([*changes, change])
        except ConfigError:  # it does not go together with the rest of the config
            continue
        changes += [] if changed == config.override(changes) else [change]
        if _kept(changed, gpu, memory).fits:
            return f"it fits with: {' '.join(changes)}."
    tried = f"it does not fit with {' '.join(changes)} either: " if changes else ""
    return f"{tried}take a smaller model."
