"""Checkpoints as their config.json files describe them: sizes alone, for what needs no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RMS = {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
_QWEN2_5_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_QWEN3_VISION = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}
_QWEN2_5_TEXT = {
    **_RMS,
    "max_position_embeddings": 128_000,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}
_QWEN3_ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
_QWEN3_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e6}
_QWEN3_TEXT = {
    **_RMS,
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262_144,
    "rope_parameters": _QWEN3_ROPE,
}
QWEN3: dict[str, dict[str, int]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32}
}
"""Of huggingface.co/Qwen/Qwen3-*."""
QWEN2_5_VL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
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
"""(text, vision) of huggingface.co/Qwen/Qwen2.5-VL-*-Instruct."""
QWEN3_VL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "2B": (
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
        {"out_hidden_size": 2048},
    ),
    "4B": (
        {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
        {"out_hidden_size": 2560},
    ),
}
"""The same of huggingface.co/Qwen/Qwen3-VL-*-Instruct."""
PARAMETERS = {
    "Qwen2.5-VL-3B": 3_754_622_976,
    "Qwen2.5-VL-7B": 8_292_166_656,
    "Qwen2.5-VL-32B": 33_452_718_336,
    "Qwen2.5-VL-72B": 73_410_777_344,
    "Qwen3-VL-2B": 2_127_532_032,
    "Qwen3-VL-4B": 4_437_815_808,
    "Qwen3-8B": 8_190_735_360,
}
"""As the safetensors indices of the checkpoints add up."""
_PIXELS = {"Qwen2.5-VL": (14, 56**2, 28**2 * 16384), "Qwen3-VL": (16, 256**2, 4096**2)}
"""Patch, smallest and largest picture, as their preprocessor_config.json says."""


def published_config(name: str, **ids: Any) -> Any:
    """The HuggingFace config of one of `PARAMETERS`. `ids`: its control tokens, where they are others."""
    from transformers import Qwen2_5_VLConfig, Qwen3Config, Qwen3VLConfig

    family, _, size = name.rpartition("-")
    if family == "Qwen3":
        text = _QWEN3_TEXT | {"max_position_embeddings": 40_960, "rope_parameters": _QWEN3_PLAIN_ROPE} | QWEN3[size]
        return Qwen3Config(**text, tie_word_embeddings=False)
    if family == "Qwen2.5-VL":
        text, vision = QWEN2_5_VL[size]
        return Qwen2_5_VLConfig(
            text_config=_QWEN2_5_TEXT | text,
            vision_config=_QWEN2_5_VISION | vision,
            tie_word_embeddings=size == "3B",
            **ids,
        )
    text, vision = QWEN3_VL[size]
    return Qwen3VLConfig(
        text_config=_QWEN3_TEXT | text, vision_config=_QWEN3_VISION | vision, tie_word_embeddings=True, **ids
    )


def write_published(name: str, folder: Path, *, whole_vocabulary: bool = False) -> Path:
    """Write a checkpoint without weights: the sizes of `name`, its way with pictures, and a small tokenizer or, with
    `whole_vocabulary`, one with as many tokens as the model has."""
    from uirl.inference.models.tiny import build_tokenizer

    tokenizer = build_tokenizer(512)
    words = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    ids = {f"{key}_token_id": tokenizer.convert_tokens_to_ids(f"<|{word}|>") for key, word in words.items()}
    config = published_config(name, **ids)
    if whole_vocabulary:
        tokenizer = with_made_up_words(tokenizer, config.get_text_config().vocab_size)
    return write_checkpoint(config, tokenizer, folder, name)


def write_checkpoint(config: Any, tokenizer: Any, folder: Path, name: str) -> Path:
    """Write config and tokenizer, and the processor of pictures of `name` where it sees."""
    from transformers import Qwen2VLImageProcessorPil

    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if (pixels := _PIXELS.get(name.rpartition("-")[0])) is not None:
        patch, smallest, largest = pixels
        size = {"shortest_edge": smallest, "longest_edge": largest}
        Qwen2VLImageProcessorPil(size=size, patch_size=patch).save_pretrained(folder)
    return folder


def with_made_up_words(tokenizer: Any, size: int) -> Any:
    """Return `tokenizer` with tokens that no text is encoded to, `size` in all."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary |= {f"made-up-{i}": i for i in range(len(vocabulary), size)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        padding_side=tokenizer.padding_side,
        extra_special_tokens=[
            t for t in tokenizer.all_special_tokens if t not in (tokenizer.eos_token, tokenizer.pad_token)
        ],
        chat_template=tokenizer.chat_template,
    )
