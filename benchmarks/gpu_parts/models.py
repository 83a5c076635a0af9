"""Policies with the shapes of published checkpoints and random weights, which need no download.

The sizes are those of `tests/published.py`, as the tests of `uirl plan` take them. The tokenizer is made here, and has
as many tokens as the model, most of which no text is encoded to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

from benchmarks.gpu_parts.setting import Setting
from tests.published import write_published
from uirl.algorithms import get_algorithm
from uirl.config import ConfigStore
from uirl.inference import LoadedModel
from uirl.inference.models.features import PictureFeatures
from uirl.inference.models.loading import load_model, wrap_model
from uirl.inference.models.precision import DTYPES, dtype_of
from uirl.learner import Policy

SHARPNESS = 4.0
"""Factor of the last norm. With the usual 0.02 of random weights a reply would be drawn from a nearly flat
distribution, in which rounding shows less than in that of a trained model."""
_TINY = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
_TINY |= {"bos_token_id": 1, "eos_token_id": 2}  # those of the full vocabulary have no row here
_TINY |= {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 600}
_TINY_VISION = {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128, "out_hidden_size": 64}


def checkpoint_of(name: str, setting: Setting) -> Path:
    """The folder with the config, the tokenizer and the processor of `name`, written where there is none."""
    folder = setting.folder / f"{name}{'-tiny' if setting.tiny else ''}"
    if not (folder / "config.json").exists():
        write_published(name, folder, whole_vocabulary=not setting.tiny)
        if setting.tiny:
            _shrink(folder / "config.json")
    return folder


def policy_of(config: ConfigStore, setting: Setting) -> Policy:
    """The policy of a run, whose model is that of `model.local_path` with random weights, made on the device."""
    model = config.model
    return Policy(
        loaded_of(config, setting),
        critic=get_algorithm(config.training.adv_estimator).needs_critic,
        lora_config=model.lora if model.use_lora else None,
        gradient_checkpointing=bool(model.gradient_checkpointing),
        freeze_vision=model.freeze_vision,
    )


def loaded_of(config: ConfigStore, setting: Setting) -> LoadedModel:
    """The same without adapters and value head."""
    shapes = load_model(config.model, weights=False)
    kind: Any = AutoModelForCausalLM if shapes.vision is None else AutoModelForImageTextToText
    torch.manual_seed(0)
    attention = config.model.attn_implementation or "sdpa"
    with torch.device(setting.device):
        made = kind.from_config(shapes.config, dtype=DTYPES[dtype_of(config.model)], attn_implementation=attention)
    made.get_decoder().norm.weight.data.mul_(SHARPNESS)
    made.generation_config = GenerationConfig(eos_token_id=shapes.tokenizer.eos_token_id)
    front = None if shapes.vision is None else shapes.vision.front
    loaded = wrap_model(made.eval(), shapes.tokenizer, front, name=shapes.name)
    if loaded.vision is not None:
        kept = int(config.model.picture_cache_gib * 2**30)
        loaded.vision.cache.kept.keep_at_most(kept)
        loaded.features = PictureFeatures(kept)
    return loaded


def _shrink(path: Path) -> None:
    """Give the model of a config.json a few small layers, and leave its kind as it is."""
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    text |= {name: size for name, size in _TINY.items() if name in text or name != "head_dim"}
    rope = text.get("rope_parameters") or {}
    if "mrope_section" in rope:
        rope["mrope_section"] = [2, 3, 3]
    text.pop("layer_types", None)
    if (vision := config.get("vision_config")) is not None:
        vision |= _TINY_VISION
        vision |= {"deepstack_visual_indexes": [0]} if "deepstack_visual_indexes" in vision else {}
        vision |= {"fullatt_block_indexes": [1]} if "fullatt_block_indexes" in vision else {}
    path.write_text(json.dumps(config))
