"""Adapters of peft that were trained elsewhere: read, checked against the policy, and put into it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uirl.config.sections.model import LoraConfig
from uirl.errors import CheckpointError, ConfigError
from uirl.learner import lora
from uirl.runtime.folders import read_tensors

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
    """Copy the adapter in `folder`, as `peft` saves it, into the adapters of `model` (see `lora.add_adapters`).

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
    targets = dict(lora.peft_weights(model))
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
    path = source / lora.ADAPTER_FILE
    if not path.is_file():
        raise ConfigError(
            f"model.adapter_path: {source} has no {lora.ADAPTER_FILE}; expected weights as safetensors: load it with "
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
