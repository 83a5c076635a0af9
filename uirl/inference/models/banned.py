"""Which tokens a policy never samples: they have probability zero in engine and learner alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
