"""The tokenizer and the sizes of the model that sees."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

from uirl.inference.grounding.model import _SIDES, build_model, build_tokenizer


@pytest.mark.parametrize(
    "text",
    [
        'Click on the "Submit" button.',
        '{"action":"click","x":63,"y":107}',
        '{"action":"click","target":"red fox","x":3,"y":7}',
        '{"action":"answer","text":"a\\"b"}',
        "Thé ★\n\tnext  line",
        "",
    ],
)
def test_every_text_comes_back(text: str) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_labels_are_spelt_digits_are_single_and_skeletons_are_whole() -> None:
    tokenizer = build_tokenizer()
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode('Click the "Subx" button.')]
    assert pieces == ["Click", " the", " ", '"', "S", "u", "b", "x", '"', " button", "."]
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode('{"action":"click","x":63,"y":107}')]
    assert pieces == ['{"action":"click","x":', "6", "3", ',"y":', "1", "0", "7", "}"]


def test_a_word_inside_a_longer_one_is_letters() -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer.encode("boxer")) == 5
    assert len(tokenizer.encode("box")) == 1


def test_it_is_small_and_its_random_weights_follow_from_the_seed() -> None:
    first, _, _ = build_model(seed=1)
    again, _, _ = build_model(seed=1)
    assert 1e6 < sum(p.numel() for p in first.parameters()) < 3e6
    assert all((a == b).all() for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_every_vision_head_begins_by_looking_at_a_neighbour() -> None:
    visual = build_model(seed=0)[0].model.visual
    places = torch.cartesian_prod(torch.arange(20), torch.arange(20))
    cosines, sines = visual.rotary_pos_emb(torch.zeros(400, 1), places)
    for block, sides in zip(visual.blocks, _SIDES, strict=True):
        query, key, _ = block.attn.qkv.bias.view(3, 1, block.attn.num_heads, block.attn.head_dim).expand(3, 400, -1, -1)
        query, key = apply_rotary_pos_emb_vision(query, key, cosines, sines)
        for head, (rows, columns) in enumerate(sides):
            best = (query[:, head] @ key[:, head].T).argmax(-1)
            for at in (5 * 20 + 7, 12 * 20 + 3):
                assert (places[best[at]] - places[at]).tolist() == [rows, columns]
