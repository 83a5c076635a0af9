"""Windows, chunks and sinks: engine, learner and the model's own forward say the same of long sequences."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.inference.windowed import FAMILIES, WINDOW, windowed_model
from uirl.errors import ContractError, PromptTooLong
from uirl.inference import GenerationRequest, LoadedModel, SamplingParams, TransformersInferenceEngine, recompute_with
from uirl.inference.models import attention

LENGTHS = (5, 3 * WINDOW, 5 * WINDOW)
"""Of the opening prompts: shorter than the window, and several times longer."""


@torch.no_grad()
def own_log_probs(loaded: LoadedModel, ids: list[int], length: int) -> list[float]:
    """What the model's own forward says of the last `length` tokens, under masks of its own."""
    logits = loaded.model(input_ids=torch.tensor([ids])).logits.float()
    logits[..., list(loaded.banned_ids)] = float("-inf")
    chosen = torch.tensor(ids[-length:])[:, None]
    return logits.log_softmax(-1)[0, -length - 1 : -1].gather(-1, chosen)[:, 0].tolist()


async def play(engine: TransformersInferenceEngine, number: int, turns: int = 3) -> tuple[list[int], list, int]:
    """(tokens of a conversation, [(place, log-probs) of each reply], tokens that came from the cache)."""
    ids = [20 + (7 * number + 3 * i) % 200 for i in range(LENGTHS[number % len(LENGTHS)])]
    replies, cached = [], 0
    for turn in range(turns):
        sampling = SamplingParams(max_tokens=5 + number, seed=10 * number + turn)
        made = await engine.generate(GenerationRequest(tuple(ids), (), sampling, f"episode-{number}"))
        ids += made.token_ids
        replies.append((len(ids), made.log_probs))
        cached += made.cached_tokens
        ids += [30 + turn, 40 + number, 50]
    return ids, replies, cached


@pytest.mark.parametrize("family", FAMILIES)
async def test_engine_and_learner_see_what_the_model_sees(family: str) -> None:
    loaded = windowed_model(family)
    engine = TransformersInferenceEngine(loaded)
    recompute = recompute_with(loaded)
    for ids, replies, cached in await asyncio.gather(*[play(engine, number) for number in range(4)]):
        assert cached > 0
        for end, log_probs in replies:
            expected = own_log_probs(loaded, ids[:end], len(log_probs))
            assert log_probs == pytest.approx(expected, abs=1e-3)
            assert recompute(ids[:end], (), len(log_probs), SamplingParams()) == pytest.approx(expected, abs=1e-3)


def test_every_family_with_windows_is_known() -> None:
    """A new release of transformers may bring families that nobody has tried."""
    found = set()
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        fields = getattr(CONFIG_MAPPING[family], "__dataclass_fields__", {})
        if {"sliding_window", "attention_chunk_size"} & set(fields):
            found.add(family)
    others = {
        # layers that keep something else than keys and values, or another head: refused at load
        *("deepseek_v4", "minimax", "recurrent_gemma", "nemotron_h", "moshi", "modernbert-decoder", "dory", "zaya"),
        # parts of models that also see or hear, which come by other ways
        *("phi4_multimodal", "gemma4_unified_text", "gemma3n_text", "cohere_compass_text", "dots3_note_text"),
        # proved at load like any other; its experts take too much to be made here
        "dots1",
    }
    assert found - set(FAMILIES) - others == set()


async def test_a_window_that_is_switched_off_is_none() -> None:
    loaded = windowed_model("qwen2", use_sliding_window=False)
    engine = TransformersInferenceEngine(loaded)
    ids, replies, _ = await play(engine, 2, turns=1)
    end, log_probs = replies[0]
    assert loaded.spans is not None
    assert loaded.spans.largest == 0
    assert log_probs == pytest.approx(own_log_probs(loaded, ids[:end], len(log_probs)), abs=1e-3)


async def test_masks_that_are_added_are_right_too() -> None:
    loaded = windowed_model("gemma3_text")
    loaded.model.set_attn_implementation("eager")
    ids, replies, _ = await play(TransformersInferenceEngine(loaded), 2)
    for end, log_probs in replies:
        assert log_probs == pytest.approx(own_log_probs(loaded, ids[:end], len(log_probs)), abs=1e-3)


async def test_a_window_does_not_shorten_the_context() -> None:
    engine = TransformersInferenceEngine(windowed_model("gemma2", max_position_embeddings=64))
    made = await engine.generate(GenerationRequest((20,) * 60, (), SamplingParams(max_tokens=2, seed=1)))
    assert len(made.token_ids) in (1, 2)
    with pytest.raises(PromptTooLong, match=r"expected 1 to 63 \(the model's max_position_embeddings\)"):
        await engine.generate(GenerationRequest((20,) * 64))
    shorter = TransformersInferenceEngine(engine.loaded, max_context=32)
    with pytest.raises(PromptTooLong, match=r"expected 1 to 31 \(inference.max_context\)"):
        await shorter.generate(GenerationRequest((20,) * 32))


async def test_rotary_angles_that_change_with_length_bound_the_context() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0}
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    engine = TransformersInferenceEngine(
        windowed_model("phi3", rope_parameters=rope | factors, original_max_position_embeddings=32)
    )
    with pytest.raises(PromptTooLong, match="longrope"):
        await engine.generate(GenerationRequest((20,) * 32))


@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("qwen2", {"layer_types": ["linear_attention"] * 4}, "layers of type linear_attention"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "does not run with the cache and the masks"),
        ("big_bird", {"attention_type": "original_full"}, "in a way this engine does not know"),
    ],
)
def test_what_the_engine_cannot_mask_is_refused_at_load(family: str, options: dict, why: str) -> None:
    with pytest.raises(ContractError, match=why) as refused:
        TransformersInferenceEngine(windowed_model(family, **options))
    assert "inference.backend=vllm" in str(refused.value)


def test_attention_that_takes_no_masks_is_refused_at_load(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "spans", None)
    monkeypatch.setattr(lm.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ContractError, match=r"flash_attention_2.*model.attn_implementation"):
        TransformersInferenceEngine(lm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["mistral", "gemma2", "llama4_text", "gpt_oss"])
def test_an_engine_that_ignores_a_window_is_refused_at_load(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = windowed_model(family, dtype=dtype)
    TransformersInferenceEngine(loaded)
    before = loaded.config.to_dict()
    loaded.spans = None
    monkeypatch.setattr(attention, "_size", lambda config, kind: None)
    with pytest.raises(ContractError, match="differ from the model's own"):
        TransformersInferenceEngine(loaded)
    assert loaded.config.to_dict() == before
