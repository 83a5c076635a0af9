"""The sizes of a model that decide how much memory it takes and among how many GPUs it can be split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Vision:
    """The part that sees."""

    parameters: int
    layers: int
    width: int
    intermediate: int
    patch: int
    """Side of a patch in pixels."""
    merge: int
    """`merge` x `merge` patches become one token."""
    frames: int
    """How often a still picture stands in its patches (Qwen-VL: 2)."""

    @property
    def patch_numbers(self) -> int:
        return 3 * self.frames * self.patch**2


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model its memory depends on."""

    parameters: int
    """All of them, the vision part included."""
    layers: int
    width: int
    intermediate: int
    queries: int
    """Numbers per token and layer in queries: heads x width of a head."""
    keys: int
    """In keys, and as many in values."""
    head: int
    """Numbers of one head of them."""
    vocabulary: int
    tied: bool
    """Whether embedding and output layer are one matrix."""
    vision: Vision | None = None

    @property
    def heads(self) -> int:
        """Return the number of heads of queries in a layer."""
        return self.queries // self.head

    @property
    def kv_heads(self) -> int:
        """Return the number of heads of keys, and as many of values, in a layer."""
        return self.keys // self.head

    @property
    def head_parameters(self) -> int:
        """Return the number of parameters of the output layer."""
        return self.vocabulary * self.width

    @property
    def layer_parameters(self) -> int:
        """Return the number of parameters of one text layer."""
        attention = self.width * (2 * self.queries + 2 * self.keys)
        return attention + 3 * self.width * self.intermediate


def attention_heads(config: Any) -> tuple[int, int]:
    """Return the number of heads (of queries, of keys and values) in a layer of the text part that a HuggingFace config
    describes."""
    text = config.get_text_config()
    return text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads


def shape_of(config: Any) -> Shape:
    """Return the shape of the model that a HuggingFace config describes, whose parameters are counted without making
    them.

    Raises ConfigError for a mixture of experts, whose activations are not worked out here.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    text, seen = config.get_text_config(), getattr(config, "vision_config", None)
    if any(getattr(text, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise ConfigError(f"the memory of a mixture of experts ({config.model_type}) is not worked out here")
    with torch.device("meta"):
        kind: Any = AutoModelForCausalLM if seen is None else AutoModelForImageTextToText
        model = kind.from_config(config)
    heads, kv_heads = attention_heads(config)
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    vision = None
    if seen is not None and hasattr(seen, "patch_size"):
        width = getattr(seen, "embed_dim", None) or seen.hidden_size
        vision = Vision(
            parameters=sum(size for name, size in sizes.items() if "visual" in name or "vision" in name),
            layers=getattr(seen, "depth", None) or seen.num_hidden_layers,
            width=width,
            intermediate=getattr(seen, "intermediate_size", None) or int(width * getattr(seen, "mlp_ratio", 4)),
            patch=seen.patch_size,
            merge=getattr(seen, "spatial_merge_size", 1),
            frames=getattr(seen, "temporal_patch_size", 1),
        )
    return Shape(
        parameters=sum(sizes.values()),
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        intermediate=text.intermediate_size,
        queries=heads * head,
        keys=kv_heads * head,
        head=head,
        vocabulary=text.vocab_size,
        tied=bool(config.tie_word_embeddings),
        vision=vision,
    )
