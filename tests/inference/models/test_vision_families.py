"""Every vision family that is listed loads from a folder and keeps the engine contract; every other says so first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from tests.inference.pictures import picture
from uirl.config import ModelConfig
from uirl.errors import ContractError
from uirl.inference import (
    ChatRenderer,
    LoadedModel,
    Message,
    TransformersInferenceEngine,
    check_engine,
    load_model,
    recompute_with,
)
from uirl.inference.models.loading import wrap_model
from uirl.inference.models.tiny import _text_config, _vision_config, build_tokenizer, image_processor
from uirl.inference.models.vision import QWEN_FAMILY, STACKED_FAMILY, STACKED_TOWERS, VisionInputs, check_family

FAMILIES = [*QWEN_FAMILY, *[f"{family} {tower}" for family in STACKED_FAMILY for tower in STACKED_TOWERS]]
CLASSES = {
    "qwen2_vl": "Qwen2VL",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
    "llava": "Llava",
    "vipllava": "VipLlava",
}


def grid_model(family: str, tokenizer: Any) -> tuple[Any, Any]:
    sizes = ModelConfig().tiny.model_copy(update={"hidden_size": 32, "num_heads": 2, "vision_hidden_size": 16})
    sizes.architecture = "qwen3_vl" if family.startswith("qwen3") else family
    text, vision = _text_config(tokenizer, sizes), _vision_config(sizes)
    if family == "qwen3_vl_moe":
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    token = tokenizer.convert_tokens_to_ids
    tokens = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    marks = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    ids = {f"{name}_token_id": token(word) for name, word in (tokens | marks).items()}
    kind = CLASSES[family]
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **ids)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config), image_processor(sizes)


def stacked_model(family: str, tower: str, tokenizer: Any) -> tuple[Any, Any]:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"initializer_range": 0.1}  # type: ignore[dict-item]
    side = {"height": 28, "width": 28}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = transformers.LlamaConfig(**sizes, **ends, vocab_size=len(tokenizer))
    clip = tower == "clip_vision_model"
    made = transformers.CLIPVisionConfig if clip else transformers.SiglipVisionConfig
    options: dict[str, Any] = {"image_token_index": tokenizer.convert_tokens_to_ids("<|image_pad|>")}
    if family == "llava":
        options |= {"vision_feature_layer": -1, "vision_feature_select_strategy": "default" if clip else "full"}
    else:
        options |= {"vision_feature_layers": [-2, -1]}
    kind = CLASSES[family]
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=made(**sizes, image_size=28, patch_size=14), **options
    )
    processor = transformers.CLIPImageProcessorPil(size=side, crop_size=side)
    if not clip:
        processor = transformers.SiglipImageProcessorPil(size=side)
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config), processor


def saved(name: str, folder: Path) -> LoadedModel:
    """A tiny random model of the family, written to `folder` and loaded from there."""
    tokenizer = build_tokenizer(512)
    torch.manual_seed(0)
    family, _, tower = name.partition(" ")
    model, processor = stacked_model(family, tower, tokenizer) if tower else grid_model(family, tokenizer)
    wrap_model(model.eval(), tokenizer, processor, name=name).save(folder)
    return load_model(ModelConfig(local_path=str(folder), device="cpu"))


@pytest.mark.parametrize("name", FAMILIES)
async def test_every_listed_family_loads_and_keeps_the_contract(name: str, tmp_path: Path) -> None:
    loaded = saved(name, tmp_path)
    chat = ChatRenderer(loaded)
    shots = [(picture(1),), (picture(2), picture(3)), ()]
    prompts = [(chat.whole([Message("user", f"press {i}", s)]), s) for i, s in enumerate(shots)]
    engine = TransformersInferenceEngine(loaded)
    following = chat.following([Message("user", "next")], after_end=False)
    report = await check_engine(
        engine, prompts, recompute_with(loaded), banned_ids=loaded.banned_ids, continuation=following, max_tokens=4
    )
    assert report.log_prob_gap < 1e-4
    await engine.close()


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (transformers.LlavaOnevisionConfig, "'llava_onevision'"),
        (transformers.LlavaNextConfig, "'llava_next'"),
        (lambda: transformers.LlavaConfig(vision_config=transformers.PixtralVisionConfig()), "'pixtral'"),
        (transformers.SmolVLMConfig, "'smolvlm'"),
        (transformers.Idefics3Config, "'idefics3'"),
        (transformers.Gemma3Config, "'gemma3'"),
        (transformers.InternVLConfig, "'internvl'"),
        (transformers.Mistral3Config, "'mistral3'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_family_says_so_before_anything_is_read(made: Any, named: str, tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)  # no weights, no tokenizer, no picture processor: nothing else may be asked first
    with pytest.raises(
        ContractError, match=rf"{named}.* takes images in a way that is not known here; expected one of"
    ):
        load_model(ModelConfig(local_path=str(tmp_path), device="cpu"))


def test_the_documents_name_the_families_that_load() -> None:
    root = Path(__file__).parents[3]
    for page in (root / "README.md", root / "docs" / "engines.md"):
        words = " ".join(page.read_text().split())
        assert "Qwen-VL (2, 2.5, 3) and LLaVA (1.5, ViP)" in words, page
    with pytest.raises(ContractError):
        check_family(SimpleNamespace(model_type="llava", vision_config=SimpleNamespace()))
    with pytest.raises(ContractError):
        VisionInputs(SimpleNamespace(model_type="other", vision_config=SimpleNamespace()), None)
