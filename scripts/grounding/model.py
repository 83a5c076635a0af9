"""The model that learns to see: its sizes, its random start and its tokenizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from uirl.config.sections.model import TinyConfig
from uirl.inference.models.tiny import CHAT_TEMPLATE, SPECIAL_TOKENS, image_processor, vision_model

SIZES = TinyConfig(
    architecture="qwen3_vl",
    hidden_size=192,
    num_layers=4,
    num_heads=4,
    intermediate_size=384,
    vision_hidden_size=128,
    vision_layers=3,
    patch_size=8,
    merge_size=2,
    image_size=192,
    initializer_range=0.05,
    vocab_size=1024,
)
"""What `model.tiny` would say of it. A picture of 160 x 160 pixels is 100 tokens."""

_PLACES = 20
"""Learned places along each side of a picture: one per patch of 160 pixels; other sizes are interpolated."""
_SIDES = (((-1, 0), (1, 0), (0, -1), (0, 1)), ((-1, -1), (-1, 1), (1, -1), (1, 1)), ((0, -2), (0, 2), (-1, 0), (1, 0)))
"""Where the heads of each vision layer look in the beginning: rows and columns of patches away."""
_SHARPNESS = 8.0
"""What the best place has more than the others in the logits of a head, per frequency; at most twice as much."""
_WORDS = (
    "Click click Press press Select select Choose choose Tap tap Focus focus Activate Switch on the a an to in of for "
    "beside next and button link heading title text word field input area list drop-down check box checkbox radio "
    "option tab cell shape icon paragraph row column first second third fourth largest one symbol textbox textarea "
    "number Read What is at "
    "circle square triangle star diamond cross bar close menu plus minus play heart search left right up down arrow "
    "mail trash red green blue yellow orange purple pink brown black white grey cyan magenta lime navy olive"
)
_PIECES = (
    '{"action":"', '{"action":"click","x":', ',"y":', '{"action":"click","target":"', '","x":',
    '{"action":"answer","text":"', '{"action":"type","text":"', '"}', "}",
)  # fmt: skip


def build_model(*, seed: int) -> tuple[Any, Any, Any]:
    """Return (HF model with random weights from `seed`, tokenizer, image processor)."""
    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = vision_model(tokenizer, SIZES, num_position_embeddings=_PLACES**2)
    with torch.no_grad():
        model.model.visual.pos_embed.weight.copy_(_waves(SIZES.vision_hidden_size))
        for block, sides in zip(model.model.visual.blocks, _SIDES, strict=True):
            _look_aside(block.attn, sides)
    return model, tokenizer, image_processor(SIZES)


def _look_aside(attention: Any, sides: Sequence[tuple[int, int]]) -> None:
    """Let each head of a vision layer begin by looking at the patch that lies `sides` (rows, columns) away, as the taps
    of a convolution do (d'Ascoli et al. 2021, ConViT): a letter lies across patches.

    Rotary embeddings turn the constant part of queries and keys by an angle per row and column, so that part alone
    prefers one distance. Of the frequencies the two highest are used: the first is sharp, the second tells its periods
    apart."""
    half, quarter = attention.head_dim // 2, attention.head_dim // 4
    size = math.sqrt(_SHARPNESS * math.sqrt(attention.head_dim))
    bias = attention.qkv.bias.view(3, attention.num_heads, attention.head_dim)
    for head, side in enumerate(sides):
        for axis, away in enumerate(side):
            for i in range(2):
                angle, at = away * 10000 ** (-2 * i / half), axis * quarter + i
                bias[0, head, at], bias[0, head, at + half] = size, 0.0
                bias[1, head, at], bias[1, head, at + half] = size * math.cos(angle), -size * math.sin(angle)


def _waves(width: int) -> torch.Tensor:
    """Return [places, width] to begin with: sines and cosines of row and column, as in Vaswani et al. 2017, 3.5. Random
    ones of the usual size are drowned by what the patches show."""
    periods = 4 * 2 ** torch.linspace(0, 4.5, width // 4)
    angles = 2 * math.pi * torch.arange(_PLACES)[:, None] / periods
    line = 0.5 * torch.cat([angles.sin(), angles.cos()], dim=1)
    rows, columns = line.repeat_interleave(_PLACES, dim=0), line.repeat(_PLACES, 1)
    return torch.cat([rows, columns], dim=1)


def build_tokenizer() -> Any:
    """Return a tokenizer without merges: words of instructions and the skeleton of an action are one token each,
    digits and all other letters one by one, so that a label is spelt wherever it stands."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = list(dict.fromkeys(_WORDS.split()))
    entries = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    entries += [_bytes(piece) for piece in (*_PIECES, *words, *(f" {word}" for word in words)) if len(piece) > 1]
    vocabulary = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    spelt = "|".join([_escaped(piece) for piece in sorted(_PIECES, key=len, reverse=True)])
    known = "|".join(sorted(map(_escaped, words), key=len, reverse=True))
    pattern = Regex(rf"{spelt}| ?(?<![A-Za-z])(?:{known})(?![A-Za-z])|[\s\S]")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        extra_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
    )


def _bytes(text: str) -> str:
    """Return a text as the byte-level alphabet writes it."""
    return text.replace(" ", "Ġ")


def _escaped(text: str) -> str:
    return "".join(rf"\{c}" if c in '{}"-.' else c for c in text)
