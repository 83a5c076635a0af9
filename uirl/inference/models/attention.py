"""Which earlier tokens each layer of a model sees: all of them, a sliding window, or its own chunk.

HF models make these masks from their config when they read whole sequences, as the learner does. The embedded engine
keeps sequences in rows of a cache of its own and must hand the masks in; this module makes the same ones from the same
config, and `uirl.inference.embedded.runner` holds them against the model's own forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from uirl.errors import ContractError

Kind = Literal["full_attention", "sliding_attention", "chunked_attention"]
SIZE_KEYS: dict[Kind, str] = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kind of a layer -> the config key that holds the size of what it sees. These are the names of HF."""

Masks = Tensor | dict[str, Tensor]
"""[B, 1, n, span] for all layers, or by kind of layer, as HF models take them."""

OTHER_ENGINES = "Use inference.backend=vllm or sglang."


@dataclass(frozen=True, slots=True)
class AttentionSpans:
    """What the layers of a model see."""

    sizes: dict[Kind, int | None]
    """Each kind of layer the model has -> tokens of its window or chunk, itself included; None: all."""
    additive: torch.dtype | None
    """The masks are numbers of this type to add to the scores ('eager' attention); None: booleans."""
    both_ways: bool = False
    """The placeholders of a picture see each other in both directions (Gemma 3)."""

    def masks(self, at: Tensor, span: int, groups: Tensor | None = None) -> Masks:
        """Return masks [B, 1, n, span]: what the tokens at the places `at` [B, n] of their sequences see of [0, span).

        One mask where all layers are of one kind, else one by kind, as HF models take them. `groups` [B, span]: the
        number of the run of placeholders that each token belongs to, 0 for text (`VisionInputs.groups`); it counts with
        `both_ways`.
        """
        key, query = torch.arange(span, device=at.device)[None, None], at[:, :, None]
        seen = key <= query
        if groups is not None and self.both_ways:
            mine = groups.gather(1, at)[:, :, None]
            seen = seen | ((mine == groups[:, None]) & (mine > 0))
        masks = {str(kind): self._form(_within(kind, size, seen, key, query)) for kind, size in self.sizes.items()}
        return next(iter(masks.values())) if len(masks) == 1 else masks

    @property
    def largest(self) -> int:
        """Tokens of the largest window or chunk; 0 where every layer sees all."""
        return max((size for size in self.sizes.values() if size is not None), default=0)

    def _form(self, visible: Tensor) -> Tensor:
        visible = visible[:, None]
        if self.additive is None:
            return visible
        zero = torch.zeros((), dtype=self.additive, device=visible.device)
        return torch.where(visible, zero, torch.finfo(self.additive).min)


def _within(kind: Kind, size: int | None, seen: Tensor, key: Tensor, query: Tensor) -> Tensor:
    """Return booleans [B, n, span]: what of `seen` a layer sees, given the places `key` and `query`."""
    if size is None:
        return seen
    if kind == "chunked_attention":
        return seen & (key // size == query // size)
    return seen & (key > query - size)


def attention_spans(model_config: Any, dtype: torch.dtype, *, name: str) -> AttentionSpans:
    """Return what the HF config of the model `name`, which runs in `dtype`, says its layers see.

    `layer_types` where the config has them; else `sliding_window` or `attention_chunk_size` hold for every layer.
    `use_sliding_window: false` switches a window off. Raises ContractError for attention that takes no masks from
    outside, and for layers that keep something else than keys and values.
    """
    config = model_config.get_text_config()
    only: Kind = next((kind for kind in SIZE_KEYS if _size(config, kind) is not None), "full_attention")
    types = list(dict.fromkeys(getattr(config, "layer_types", None) or [only]))
    unknown = sorted(set(types) - {"full_attention", *SIZE_KEYS})
    if unknown:
        raise ContractError(
            f"{name} (model type {model_config.model_type!r}) has layers of type {', '.join(unknown)}; the embedded "
            f"engine knows full_attention, "
            f"{', '.join(SIZE_KEYS)}. {OTHER_ENGINES}"
        )
    sizes = {kind: _size(config, kind) for kind in types}
    return AttentionSpans(sizes, _additive(config, dtype, name))


def _size(config: Any, kind: Kind) -> int | None:
    if kind not in SIZE_KEYS or (kind == "sliding_attention" and getattr(config, "use_sliding_window", True) is False):
        return None
    size = getattr(config, SIZE_KEYS[kind], None)
    return None if size is None else int(size)


def _additive(config: Any, dtype: torch.dtype, name: str) -> torch.dtype | None:
    implementation = getattr(config, "_attn_implementation", None) or "eager"
    if implementation not in ("sdpa", "eager"):
        raise ContractError(
            f"{name} runs with attn_implementation {implementation!r}, which takes no masks of sequences of different "
            "lengths; the embedded engine needs 'sdpa' or 'eager' (model.attn_implementation). " + OTHER_ENGINES
        )
    return dtype if implementation == "eager" else None


def context_limit(model_config: Any, max_context: int | None) -> tuple[int, str]:
    """Return (tokens of prompt and reply together, where that number comes from): the smallest of what the HF config of
    a model allows and `max_context`."""
    config = model_config.get_text_config()
    limits = [(int(getattr(config, "max_position_embeddings", None) or 4096), "the model's max_position_embeddings")]
    if max_context is not None:
        limits.append((max_context, "inference.max_context"))
    if getattr(config, "attn_temperature_tuning", False):
        # Llama 4 counts places from the length of a cache, of which the rows of a batch have many
        scale = int(getattr(config, "floor_scale", None) or 1)
        limits.append((scale - 1, "attn_temperature_tuning: queries are scaled from floor_scale on"))
    turned = rope_limit(config)
    if turned is not None:
        limits.append((turned[0], f"rope type {turned[1]}: keys cached below it do not hold beyond"))
    return min(limits, key=lambda limit: limit[0])


def rope_limit(config: Any) -> tuple[int, str] | None:
    """Return up to how many tokens one rule says by which angles they turn: beyond, all tokens of a forward pass turn
    by others, those of its shorter sequences too; and the rope type that does so. None: one rule for any number.
    `config`: of the text model."""
    whole = getattr(config, "max_position_embeddings", None) or 4096
    parameters = getattr(config, "rope_parameters", None) or {}
    # one, or one per kind of layer
    ropes = [rope for rope in parameters.values() if isinstance(rope, Mapping)] or [parameters]
    found = [rope for rope in ropes if rope.get("rope_type") in ("longrope", "dynamic")]
    return min(
        ((int(rope.get("original_max_position_embeddings") or whole), str(rope["rope_type"])) for rope in found),
        default=None,
    )
