"""Low-rank adapters (Hu et al. 2021, 2106.09685), put into the HF model in place: engine and learner see the same
module, with the same class and the same forward.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uirl.config.sections.model import LoraConfig
from uirl.errors import CheckpointError, ConfigError, ContractError
from uirl.inference.models.quantized import is_quantized, plain_weight
from uirl.runtime.folders import read_tensors, write_tensors

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
    inside = "" if config.vision else _inside(model)
    names = [name for name in _adaptable(model) if name.startswith(inside)]
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

    targets = _targets(model)
    description = PeftConfig(
        r=config.r,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora_dropout,
        # whole paths: the last part alone would fit layers of a vision tower that has no adapter
        target_modules=targets.layers,
        target_parameters=sorted(targets.parameters) or None,
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


_SETTINGS = "adapter_config.json"
_ELSEWHERE = frozenset({
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "runtime_config", "r", "lora_alpha", "lora_dropout", "target_modules", "target_parameters", "exclude_modules",
    "layers_to_transform", "layers_pattern", "init_lora_weights", "megatron_core", "qalora_group_size",
})  # fmt: skip
"""Settings of peft that say nothing of what the weights compute, that are compared by themselves, or that say which
layers have weights, which those in the folder say too. All others must be as peft has them by itself."""
_BEGUN_BESIDE = (True, False, "gaussian", "orthogonal", "eva")
"""Ways to begin with adapters that leave the base model as it is."""


@torch.no_grad()
def load_adapter(folder: str | Path, model: nn.Module, config: LoraConfig, *, base: str) -> None:
    """Copy the adapter in `folder`, as `peft` saves it, into the adapters of `model` (see `add_adapters`).

    `base`: what the model is called. Raises ConfigError, before anything is copied, where the folder holds no plain
    LoRA, where it names another base model, and where rank, scale, layers or shapes are others than those of `config`;
    each says what was got, what was expected, and what to set.
    """
    source = Path(folder)
    settings = _settings(source)
    _require_plain(source, settings)
    _require_base(source, settings.get("base_model_name_or_path"), base)
    for key, expected in (("r", config.r), ("lora_alpha", config.lora_alpha)):
        got = settings[key]
        if got != expected:
            raise ConfigError(
                f"model.adapter_path: {source} has {key}={got}, expected the {expected} of model.lora.{key}; set "
                f"model.lora.{key}={got}"
            )
    stored = _tensors(source)
    targets = dict(peft_weights(model))
    _require_layers(source, set(stored), set(targets))
    for name, target in targets.items():
        if stored[name].shape != target.shape:
            raise ConfigError(
                f"model.adapter_path: {source} belongs to another base model: {name} is {tuple(stored[name].shape)} "
                f"there, expected {tuple(target.shape)} for {base}; load the model that it was trained on"
            )
        if not stored[name].isfinite().all():
            raise ConfigError(f"model.adapter_path: {name} in {source} is not finite; expected numbers: train it anew")
    for name, target in targets.items():
        target.copy_(stored[name])


def _settings(source: Path) -> Mapping[str, Any]:
    """Return the settings of an adapter, with peft's own where it names none."""
    try:
        settings = json.loads((source / _SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.adapter_path: got {source}, expected a folder of peft with a readable {_SETTINGS} ({error}); for a "
            "checkpoint of uirl name its folder 'adapter'"
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"model.adapter_path: {source / _SETTINGS} is no JSON object; save the adapter with peft again"
        )
    return _usual() | settings


def _usual() -> dict[str, Any]:
    from peft import LoraConfig as PeftConfig

    return {**PeftConfig().to_dict(), "peft_type": "LORA"}


def _tensors(source: Path) -> dict[str, Tensor]:
    path = source / ADAPTER_FILE
    if not path.is_file():
        raise ConfigError(
            f"model.adapter_path: {source} has no {ADAPTER_FILE}; expected weights as safetensors: load it with "
            "peft and save it again (safe_serialization=True)"
        )
    try:
        return read_tensors(path)
    except CheckpointError as error:
        raise ConfigError(f"model.adapter_path: {error}") from error


def _require_plain(source: Path, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for an adapter that computes something else from its weights than a plain LoRA, or from another
    base model than the one it names; settings that this peft does not know count where they say something."""
    usual = _usual()
    for key, got in settings.items():
        expected = usual.get(key)
        fits = key in _ELSEWHERE or got == expected or not (got or expected)
        if key == "init_lora_weights" and got not in _BEGUN_BESIDE:
            fits, expected = False, usual[key]
        if not fits:
            raise ConfigError(
                f"model.adapter_path: {source} has {key}={got!r}, expected {expected!r}, a plain LoRA; merge it into "
                "its base model with peft (merge_and_unload) and train that (model.local_path)"
            )


def _require_base(source: Path, named: str | None, base: str) -> None:
    """Raise ConfigError where both names are ids of the hub and differ. Folders may be called anything."""
    if named and _is_id(named) and _is_id(base) and named.lower() != base.lower():
        raise ConfigError(
            f"model.adapter_path: {source} was trained on {named}, got the base model {base}; set "
            f"model.model_name={named}"
        )


def _is_id(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def _require_layers(source: Path, got: set[str], expected: set[str]) -> None:
    if got == expected:
        return
    more, less = sorted(got - expected), sorted(expected - got)
    leaves = sorted({name.rsplit(".lora_", 1)[0].rsplit(".", 1)[-1] for name in got})
    difference = f"it has {more[0]}, which this policy has not" if more else f"it lacks {less[0]}"
    raise ConfigError(
        f"model.adapter_path: {source} adapts other layers than model.lora.target and model.lora.vision choose: "
        f"{difference} ({len(more)} more, {len(less)} less). Expected the same layers: set model.lora.target="
        f"[{', '.join(leaves)}], or load the base model that it was trained on"
    )
