"""Qwen2.5-VL as its config.json files describe it (huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct ...): sizes alone."""

from __future__ import annotations

from typing import Any

_TEXT = {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
SIZES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "3B": (
        {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2}
        | {"intermediate_size": 11008, "vocab_size": 151_936},
        {"intermediate_size": 3420, "out_hidden_size": 2048},
    ),
    "7B": (
        {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
        | {"intermediate_size": 18944, "vocab_size": 152_064},
        {"intermediate_size": 3420, "out_hidden_size": 3584},
    ),
    "32B": (
        {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8}
        | {"intermediate_size": 27648, "vocab_size": 152_064},
        {"intermediate_size": 3456, "out_hidden_size": 5120},
    ),
    "72B": (
        {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
        | {"intermediate_size": 29568, "vocab_size": 152_064},
        {"intermediate_size": 3456, "out_hidden_size": 8192},
    ),
}
PARAMETERS = {"3B": 3_754_622_976, "7B": 8_292_166_656, "32B": 33_452_718_336, "72B": 73_410_777_344}
"""As the safetensors indices of the checkpoints add up."""


def qwen(size: str) -> Any:
    """The HuggingFace config of one of them."""
    from transformers import Qwen2_5_VLConfig

    text, vision = SIZES[size]
    return Qwen2_5_VLConfig(text_config=text | _TEXT, vision_config=_VISION | vision, tie_word_embeddings=size == "3B")
