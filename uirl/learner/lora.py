"""Low-rank adapters (Hu et al. 2021, 2106.09685), put into the HF model in place: engine and learner see the same
module, with the same class and the same forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uirl.config.sections.model import LoraConfig
from uirl.errors import ConfigError, ContractError
from uirl.inference.models.quantized import plain_weight
from uirl.runtime.folders import write_tensors

ATTENTION = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv", "qkv_proj", "proj"})
MLP = frozenset({"gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "linear_fc1", "linear_fc2"})
VISION_ROOTS = frozenset({"visual", "vision_tower", "vision_model"})
"""What HF calls the vision tower of a model."""

ADAPTER_FILE = "adapter_model.safetensors"
"""What peft calls the file with an adapter's weights."""
_ADAPTER = "default"


def add_adapters(model: nn.Module, config: LoraConfig, *, seed: int) -> None:
    """Put adapters into `model` and freeze everything else. They start as no change at all (B = 0).

    `config.target`: 'attention', 'mlp', 'all', or names of linear layers (the last part of their path). The vision
    tower is left alone unless `config.vision`. Raises ConfigError where no layer fits.
    """
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model.use_lora needs the package peft: pip install peft") from error
    chosen = target_modules(model, config)
    settings = PeftConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora_dropout,
        target_modules=chosen,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    got = {name for name, _ in _adapted(model)}
    if got != set(chosen):
        raise ContractError(f"peft adapted other layers than asked for: {sorted(got ^ set(chosen))[:4]}")


def target_modules(model: nn.Module, config: LoraConfig) -> list[str]:
    """Return paths of the linear layers that get an adapter."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    decoder = model.get_decoder()  # type: ignore[operator]
    inside = next(f"{name}." for name, m in model.named_modules() if m is decoder)
    reach = [name for name in linear if config.vision or name.startswith(inside)]
    leaves = {name: name.rsplit(".", 1)[-1] for name in reach}
    if isinstance(config.target, str):
        wanted = {"attention": ATTENTION, "mlp": MLP, "all": ATTENTION | MLP}[config.target]
    else:
        wanted = frozenset(config.target)
        missing = sorted(wanted - set(leaves.values()))
        if missing:
            raise ConfigError(
                f"model.lora.target names no linear layer {', '.join(missing)}; this model has "
                f"{', '.join(sorted(set(leaves.values())))}" + ("" if config.vision else " outside its vision tower")
            )
    chosen = [name for name in reach if leaves[name] in wanted]
    if not chosen:
        raise ConfigError(
            f"model.lora.target={config.target!r} fits no linear layer; this model has "
            f"{', '.join(sorted(set(leaves.values())))}. Give the names as a list."
        )
    return chosen


@contextlib.contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Return a context in which the model is what it was before its adapters."""
    layers = [layer for _, layer in _adapted(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def adapter_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name in the HF model, tensor) of the adapters alone."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            yield name, parameter


def peft_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of the adapters as an `adapter_model.safetensors` of peft spells them."""
    for name, parameter in adapter_weights(model):
        yield "base_model.model." + name.replace(f".{_ADAPTER}.", "."), parameter


def peft_config(model: nn.Module, config: LoraConfig) -> dict[str, Any]:
    """Return the `adapter_config.json` of peft that goes with `peft_weights`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({path.rsplit(".", 1)[-1] for path, _ in _adapted(model)}),
        "base_model_name_or_path": "",
    }


def save_adapter(folder: Path, model: nn.Module, config: LoraConfig, *, base: str) -> None:
    """Write the adapters as peft does: `PeftModel.from_pretrained` reads the folder, and so do HF's auto classes where
    `base`, the model the adapters belong to, is a HF id or a folder."""
    from peft import LoraConfig as PeftConfig

    description = PeftConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora_dropout,
        # whole paths: the last part alone would fit layers of a vision tower that has no adapter
        target_modules=[path for path, _ in _adapted(model)],
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    description.save_pretrained(str(folder))
    write_tensors(folder / ADAPTER_FILE, dict(peft_weights(model)))


def untouched(model: nn.Module) -> bool:
    """Return whether the adapters still change nothing: every B is 0."""
    return all(not bool(tensor.any()) for name, tensor in adapter_weights(model) if ".lora_B." in name)


@torch.no_grad()
def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of the model as if it never had adapters, their change added to the weights: W + B A alpha /
    r.

    Names are those of the HF model before `add_adapters`. Without adapters these are the parameters themselves. Weights
    of 4 bits are given as what they mean, which is what the adapters were trained on.
    """
    changed = dict(_adapted(model))
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        path, _, leaf = name.rpartition(".base_layer.")
        if not path:
            yield name, plain_weight(parameter)
        elif leaf == "weight":
            delta, weight = changed[path].get_delta_weight(_ADAPTER), plain_weight(parameter)
            yield f"{path}.weight", (weight.float() + delta.float()).to(weight.dtype)
        else:
            yield f"{path}.{leaf}", parameter


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (path, layer) of the layers with an adapter."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def freeze_vision(model: nn.Module, name: str) -> None:
    """Take the vision tower of `model`, called `name`, out of what is trained. Raises ConfigError where there is
    none."""
    frozen = [parameter for path, parameter in model.named_parameters() if in_vision(path)]
    if not frozen:
        raise ConfigError(
            f"model.freeze_vision=true: got {name}, which has no vision tower (expected weights below one of "
            f"{', '.join(sorted(VISION_ROOTS))}); set model.freeze_vision=false"
        )
    for parameter in frozen:
        parameter.requires_grad_(False)


def in_vision(path: str) -> bool:
    """Return whether the weight or layer at `path` belongs to the vision tower."""
    return not VISION_ROOTS.isdisjoint(path.split("."))
