"""Which tokens a policy never samples: they have probability zero in engine and learner alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uirl.errors import CheckpointError

_PLACEHOLDER_KEYS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_id",
    "eoi_token_id",
    "boi_token_index",
    "eoi_token_index",
    "image_start_token_id",
    "image_end_token_id",
)
"""Config keys of HF that name a token which stands for a picture or encloses one."""


def banned_ids(model: Any, tokenizer: Any, ends: set[int], words: Sequence[int]) -> tuple[int, ...]:
    """Return placeholders of pictures, padding, and ids that the tokenizer does not have, in order; `words` are more of
    them. What is among `ends`, the tokens that end a reply, stays."""
    config = model.config
    banned = set(range(len(tokenizer), model.get_output_embeddings().weight.shape[0]))
    placeholders = [getattr(config, key, None) for key in _PLACEHOLDER_KEYS]
    banned |= {int(token) for token in (*placeholders, *words, tokenizer.pad_token_id) if token is not None}
    return tuple(sorted(banned - ends))


def require_rows(model: Any, tokenizer: Any, ends: set[int], name: str) -> None:
    """Raise CheckpointError where a token that every run needs has no row in the input embedding of `model`, called
    `name`: one that ends a reply, pads, begins or stands for what is unknown, or one that ordinary text becomes. A
    token that was added and that no text holds may lack one, as the picture's in text models of Gemma 3."""
    rows = model.get_input_embeddings().weight.shape[0]
    needed = {*ends, tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id} - {None}
    if len(tokenizer) > rows:
        needed |= set(tokenizer.get_vocab().values()) - set(tokenizer.added_tokens_decoder)
    if absent := sorted(token for token in needed if not 0 <= token < rows):
        words = ", ".join(f"{tokenizer.convert_ids_to_tokens(token)!r} ({token})" for token in absent[:4])
        raise CheckpointError(
            f"{name}: the tokenizer has tokens without a row in the model's embedding: got {words}, "
            f"{len(absent)} in all, expected ids from 0 to {rows - 1}. Take the tokenizer that belongs to the model, "
            "or make the model larger (model.resize_token_embeddings(len(tokenizer))) and save both"
        )
