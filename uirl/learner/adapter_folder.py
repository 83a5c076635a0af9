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
_PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "fan_in_fan_out": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "trainable_token_indices": None,
    "layer_replication": None,
}
"""What peft's settings must say: an adapter of another kind computes something else from the same weights."""


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
        got = settings.get(key)
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
    return settings


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
    for key, expected in _PLAIN.items():
        got = settings.get(key, expected)
        if got != expected and (got or expected):
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
