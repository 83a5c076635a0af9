"""A LLaVA-like model, with stacked pictures and one position axis, keeps the engine contract too."""

from __future__ import annotations

import torch
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from tests.inference.pictures import picture
from tests.inference.test_transformers_engine import recompute_with
from uirl.inference import ChatRenderer, Message, TransformersInferenceEngine, check_engine
from uirl.inference.models import check_head, wrap_model
from uirl.inference.tiny import build_tokenizer


async def test_llava_keeps_the_contract() -> None:
    tokenizer = build_tokenizer(512)
    token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**sizes, image_size=28, patch_size=14, initializer_range=0.1),
        text_config=LlamaConfig(
            **sizes,
            vocab_size=len(tokenizer),
            initializer_range=0.1,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        image_token_index=token,
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    side = {"height": 28, "width": 28}
    processor = CLIPImageProcessorPil(size=side, crop_size=side)
    loaded = wrap_model(model, tokenizer, processor, name="tiny llava")
    check_head(loaded)
    chat = ChatRenderer(loaded)
    shots = [(picture(1),), (picture(2), picture(3)), ()]
    prompts = [(chat.whole([Message("user", f"press {i}", s)]), s) for i, s in enumerate(shots)]
    # 28 x 28 pixels are 2 x 2 patches
    assert prompts[0][0].count(token) == 4
    engine = TransformersInferenceEngine(loaded)
    following = chat.following([Message("user", "next")], after_end=False)
    report = await check_engine(
        engine, prompts, recompute_with(loaded), banned_ids=loaded.banned_ids, continuation=following
    )
    assert report.log_prob_gap < 1e-4
    assert token in loaded.banned_ids
