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
    config = config.model_copy(deep=True)
    config.model.dtype = dtype_of(config.model, gpu=gpu)  # type: ignore[assignment]
    policy = policy_of_shapes(config)
    where = "GPU" if gpu else "machine"
    moment = Moment(where, "training", {**states_of(policy, config), **copies_beside(policy, config)}, memory)
    if moment.fits:
        return
    parts = ", ".join(f"{name} {gib(size)}" for name, size in moment.parts.items() if size)
    raise ConfigError(
        f"{policy.loaded.name} cannot be trained here: got {parts}, {gib(moment.total)} GiB in all, expected at most "
        f"the {gib(memory)} GiB of this {where}; {_remedy(config)} `uirl plan` says what would fit"
    )


def _remedy(config: ConfigStore) -> str:
    if not config.model.use_lora:
        return "train adapters alone (model.use_lora=true)."
    if config.model.dtype == "float32":
        return "load it in 16 bits (model.dtype=bfloat16)."
    return "take a smaller model."
