"""Tiny random models of every family whose layers see less than all: sliding windows, chunks, sinks."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from uirl.inference import LoadedModel
from uirl.inference.models.loading import wrap_model
from uirl.inference.models.tiny import build_tokenizer

WINDOW = 8

_EXPERTS = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4) | {"num_experts_per_tok": 2}
_SMALL = dict.fromkeys(("head_dim", "v_head_dim"), 8) | dict.fromkeys(
    ("moe_intermediate_size", "shared_expert_intermediate_size"), 32
)
_LAYERS = {"layer_types": ["sliding_attention", "full_attention"] * 2}
FAMILIES: dict[str, dict[str, Any]] = {
    # a window for every layer, and no layer_types
    "mistral": {},
    "ministral3": {},
    "mixtral": _EXPERTS,
    "phi3": {},
    "phimoe": _EXPERTS,
    "starcoder2": {},
    "doge": {},
    # layer_types of their own making
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 2, **_EXPERTS, **_SMALL},
    "qwen3": {"use_sliding_window": True, "max_window_layers": 2, "head_dim": 8},
    "qwen3_moe": {"use_sliding_window": True, **_EXPERTS, **_SMALL},
    "smollm3": {"use_sliding_window": True, **_LAYERS},
    "gemma2": {"head_dim": 8, **_LAYERS},
    "gemma3_text": {"head_dim": 8, **_LAYERS},
    "gemma4_text": {"head_dim": 8, "global_head_dim": 8, "hidden_size_per_layer_input": 0, **_LAYERS},
    "vaultgemma": {"head_dim": 8, **_LAYERS},
    "cohere2": _LAYERS,
    "cohere2_moe": {**_EXPERTS, "head_dim": 8, **_LAYERS},
    "ministral": {"head_dim": 8, **_LAYERS},
    "olmo3": _LAYERS,
    "exaone4": _LAYERS,
    "exaone_moe": {**_EXPERTS, **_SMALL, **_LAYERS},
    "afmoe": {**_EXPERTS, **_SMALL, **_LAYERS},
    "cwm": {"head_dim": 8, "bos_token_id": 0, **_LAYERS},
    "laguna": {**_EXPERTS, **_SMALL, **_LAYERS},
    "mellum": {**_EXPERTS, **_SMALL, **_LAYERS},
    "beam": {**_EXPERTS, **_SMALL, "num_experts": 16},
    "flint": {**_EXPERTS, **_SMALL},
    "granite_swa": {},
    "granitemoe_swa": {},
    "kolibri1": {**_EXPERTS, **_SMALL},
    "lara_mini": {**_EXPERTS, **_SMALL, **_LAYERS},
    "lfm3": _LAYERS,
    # sinks beside the windows
    "mimo_v2_flash": {**_EXPERTS, **_SMALL},
    "gpt_oss": {"head_dim": 8, **_EXPERTS, **_LAYERS},
    # chunks
    "llama4_text": {
        "head_dim": 8,
        "intermediate_size_mlp": 64,
        "num_local_experts": 4,
        "attention_chunk_size": WINDOW,
        "layer_types": ["chunked_attention", "full_attention"] * 2,
    },
}


def windowed_model(family: str, *, dtype: torch.dtype = torch.float32, **options: Any) -> LoadedModel:
    """A model of four layers with random weights large enough that attention matters."""
    tokenizer = build_tokenizer(512)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.3,
        "sliding_window": WINDOW,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    kind: Any = CONFIG_MAPPING[family]
    own = FAMILIES.get(family, {}) | options
    known = kind.__dataclass_fields__
    config = kind(**{k: v for k, v in (sizes | own).items() if k in options or k in known})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    return wrap_model(model, tokenizer, None, name=f"tiny {family}")
