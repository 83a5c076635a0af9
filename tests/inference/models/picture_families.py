"""A tiny random model of every vision family, as a folder: config, weights, tokenizer, image processor, settings."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.inference.own_templates import OWN
from uirl.config import ModelConfig
from uirl.inference import LoadedModel, load_model
from uirl.inference.models.processors import SETTINGS_FILE, class_without_torchvision
from uirl.inference.models.tiny import _text_config, _vision_config, build_tokenizer, image_processor

_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.1,
    "max_position_embeddings": 8192,
}
_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.1,
}
_QWEN_WORDS = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
_QWEN_MARKS = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}


@dataclass(frozen=True)
class Family:
    """One kind of model."""

    make: Callable[[Any], tuple[Any, Any]]
    """(tokenizer) -> model, image processor."""
    checkpoints: str
    """Models that people know it by."""
    picture: str = "<image>"
    """What its chat template writes for a picture."""
    words: dict[str, str] = field(default_factory=dict)
    """Special tokens that its tokenizer has as attributes, such as `image_token`."""
    marks: tuple[str, ...] = ()
    """More special tokens."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Its processor_config.json."""
    own: str = ""
    """Its own chat template, one of `OWN`; empty: no package ships it, and it gets one of ours."""


@functools.cache
def _base() -> Any:
    return build_tokenizer(512)


def tokenizer_of(family: Family) -> Any:
    """A tokenizer with the special tokens of the family and a chat template that writes its pictures."""
    base = _base()
    marks = [
        *(OWN[family.own].ends if family.own else ()),
        *re.findall(r"<[^<>]+>|\[[^][]+\]", family.picture),
        *family.words.values(),
        *family.marks,
    ]
    own = OWN.get(family.own)
    template = own.text() if own else base.chat_template.replace(_QWEN_PICTURE, family.picture)
    end = own.ends[0] if own else "<|im_end|>"
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=base.backend_tokenizer.from_str(base.backend_tokenizer.to_str()),
        bos_token="<s>" if own else None,
        eos_token=end,
        pad_token="<|endoftext|>",
        padding_side="left",
        chat_template=template,
        extra_special_tokens=dict(family.words),
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(marks))}, False)
    return tokenizer


def saved(name: str, folder: Path) -> LoadedModel:
    """A tiny random model of the family, written to `folder` as HF writes it and loaded from there."""
    family = FAMILIES[name]
    tokenizer = tokenizer_of(family)
    torch.manual_seed(0)
    model, images = family.make(tokenizer)
    write(folder, model, tokenizer, images)
    if family.settings:
        (folder / SETTINGS_FILE).write_text(json.dumps(family.settings))
    return load_model(ModelConfig(local_path=str(folder), device="cpu"))


def write(folder: Path, model: Any, tokenizer: Any, images: Any) -> None:
    """Writes the parts of a model."""
    model.generation_config = transformers.GenerationConfig(eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    images.save_pretrained(folder)


def text_config(tokenizer: Any, kind: str, **more: Any) -> dict[str, Any]:
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {"model_type": kind, "vocab_size": len(tokenizer), **_TEXT, **ends, **more}


def _made(kind: str, **config: Any) -> Any:
    made = getattr(transformers, f"{kind}Config")(**config)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(made).eval()


def _images(name: str) -> Any:
    return class_without_torchvision(name, "tiny")


def _qwen(kind: str, architecture: str, **more: Any) -> Callable[[Any], tuple[Any, Any]]:
    def make(tokenizer: Any) -> tuple[Any, Any]:
        sizes = ModelConfig().tiny.model_copy(update={"hidden_size": 32, "num_heads": 2, "vision_hidden_size": 16})
        sizes.architecture = architecture  # type: ignore[assignment]
        token = tokenizer.convert_tokens_to_ids
        ids = {f"{name}_token_id": token(word) for name, word in (_QWEN_WORDS | _QWEN_MARKS).items()}
        text = _text_config(tokenizer, sizes) | more
        return _made(kind, text_config=text, vision_config=_vision_config(sizes), **ids), image_processor(sizes)

    return make


def _glm4v(tokenizer: Any) -> tuple[Any, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
    vision = {"depth": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32}
    vision |= {"image_size": 56, "patch_size": 14, "initializer_range": 0.1}
    token = tokenizer.convert_tokens_to_ids
    ids = {"image_token_id": token("<|image|>"), "video_token_id": token("<|video|>")}
    ids |= {
        f"{kind}_{end}_token_id": token(f"<|{mark}_of_{kind}|>")
        for kind in ("image", "video")
        for end, mark in (("start", "begin"), ("end", "end"))
    }
    text = text_config(tokenizer, "glm4v_text", rope_parameters=rope)
    model = _made("Glm4v", text_config=text, vision_config=vision, **ids)
    return model, transformers.Glm4vImageProcessorPil(size={"shortest_edge": 56**2, "longest_edge": 2 * 112**2})


def _clip(side: int = 28, **more: Any) -> dict[str, Any]:
    return {"model_type": "clip_vision_model", **_TOWER, "image_size": side, "patch_size": 14, **more}


def _siglip(side: int = 28, **more: Any) -> dict[str, Any]:
    return _clip(side, model_type="siglip_vision_model", vision_use_head=False, **more)


def _llava(kind: str, tower: dict[str, Any], **options: Any) -> Callable[[Any], tuple[Any, Any]]:
    def make(tokenizer: Any) -> tuple[Any, Any]:
        index = tokenizer.convert_tokens_to_ids("<image>")
        side = {"height": 28, "width": 28}
        images: Any = transformers.CLIPImageProcessorPil(size=side, crop_size=side)
        if tower["model_type"] == "siglip_vision_model":
            images = transformers.SiglipImageProcessorPil(size=side)
        config = {"text_config": text_config(tokenizer, "llama"), "vision_config": tower, "image_token_index": index}
        return _made(kind, **config, **options), images

    return make


_PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]


def _llava_next(tokenizer: Any) -> tuple[Any, Any]:
    index = tokenizer.convert_tokens_to_ids("<image>")
    config = {"text_config": text_config(tokenizer, "mistral"), "vision_config": _clip(), "image_token_index": index}
    side = {"height": 28, "width": 28}
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_size=side, image_grid_pinpoints=_PINPOINTS
    )
    return _made("LlavaNext", **config, image_grid_pinpoints=_PINPOINTS), images


def _llava_onevision(tokenizer: Any) -> tuple[Any, Any]:
    token = tokenizer.convert_tokens_to_ids
    ids = {"image_token_index": token("<image>"), "video_token_index": token("<video>")}
    config = {"text_config": text_config(tokenizer, "qwen2"), "vision_config": _siglip(), **ids}
    side = {"height": 28, "width": 28}
    images = transformers.LlavaOnevisionImageProcessorPil(size=side, image_grid_pinpoints=_PINPOINTS)
    return _made("LlavaOnevision", **config, image_grid_pinpoints=_PINPOINTS), images


def _idefics2(tokenizer: Any) -> tuple[Any, Any]:
    perceiver = {"hidden_size": 32, "resampler_n_latents": 3, "resampler_depth": 1, "resampler_n_heads": 2}
    perceiver |= {"resampler_head_dim": 16, "num_key_value_heads": 1}
    text = text_config(tokenizer, "mistral", sliding_window=None)
    model = _made(
        "Idefics2",
        text_config=text,
        vision_config=tower(56),
        perceiver_config=perceiver,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    return model, _images("Idefics2ImageProcessorPil")(size={"shortest_edge": 28, "longest_edge": 56})


def tower(side: int) -> dict[str, Any]:
    return {**_TOWER, "image_size": side, "patch_size": 14}


def _idefics3(kind: str) -> Callable[[Any], tuple[Any, Any]]:
    def make(tokenizer: Any) -> tuple[Any, Any]:
        model = _made(
            kind,
            text_config=text_config(tokenizer, "llama"),
            vision_config=tower(28),
            scale_factor=2,
            image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        )
        processor = _images(f"{kind}ImageProcessorPil")
        return model, processor(size={"longest_edge": 84}, max_image_size={"longest_edge": 28})

    return make


def _gemma3(tokenizer: Any) -> tuple[Any, Any]:
    token = tokenizer.convert_tokens_to_ids
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "query_pre_attn_scalar": 16}
    model = _made(
        "Gemma3",
        text_config=text_config(tokenizer, "gemma3_text", **layers),
        vision_config=_siglip(56),
        mm_tokens_per_image=4,
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
        image_token_index=token("<image_soft_token>"),
    )
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # made of zeros
    return model, transformers.Gemma3ImageProcessorPil(size={"height": 56, "width": 56})


def _internvl(tokenizer: Any) -> tuple[Any, Any]:
    vision = {**_TOWER, "image_size": (28, 28), "patch_size": (14, 14), "layer_scale_init_value": 1.0}
    model = _made(
        "InternVL",
        text_config=text_config(tokenizer, "qwen2"),
        vision_config=vision,
        image_seq_length=1,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
    )
    return model, transformers.GotOcr2ImageProcessorPil(size={"height": 28, "width": 28}, max_patches=3)


def _pixtral(kind: str) -> Callable[[Any], tuple[Any, Any]]:
    def make(tokenizer: Any) -> tuple[Any, Any]:
        options: dict[str, Any] = {"spatial_merge_size": 2} if kind == "Mistral3" else {}
        if kind == "Llava":
            options = {"vision_feature_select_strategy": "full", "vision_feature_layer": -1}
        vision = {"model_type": "pixtral", **tower(112), "head_dim": 8}
        index = tokenizer.convert_tokens_to_ids("[IMG]")
        text = text_config(tokenizer, "mistral", sliding_window=None)
        model = _made(kind, text_config=text, vision_config=vision, image_token_index=index, **options)
        return model, transformers.PixtralImageProcessorPil(
            size={"longest_edge": 112}, patch_size={"height": 14, "width": 14}
        )

    return make


_ROWS = tuple(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7))
_IDEFICS = ("<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *_ROWS)
_PIXTRAL: dict[str, Any] = {"picture": "[IMG]", "marks": ("[IMG_BREAK]", "[IMG_END]")}
_QWEN_PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"


FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(_qwen("Qwen2VL", "qwen2_vl"), "Qwen2-VL, UI-TARS", _QWEN_PICTURE, own="Qwen2-VL"),
    "qwen2_5_vl": Family(_qwen("Qwen2_5_VL", "qwen2_5_vl"), "Qwen2.5-VL", _QWEN_PICTURE, own="Qwen2.5-VL"),
    "qwen3_vl": Family(_qwen("Qwen3VL", "qwen3_vl"), "Qwen3-VL", _QWEN_PICTURE, own="Qwen3-VL"),
    "qwen3_vl_moe": Family(
        _qwen("Qwen3VLMoe", "qwen3_vl", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
        "Qwen3-VL-30B-A3B, 235B-A22B",
        _QWEN_PICTURE,
        settings={"processor_class": "Qwen3VLProcessor"},
        own="Qwen3-VL",
    ),
    "glm4v": Family(
        _glm4v,
        "GLM-4.1V",
        "<|begin_of_image|><|image|><|end_of_image|>",
        marks=(
            "<|begin_of_image|>",
            "<|image|>",
            "<|end_of_image|>",
            "<|begin_of_video|>",
            "<|video|>",
            "<|end_of_video|>",
        ),
    ),
    "llava": Family(_llava("Llava", _clip()), "LLaVA-1.5"),
    "llava siglip": Family(
        _llava("Llava", _siglip(), vision_feature_select_strategy="full", vision_feature_layer=-1), "LLaVA-Interleave"
    ),
    "llava pixtral": Family(
        _pixtral("Llava"),
        "Pixtral-12B",
        **_PIXTRAL,
        own="Pixtral",
        settings={"processor_class": "PixtralProcessor", "patch_size": 14},
    ),
    "vipllava": Family(
        _llava("VipLlava", _clip(), vision_feature_layers=[-2, -1]),
        "ViP-LLaVA",
        settings={
            "processor_class": "LlavaProcessor",
            "patch_size": 14,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
    ),
    "llava_next": Family(_llava_next, "LLaVA-NeXT (1.6)", own="LLaVA-NeXT"),
    "llava_onevision": Family(
        _llava_onevision,
        "LLaVA-OneVision",
        words={"video_token": "<video>"},
        settings={
            "processor_class": "LlavaOnevisionProcessor",
            "num_image_tokens": 4,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_9",
        },
    ),
    "idefics2": Family(_idefics2, "Idefics2", marks=_IDEFICS[:2]),
    "idefics3": Family(
        _idefics3("Idefics3"),
        "Idefics3-8B-Llama3",
        marks=_IDEFICS,
        settings={"processor_class": "Idefics3Processor", "image_seq_len": 1},
        own="Idefics3",
    ),
    "smolvlm": Family(
        _idefics3("SmolVLM"),
        "SmolVLM, SmolVLM2",
        marks=_IDEFICS,
        settings={"processor_class": "SmolVLMProcessor", "image_seq_len": 1},
        own="SmolVLM",
    ),
    "gemma3": Family(
        _gemma3,
        "Gemma 3",
        "<start_of_image>",
        words={"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
        settings={"processor_class": "Gemma3Processor", "image_seq_length": 4},
        own="Gemma 3",
    ),
    "internvl": Family(
        _internvl,
        "InternVL3 (HF)",
        "<IMG_CONTEXT>",
        words={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        settings={"processor_class": "InternVLProcessor", "image_seq_length": 1},
    ),
    "mistral3": Family(
        _pixtral("Mistral3"),
        "Mistral Small 3.1",
        **_PIXTRAL,
        settings={"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
        own="Mistral Small 3",
    ),
}
