"""Low-rank adapters (Hu et al. 2021, 2106.09685), put into the HF model in place: engine and learner see the same
module, with the same class and the same forward.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uirl.config.sections.model import LoraConfig
from uirl.errors import ConfigError, ContractError
from uirl.inference.models.quantized import is_quantized, plain_weight
from uirl.runtime.folders import write_tensors

ATTENTION = ("attn", "attention")
"""Words in the path of a layer that belongs to attention; all others are those of `target: mlp`."""
LEAST_SHARE = 0.5
"""Of the weights of a model's layers, what `target: all` has to reach."""
VISION_ROOTS = frozenset({"visual", "vision_tower", "vision_model"})
"""What HF calls the vision tower of a model."""

ADAPTER_FILE = "adapter_model.safetensors"
"""What peft calls the file with an adapter's weights."""
_ADAPTER = "default"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Targets:
    """Paths of what gets an adapter."""

    layers: list[str]
    """Linear layers."""
    parameters: list[str]
    """Weights [experts, n, m] of all experts of a layer in one."""

    @property
    def weights(self) -> set[str]:
        """The names of the weights that are adapted."""
        return {*(f"{path}.weight" for path in self.layers), *self.parameters}


def add_adapters(model: nn.Module, config: LoraConfig, *, seed: int) -> None:
    """Put adapters into `model` and freeze everything else. They start as no change at all (B = 0).

    `config.target`: 'attention', 'mlp', 'all', or names of linear layers (the last part of their path). The vision
    tower is left alone unless `config.vision`. Raises ConfigError where no layer fits, and where 'all' reaches less
    than `LEAST_SHARE` of the weights.
    """
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("model.use_lora needs the package peft: pip install peft") from error
    chosen = target_modules(model, config)
    share = adapted_share(model, chosen)
    if config.target == "all" and share < LEAST_SHARE:
        raise ConfigError(
            f"model.lora.target=all reaches {share:.0%} of the weights of this model's layers, expected at least "
            f"{LEAST_SHARE:.0%}: the others are in layers that peft knows no adapters for. Name the layers that are "
            "enough for you (model.lora.target=attention, or a list), or train all weights (model.use_lora=false)"
        )
    settings = PeftConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora_dropout,
        target_modules=chosen.layers,
        target_parameters=chosen.parameters or None,
    )
    _keep_layers(settings, model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
        except ValueError as error:
            raise ConfigError(
                f"model.lora.target={config.target!r}, lora_dropout={config.lora_dropout}: peft takes no such adapters "
                f"for this model: {error}; set model.lora.lora_dropout=0, or name other layers"
            ) from error
    got = {name for name, _ in _adapted(model)}
    if got != chosen.weights:
        raise ContractError(f"peft adapted other layers than asked for: {sorted(got ^ chosen.weights)[:4]}")
    _LOG.info("adapters change %.0f %% of the weights of the language model's layers", 100 * share)


def _keep_layers(settings: Any, model: nn.Module) -> None:
    """Let peft find all layers that `settings` name. Where experts lie in one, it takes the paths of other layers that
    end alike (`down_proj` of shared experts, of dense layers) for experts; the names of their weights it takes as they
    are."""
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    read = copy.deepcopy(settings)
    convert_peft_config_for_transformers(read, model, None)
    if mistaken := sorted(set(settings.target_modules) - set(read.target_modules)):
        settings.target_modules = sorted(set(settings.target_modules) - set(mistaken))
        settings.target_parameters = [*(settings.target_parameters or ()), *(f"{path}.weight" for path in mistaken)]


def target_modules(model: nn.Module, config: LoraConfig) -> Targets:
    """Return what gets an adapter."""
    names = [name for name in _adaptable(model) if config.vision or name.startswith(_inside(model))]
    leaves = {name: name.removesuffix(".weight").rsplit(".", 1)[-1] for name in names}
    if isinstance(config.target, list):
        missing = sorted(set(config.target) - set(leaves.values()))
        if missing:
            raise ConfigError(
                f"model.lora.target names no linear layer {', '.join(missing)}; this model has "
                f"{', '.join(sorted(set(leaves.values())))}" + ("" if config.vision else " outside its vision tower")
            )
        chosen = [name for name in names if leaves[name] in config.target]
    else:
        chosen = [name for name in names if config.target in ("all", _kind(name))]
    if not chosen:
        raise ConfigError(
            f"model.lora.target={config.target!r} fits no linear layer; this model has "
            f"{', '.join(sorted(set(leaves.values())))}. Give the names as a list."
        )
    linear = _linear_weights(model)
    layers = [name.removesuffix(".weight") for name in chosen if name in linear]
    return Targets(layers, [name for name in chosen if name not in linear])


def adapted_share(model: nn.Module, targets: Targets) -> float:
    """Return which share of the weights of the language model's layers (matrices, without embeddings) `targets` are."""
    embeddings = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
    head = model.get_output_embeddings()  # type: ignore[operator]
    inside = _inside(model)
    sizes = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if (parameter.ndim >= 2 or is_quantized(parameter))
        and name not in embeddings
        and (head is None or parameter is not head.weight)
        and name.startswith(inside)
    }
    return sum(sizes.get(name, 0) for name in targets.weights) / sum(sizes.values())


def _adaptable(model: nn.Module) -> list[str]:
    """Return the names of weights that peft can adapt: those of what its 'all-linear' means, and those [experts, n, m]
    of experts in one."""
    linear = _linear_weights(model)
    convolutions = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.modules.conv._ConvNd)}
    return linear + [n for n, p in model.named_parameters() if p.ndim == 3 and n not in convolutions]


def _linear_weights(model: nn.Module) -> list[str]:
    """Return the names of the weights of linear layers, without the head."""
    from transformers.pytorch_utils import Conv1D

    head, kinds = model.get_output_embeddings(), (nn.Linear, Conv1D)  # type: ignore[operator]
    modules = model.named_modules()
    return [f"{name}.weight" for name, m in modules if isinstance(m, kinds) and m is not head and _is_plain(m)]


@torch.no_grad()
def _is_plain(layer: nn.Module) -> bool:
    """Return whether a layer makes one tensor of another, as adapters do: some routers are linear layers that return
    what they chose as well."""
    if type(layer).forward is nn.Linear.forward or not type(layer).__module__.startswith("transformers.models."):
        return True
    weight: Tensor = layer.weight  # type: ignore[assignment]
    with contextlib.suppress(RuntimeError):  # it takes other shapes
        return isinstance(layer(weight.new_zeros(1, weight.shape[1])), Tensor)
    return False


def _inside(model: nn.Module) -> str:
    """Return how the paths of the language model begin."""
    decoder = model.get_decoder()  # type: ignore[operator]
    return next(f"{name}." if name else "" for name, module in model.named_modules() if module is decoder)


def _kind(name: str) -> str:
    """Return 'attention' or 'mlp' for a weight, and 'other' for one of a layer without a name of its own, as connectors
    have them."""
    path = name.removesuffix(".weight").split(".")
    if any(word in part for part in path for word in ATTENTION):
        return "attention"
    return "other" if path[-1].isdigit() else "mlp"


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
    """Return the `adapter_config.json` of peft that goes with `peft_weights`. Raises ConfigError for adapters of
    experts in one, which engines know in formats of their own."""
    targets = _targets(model)
    if targets.parameters:
        raise ConfigError(
            f"model.lora.target={config.target!r} adapts experts whose weights lie in one ({targets.parameters[0]}), "
            "and engines of their own take no such adapters; set model.lora.target=attention, or "
            "inference.backend=transformers"
        )
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({path.rsplit(".", 1)[-1] for path in targets.layers}),
        "base_model_name_or_path": "",
    }


def save_adapter(folder: Path, model: nn.Module, config: LoraConfig, *, base: str) -> None:
    """Write the adapters as peft does: `PeftModel.from_pretrained` reads the folder, and so do HF's auto classes where
    `base`, the model the adapters belong to, is a HF id or a folder."""
    from peft import LoraConfig as PeftConfig

    by_name = {name for name, layer in _adapted(model) if hasattr(layer, "parameter_name")}
    description = PeftConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora_dropout,
        # whole paths: the last part alone would fit layers of a vision tower that has no adapter
        target_modules=[name.removesuffix(".weight") for name, _ in _adapted(model) if name not in by_name],
        target_parameters=sorted(by_name) or None,
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
        plain, weight = without_adapters(name), plain_weight(parameter)
        if (layer := changed.get(plain)) is not None:
            weight = (weight.float() + layer.get_delta_weight(_ADAPTER).float()).to(weight.dtype)
        yield plain, weight


def without_adapters(name: str) -> str:
    """Return the name that a parameter has in the model without adapters."""
    return name.replace(".base_layer", "")


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (name of the weight in the model without adapters, layer with its adapter)."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield f"{without_adapters(name)}.{getattr(module, 'parameter_name', 'weight')}", module


def _targets(model: nn.Module) -> Targets:
    """Return what has an adapter."""
    layers = [n.removesuffix(".weight") for n, layer in _adapted(model) if not hasattr(layer, "parameter_name")]
    return Targets(layers, [n for n, layer in _adapted(model) if hasattr(layer, "parameter_name")])


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
