"""Packed rows of prompts and replies: the mask against a dense one, the proof against models that do otherwise."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.inference.models.picture_families import saved
from tests.inference.windowed import windowed_model
from uirl.config import ModelConfig
from uirl.errors import ContractError
from uirl.inference import LoadedModel, load_model
from uirl.inference.embedded.runner import proven_spans
from uirl.inference.models import shared_prompts
from uirl.inference.models.attention import context_limit
from uirl.inference.models.shared_prompts import (
    SharedPrompt,
    SharedPromptMask,
    packed_masks,
    prompts_can_be_shared,
    window_of,
)

ROWS = (
    [SharedPrompt(3, (2, 2))],
    [SharedPrompt(1, (1,))],
    [SharedPrompt(5, (7, 4, 1)), SharedPrompt(2, (6, 6, 6)), SharedPrompt(4, (9,))],
    [SharedPrompt(8, tuple(range(40, 0, -1)))],
    [SharedPrompt(0, (9, 9, 5, 1))],
    [SharedPrompt(0, (7,)), SharedPrompt(3, (4, 2)), SharedPrompt(0, (6, 5))],
)


def dense(row: list[SharedPrompt]) -> torch.Tensor:
    """What each token of a row sees, [n, n], written down token by token."""
    owner = [(p, r) for p, one in enumerate(row) for r, n in enumerate((one.tokens, *one.replies)) for _ in range(n)]
    return torch.tensor(
        [
            [p == q and reply in (0, mine) and at <= here for at, (p, reply) in enumerate(owner)]
            for here, (q, mine) in enumerate(owner)
        ]
    )


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("queries", [3, 1024])
@pytest.mark.parametrize("padding", [0, 256])
def test_attention_and_its_gradient_are_those_of_a_dense_mask(row, queries, padding, monkeypatch):
    monkeypatch.setattr(shared_prompts, "QUERIES", queries)
    monkeypatch.setattr(shared_prompts, "PADDING_TOKENS", padding)
    n = sum(one.length for one in row)
    parts = [torch.randn(1, heads, n, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    weights = torch.randn(1, 4, n, 8, dtype=torch.float64)
    got = []
    for mask in (SharedPromptMask.of(row, torch.device("cpu")), dense(row)[None, None]):
        out = scaled_dot_product_attention(*parts, attn_mask=mask, scale=0.3, enable_gqa=True)
        got.append((out, *torch.autograd.grad((out * weights).sum(), parts)))
    for ours, theirs in zip(*got, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_heads_that_hf_repeats_are_read_once(row, monkeypatch):
    read: list[int] = []
    attend = shared_prompts.scaled_dot_product_attention

    def noted(query, key, *rest, **options):
        if type(options.get("attn_mask")) is not SharedPromptMask:
            read.append(key.shape[1])
        return attend(query, key, *rest, **options)

    n = sum(one.length for one in row)
    query, *kept = [torch.randn(1, heads, n, 8, dtype=torch.float64, requires_grad=True) for heads in (8, 2, 2)]
    weights = torch.randn(1, 8, n, 8, dtype=torch.float64)
    got = []
    for repeats in (1, 4):
        key, value = (tensor.repeat_interleave(4, dim=1) for tensor in kept)
        mask = SharedPromptMask.of(row, torch.device("cpu"), repeats)
        with monkeypatch.context() as patch:
            if repeats > 1:
                patch.setattr(shared_prompts, "scaled_dot_product_attention", noted)
            out = shared_prompts._attend(query, key, value, mask)
        got.append((out, *torch.autograd.grad((out * weights).sum(), (query, *kept))))
    assert set(read) == {2}
    for ours, theirs in zip(*got, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


def test_the_mask_has_a_shape_and_nothing_else_to_read():
    mask = SharedPromptMask.of([SharedPrompt(3, (2, 2))], torch.device("cpu"))
    assert mask.shape == (1, 1, 7, 7)
    assert mask.ndim == 4
    for read in (lambda: mask.to(torch.float32), lambda: mask[..., :3], lambda: torch.where(mask, 0.0, 1.0)):
        with pytest.raises(ContractError, match="read the mask of a packed row"):
            read()


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    return load_model(ModelConfig(model_name="uirl/tiny-vlm", device="cpu"))


def untried(loaded: LoadedModel) -> LoadedModel:
    other = copy.copy(loaded)
    other.shares_prompts = None
    return other


def test_a_model_is_tried_once(small, monkeypatch):
    loaded = untried(small)
    assert prompts_can_be_shared(loaded)
    monkeypatch.setattr(shared_prompts, "_reason_against", lambda _: pytest.fail("tried again"))
    assert prompts_can_be_shared(loaded)


@pytest.mark.parametrize("sees", ["too much", "too little"])
def test_the_proof_notices_tokens_that_see_others_than_they_should(small, sees, monkeypatch, caplog):
    attend = shared_prompts._attend

    def wrong(query, key, value, attn_mask, **options):
        if sees == "too much":
            return scaled_dot_product_attention(query, key, value, is_causal=True, scale=options.get("scale"))
        prompt = slice(0, attn_mask.sizes[0])
        out = attend(query, key, value, attn_mask, **options).clone()
        out[:, :, prompt] = value[:, :, prompt]
        return out

    monkeypatch.setattr(shared_prompts, "_attend", wrong)
    loaded = untried(small)
    assert not prompts_can_be_shared(loaded)
    assert not prompts_can_be_shared(loaded)
    (record,) = caplog.records
    assert "read padded rows, and a prompt once for each reply: hidden states would differ by" in record.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pictures_that_are_read_in_both_directions_are_not_shared(dtype: torch.dtype, tmp_path: Path):
    """In 16 bits the difference is less than rounding is allowed in deep models."""
    loaded = saved("gemma3", tmp_path)
    loaded.config.get_text_config().sliding_window = 64
    loaded.model.to(dtype)
    assert "would differ" in (shared_prompts._reason_against(loaded) or "")
    loaded.spans = None
    assert proven_spans(loaded).both_ways


@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava", "idefics3"])
def test_rounding_to_16_bits_is_no_reason(name: str, tmp_path: Path):
    loaded = saved(name, tmp_path)
    loaded.model.to(torch.bfloat16)
    assert shared_prompts._reason_against(loaded) is None


def test_queries_that_are_scaled_by_their_place_in_the_row_are_not_shared():
    loaded = windowed_model("llama4_text")
    text = loaded.config.get_text_config()
    text.attention_chunk_size = 64
    assert shared_prompts._reason_against(loaded) is not None
    assert context_limit(loaded.config, None)[0] < text.floor_scale
    text.attn_temperature_tuning = False
    assert shared_prompts._reason_against(loaded) is None


def test_where_memory_runs_out_a_model_is_tried_again(small, monkeypatch):
    loaded = untried(small)
    with monkeypatch.context() as patch:
        patch.setattr(shared_prompts, "hidden_states", lambda *_, **__: allocate())
        with pytest.raises(MemoryError):
            prompts_can_be_shared(loaded)
    assert loaded.shares_prompts is None
    assert prompts_can_be_shared(loaded)


def allocate() -> torch.Tensor:
    raise MemoryError("no room")


def test_the_smallest_window_counts():
    loaded = windowed_model("gemma3_text")
    loaded.config.get_text_config().sliding_window = 7  # less than what is tried
    assert not prompts_can_be_shared(untried(loaded))
    loaded.config.get_text_config().sliding_window = 64
    assert prompts_can_be_shared(loaded)
    assert window_of(loaded) == 64
    assert set(packed_masks(loaded, [SharedPrompt(3, (2, 2))])) == {"full_attention", "sliding_attention"}


def test_other_attention_than_sdpa_is_not_shared():
    config = ModelConfig(model_name="uirl/tiny-lm", device="cpu")
    loaded = load_model(config)
    loaded.model.set_attn_implementation("eager")
    assert "eager" in (shared_prompts._reason_against(loaded) or "")
