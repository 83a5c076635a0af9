"""Vision families that cannot work here, as small folders, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from tests.inference.models.picture_families import Family, text_config, tokenizer_of, tower, write
from uirl.config import ModelConfig
from uirl.inference.models.tiny import _vision_config, image_processor


@dataclass(frozen=True)
class Refused:
    """One kind of model."""

    write: Callable[[Path], None]
    """Writes a folder of it; of its config alone where that says enough."""
    reason: str
    """For people."""
    said: str
    """A pattern of the error."""
    by: str = "at load"
    """'at load', or 'by the embedded engine'."""


def _config(name: str) -> Callable[[Path], None]:
    return lambda folder: getattr(transformers, name)().save_pretrained(folder)


def _paligemma(folder: Path) -> None:
    tokenizer = tokenizer_of(Family(_nothing, "", marks=("<bos>",)))
    tokenizer.bos_token = "<bos>"
    vision = {**tower(56), "model_type": "siglip_vision_model", "vision_use_head": False, "projection_dim": 32}
    config = transformers.PaliGemmaConfig(
        text_config=text_config(tokenizer, "gemma"),
        vision_config=vision,
        projection_dim=32,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    images = transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56}, image_seq_length=16)
    write(folder, transformers.PaliGemmaForConditionalGeneration(config), tokenizer, images)


def _mllama(folder: Path) -> None:
    tokenizer = tokenizer_of(Family(_nothing, "", "<|image|>", marks=("<|begin_of_text|>",)))
    tokenizer.bos_token = "<|begin_of_text|>"
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text = text_config(tokenizer, "mllama_text_model", cross_attention_layers=[1], rope_parameters=rope, bos_token_id=0)
    vision = {"hidden_size": 16, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2}
    vision |= {"intermediate_size": 32, "image_size": 28, "patch_size": 14, "vision_output_dim": 32}
    vision |= {"intermediate_layers_indices": [0], "max_num_tiles": 4}
    config = transformers.MllamaConfig(
        text_config=text, vision_config=vision, image_token_index=tokenizer.convert_tokens_to_ids("<|image|>")
    )
    images = transformers.MllamaImageProcessorPil(size={"height": 28, "width": 28}, max_image_tiles=4)
    write(folder, transformers.MllamaForConditionalGeneration(config), tokenizer, images)


def _qwen3_5(folder: Path) -> None:
    tokenizer = tokenizer_of(Family(_nothing, "", "<|vision_start|><|image_pad|><|vision_end|>"))
    sizes = ModelConfig().tiny.model_copy(update={"hidden_size": 32, "num_heads": 2, "vision_hidden_size": 16})
    sizes.architecture = "qwen3_vl"
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    layers = {"layer_types": ["linear_attention", "full_attention"], "rope_parameters": rope}
    layers |= {f"linear_{what}_head_dim": 8 for what in ("key", "value")}
    layers |= {f"linear_num_{what}_heads": 2 for what in ("key", "value")}
    vision = _vision_config(sizes)
    vision.pop("deepstack_visual_indexes")
    token = tokenizer.convert_tokens_to_ids
    words = {"image": "<|image_pad|>", "video": "<|video_pad|>", "vision_start": "<|vision_start|>"}
    config = transformers.Qwen3_5Config(
        text_config=text_config(tokenizer, "qwen3_5_text", partial_rotary_factor=1.0, **layers),
        vision_config=vision,
        vision_end_token_id=token("<|vision_end|>"),
        **{f"{name}_token_id": token(word) for name, word in words.items()},
    )
    write(folder, transformers.Qwen3_5ForConditionalGeneration(config), tokenizer, image_processor(sizes))


def _nothing(tokenizer: Any) -> tuple[Any, Any]:
    raise NotImplementedError


def _torchvision(config: str, images: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        tokenizer = tokenizer_of(Family(_nothing, ""))
        getattr(transformers, config)().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(f'{{"image_processor_type": "{images}"}}')

    return make


_CROSS = "features enter through cross-attention or a query transformer, not as placeholders in the sequence"
_NEEDS = "its image processor has no variant for PIL: needs torchvision"

REFUSED = {
    "paligemma": Refused(
        _paligemma,
        "every token of the prompt sees all of it (prefix LM), so a next turn changes what was cached",
        "differ",
    ),
    "mllama": Refused(_mllama, _CROSS, "cannot read pictures here|differ"),
    "blip-2": Refused(_config("Blip2Config"), _CROSS, "names no placeholder token"),
    "instructblip": Refused(_config("InstructBlipConfig"), _CROSS, "names no placeholder token"),
    "idefics": Refused(_config("IdeficsConfig"), _CROSS, "names no placeholder token"),
    "kosmos-2": Refused(
        _config("Kosmos2Config"), "a mask says where pictures stand, not a token", "names no placeholder"
    ),
    "florence2": Refused(_config("Florence2Config"), "encoder and decoder", "an encoder and a decoder"),
    "llama4": Refused(
        _torchvision("Llama4Config", "Llama4ImageProcessorFast"), _NEEDS, "cannot be used without torchvision"
    ),
    "cohere2_vision": Refused(
        _torchvision("Cohere2VisionConfig", "Cohere2VisionImageProcessorFast"),
        _NEEDS,
        "cannot be used without torchvision",
    ),
    "lfm2_vl": Refused(
        _torchvision("Lfm2VlConfig", "Lfm2VlImageProcessorFast"), _NEEDS, "cannot be used without torchvision"
    ),
    "perception_lm": Refused(
        _torchvision("PerceptionLMConfig", "PerceptionLMImageProcessorFast"),
        _NEEDS,
        "cannot be used without torchvision",
    ),
    "qwen3_5": Refused(
        _qwen3_5,
        "layers with linear attention keep a state instead of keys and values",
        "layers of type linear_attention",
        by="by the embedded engine",
    ),
}
