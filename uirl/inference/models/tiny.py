"""Built-in tiny policies: real HF architectures with random weights and a tokenizer trained on the spot.

They make the default job run without a download. Everything they go through (loading, engine, learner, checkpoint)
is what a real checkpoint goes through.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import torch

TINY_MODELS = ("uirl/tiny-vlm", "uirl/tiny-lm")

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
)

# one token per role and one after a reply: a model of two layers has no attention to spare for ornaments
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_WORDS = (
    "press click type the ok button red green blue yellow purple cyan field digit guess higher lower correct wrong "
    "not a number between and you are in room north south east west door key chest take open go look inventory help "
    "score error expected action submit next done try again hello world answer think call tool result true false null "
    "left right"
)

# digits alone, everything else in long pieces; what an action is meant for begins a piece, so that the token before
# a coordinate still says whose coordinate it is
_PIECES = r"\d|\s|[^\d\s]*?target\":\"|[^\d\s]+"
# a call up to its first argument is one piece, and so is its end: a tool call costs little more than its argument
_PIECES_WITH_CALLS = (
    r"<tool_call>\s*\{\"name\": ?\"[a-z_]+\", ?\"arguments\": ?\{\"[a-z_]+\": ?\"|"
    r"[a-z]+(?=\"\}\}\s*</tool_call>)|\"\}\}\s*</tool_call>|" + _PIECES
)

_TARGETS = ("red", "green", "blue", "yellow", "purple", "cyan", "ok", "button", "field")

_NAMES = ("apple", "fig", "grape", "kiwi", "lemon", "lime", "mango", "melon", "olive", "peach", "pear", "plum")
_CALLS = (
    '<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{}"}}}}\n</tool_call>',
    '<tool_call>\n{{"name": "lookup", "arguments": {{"key": "{}"}}}}\n</tool_call>',
)


def build_tiny(name: str, sizes: Any, *, seed: int) -> tuple[Any, Any, Any | None]:
    """Return (HF model, tokenizer, image processor or None) of a built-in model. `sizes` is the config's
    `model.tiny`."""
    tokenizer = build_tokenizer(sizes.vocab_size, calls=name == "uirl/tiny-lm", words=sizes.words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "uirl/tiny-lm":
            return _language_model(tokenizer, sizes), tokenizer, None
        return vision_model(tokenizer, sizes), tokenizer, image_processor(sizes)


def build_tokenizer(vocab_size: int, *, calls: bool = False, words: Sequence[str] = ()) -> Any:
    """Return a byte-level BPE in which a digit is a token of its own and the skeleton of a JSON action is few tokens.

    `calls`: the skeleton of a tool call is one token too, where `vocab_size` leaves room for it (640 does). `words`:
    these too are one token each, in a text and as what an action is meant for, where there is room.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained_pieces(vocab_size, calls, tuple(words))),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        extra_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
    )


@lru_cache
def _trained_pieces(vocab_size: int, calls: bool, words: tuple[str, ...]) -> str:
    """Return the tokenizer of `build_tokenizer` as JSON: to train it takes as long as all else of a tiny model."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE(unk_token=None))
    pieces = Regex(_PIECES_WITH_CALLS if calls else _PIECES)
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(chain(_corpus(), _call_corpus() if calls else (), _word_corpus(words)), trainer)
    return str(raw.to_str())


def _corpus() -> Iterator[str]:
    rng, words = random.Random(0), _WORDS.split()
    for _ in range(1000):
        place = {"x": rng.randint(0, 111), "y": rng.randint(0, 111)}
        yield json.dumps({"action": "click", **place}, separators=(",", ":"))
        yield json.dumps({"action": "click", "target": rng.choice(_TARGETS), **place}, separators=(",", ":"))
        yield json.dumps({"action": "type", "text": str(rng.randint(0, 9))}, separators=(",", ":"))
        yield " ".join(rng.sample(words, 3))
    yield from ("user\n", "assistant\n", "system\n", "tool\n") * 50  # for models that get the ChatML template


def _call_corpus() -> Iterator[str]:
    """Yield calls and names of the tool-use tasks, rarer than the words above, which therefore keep their tokens."""
    for name in _NAMES:
        for skeleton in _CALLS:
            yield from (skeleton.format(name), f"{name} {name}") * 2


def _word_corpus(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield from (word, json.dumps({"action": "click", "target": word, "x": 0}, separators=(",", ":"))) * 50


def _language_model(tokenizer: Any, sizes: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_text_sizes(tokenizer, sizes), tie_word_embeddings=True))


def vision_model(tokenizer: Any, sizes: Any, **vision: Any) -> Any:
    """Return a vision-language model of `sizes`, a `TinyConfig`, with random weights. `vision`: more keys of its vision
    config."""
    import transformers

    classes: dict[str, tuple[Any, Any]] = {
        "qwen2_vl": (transformers.Qwen2VLConfig, transformers.Qwen2VLForConditionalGeneration),
        "qwen2_5_vl": (transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration),
        "qwen3_vl": (transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration),
    }
    config_class, model_class = classes[sizes.architecture]
    token = tokenizer.convert_tokens_to_ids
    config = config_class(
        text_config=_text_config(tokenizer, sizes),
        vision_config=_vision_config(sizes) | vision,
        tie_word_embeddings=True,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return model_class(config)


def _text_config(tokenizer: Any, sizes: Any) -> dict[str, Any]:
    head = sizes.hidden_size // sizes.num_heads
    side = head // 2 * 3 // 8
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
    rope["mrope_section"] = [head // 2 - 2 * side, side, side]
    config = _text_sizes(tokenizer, sizes) | {"rope_parameters": rope}
    if sizes.architecture == "qwen3_vl":
        config["head_dim"] = head
        rope["mrope_interleaved"] = True
    return config


def _text_sizes(tokenizer: Any, sizes: Any) -> dict[str, Any]:
    """Return what the configs of both kinds of model say about the text layers."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_heads,
        "max_position_embeddings": 4096,
        "initializer_range": sizes.initializer_range,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _vision_config(sizes: Any) -> dict[str, Any]:
    common = {
        "depth": sizes.vision_layers,
        "num_heads": sizes.num_heads,
        "patch_size": sizes.patch_size,
        "spatial_merge_size": sizes.merge_size,
        "initializer_range": sizes.initializer_range,
    }
    width = sizes.vision_hidden_size
    if sizes.architecture == "qwen2_vl":
        return common | {"embed_dim": width, "hidden_size": sizes.hidden_size, "mlp_ratio": 2}
    common |= {"hidden_size": width, "out_hidden_size": sizes.hidden_size, "intermediate_size": 2 * width}
    if sizes.architecture == "qwen2_5_vl":
        return common | {"window_size": 112, "fullatt_block_indexes": list(range(sizes.vision_layers))}
    return common | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}


def image_processor(sizes: Any) -> Any:
    """Return the image processor of a model of `sizes`."""
    from transformers import Qwen2VLImageProcessorPil

    cell = sizes.patch_size * sizes.merge_size
    return Qwen2VLImageProcessorPil(
        # not min_pixels and max_pixels: those would write into a dict that all processors share
        size={"shortest_edge": cell**2, "longest_edge": sizes.image_size**2},
        patch_size=sizes.patch_size,
        merge_size=sizes.merge_size,
    )
