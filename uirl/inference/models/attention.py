"""Which earlier tokens each layer of a model sees: all of them, a sliding window, or its own chunk.

HF models make these masks from their config when they read whole sequences, as the learner does. The embedded engine
keeps sequences in rows of a cache of its own and must hand the masks in; this module makes the same ones, and
`prove_attention` holds them against the model's own forward.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from uirl.errors import ContractError
from uirl.inference.embedded.cache import SlotCache
from uirl.inference.models.loading import LoadedModel, hidden_states

Kind = Literal["full_attention", "sliding_attention", "chunked_attention"]
SIZE_KEYS: dict[Kind, str] = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Kind of a layer -> the config key that holds the size of what it sees. These are the names of HF."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Largest relative difference of hidden states, as a mean over tokens, that rounding explains. Over the 30 families of
transformers 5.10 that have windows or chunks, with random weights, a mask without them made 0.2 to 0.98."""

Masks = Tensor | dict[str, Tensor]
"""[B, 1, n, span] for all layers, or by kind of layer, as HF models take them."""

_ELSEWHERE = "Use inference.backend=vllm or sglang."


@dataclass(frozen=True, slots=True)
class AttentionSpans:
    """What the layers of a model see."""

    sizes: dict[Kind, int | None]
    """Each kind of layer the model has -> tokens of its window or chunk, itself included; None: all."""
    additive: torch.dtype | None
    """The masks are numbers of this type to add to the scores ('eager' attention); None: booleans."""

    def masks(self, at: Tensor, span: int) -> Masks:
        """What token `at[b, i]` (its place in sequence b) sees of the places [0, span): masks [B, 1, n, span].

        One mask where all layers are of one kind, else one by kind, as HF models take them.
        """
        masks = {str(kind): self._form(_visible(kind, size, at, span)) for kind, size in self.sizes.items()}
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


def _visible(kind: Kind, size: int | None, at: Tensor, span: int) -> Tensor:
    """Booleans [B, n, span]."""
    places, own = torch.arange(span, device=at.device)[None, None], at[:, :, None]
    visible = places <= own
    if size is None:
        return visible
    if kind == "chunked_attention":
        return visible & (places // size == own // size)
    return visible & (places > own - size)


def attention_spans(loaded: LoadedModel) -> AttentionSpans:
    """What the config of a model says its layers see.

    `layer_types` where the config has them; else `sliding_window` or `attention_chunk_size` hold for every layer.
    `use_sliding_window: false` switches a window off. Raises ContractError for attention that takes no masks from
    outside, and for layers that keep something else than keys and values.
    """
    config = loaded.config.get_text_config()
    types = list(dict.fromkeys(getattr(config, "layer_types", None) or [_only_kind(config)]))
    unknown = sorted(set(types) - {"full_attention", *SIZE_KEYS})
    if unknown:
        raise ContractError(
            f"{loaded.name} has layers of type {', '.join(unknown)}; the embedded engine knows full_attention, "
            f"{', '.join(SIZE_KEYS)}. {_ELSEWHERE}"
        )
    sizes = {kind: _size(config, kind) for kind in types}
    return AttentionSpans(sizes, _additive(loaded, config))


def _only_kind(config: Any) -> Kind:
    return next((kind for kind in SIZE_KEYS if _size(config, kind) is not None), "full_attention")


def _size(config: Any, kind: Kind) -> int | None:
    if kind not in SIZE_KEYS or (kind == "sliding_attention" and getattr(config, "use_sliding_window", True) is False):
        return None
    size = getattr(config, SIZE_KEYS[kind], None)
    return None if size is None else int(size)


def _additive(loaded: LoadedModel, config: Any) -> torch.dtype | None:
    way = getattr(config, "_attn_implementation", None) or "eager"
    if way not in ("sdpa", "eager"):
        raise ContractError(
            f"{loaded.name} runs with attn_implementation {way!r}, which takes no masks of sequences of different "
            "lengths; the embedded engine needs 'sdpa' or 'eager' (model.attn_implementation). " + _ELSEWHERE
        )
    return loaded.dtype if way == "eager" else None


def context_limit(loaded: LoadedModel, asked: int | None) -> tuple[int, str]:
    """(tokens of prompt and reply together, where that number comes from)."""
    config = loaded.config.get_text_config()
    limits = [(int(getattr(config, "max_position_embeddings", None) or 4096), "the model's max_position_embeddings")]
    if asked is not None:
        limits.append((asked, "inference.max_context"))
    for rope in _ropes(config):
        if rope.get("rope_type") in ("longrope", "dynamic"):
            # beyond it every earlier token would turn by another angle than the one it was cached with
            original = rope.get("original_max_position_embeddings") or limits[0][0]
            limits.append((int(original), f"rope type {rope['rope_type']}: keys cached below it do not hold beyond"))
    return min(limits, key=lambda limit: limit[0])


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """The rotary settings of the model: one, or one per kind of layer."""
    found = getattr(config, "rope_parameters", None) or {}
    nested = [own for own in found.values() if isinstance(own, Mapping)]
    return nested or [found]


# -- the proof -------------------------------------------------------------------------------------------------

_TOKENS, _WINDOW = 12, 3


def proven_spans(loaded: LoadedModel) -> AttentionSpans:
    """What the layers of a model see, proved once per model: see `attention_spans` and `prove_attention`."""
    if loaded.spans is None:
        spans = attention_spans(loaded)
        prove_attention(loaded)
        loaded.spans = spans
    return loaded.spans


@torch.no_grad()
def prove_attention(loaded: LoadedModel) -> None:
    """Raises ContractError where the engine's masks and cache are not what the model itself does.

    Compares a few tokens through masks and cache with the model's own forward of all of them, with the windows of the
    config made small for the moment: real ones are longer than what can be tried at every start.
    """
    config = loaded.config.get_text_config()
    banned = {*loaded.banned_ids, *loaded.end_ids}
    ids = list(itertools.islice(itertools.cycle(i for i in range(len(loaded.tokenizer)) if i not in banned), _TOKENS))
    where, _ = loaded.positions(ids, ())
    tokens = torch.tensor([ids], device=loaded.device)
    positions = torch.from_numpy(where.copy()).to(loaded.device)[:, None]
    with _evaluating(loaded.model), _small_windows(config):
        theirs = hidden_states(loaded, tokens, positions, ())
        try:
            ours = _through_the_cache(loaded, attention_spans(loaded), tokens, positions)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            KeyError,
            IndexError,
            NotImplementedError,
        ) as error:
            raise ContractError(
                f"{loaded.name} does not run with the cache and the masks of the embedded engine: "
                f"{type(error).__name__}: {error}. {_ELSEWHERE}"
            ) from error
    gap = ((ours - theirs).float().norm(dim=-1) / theirs.float().norm(dim=-1).clamp(min=1e-30)).mean().item()
    if not gap <= TOLERANCE.get(loaded.dtype, 1e-3):
        raise ContractError(
            f"{loaded.name}: hidden states through the masks and the cache of the embedded engine differ from the "
            f"model's own by {gap:.2g} of their size, expected at most {TOLERANCE.get(loaded.dtype, 1e-3):g}: it "
            "attends, or counts positions, in a way this engine does not know. " + _ELSEWHERE
        )


def _through_the_cache(loaded: LoadedModel, spans: AttentionSpans, tokens: Tensor, positions: Tensor) -> Tensor:
    """Hidden states [1, T, H] of `tokens`, fed as a prompt, a second turn, and one by one."""
    cache = SlotCache(loaded.device)
    cache.reserve(1, _TOKENS)
    parts, start = [], 0
    for end in (5, 9, *range(10, _TOKENS + 1)):
        at = torch.arange(start, end, device=loaded.device)
        cache.aim(slice(0, 1), torch.zeros_like(at), at, torch.ones_like(at, dtype=torch.bool)[None], end)
        masks = spans.masks(at[None], end)
        feed = (tokens[:, start:end], positions[:, :, start:end])
        parts.append(hidden_states(loaded, *feed, (), attention_mask=masks, past_key_values=cache, use_cache=True))
        start = end
    return torch.cat(parts, dim=1)


@contextlib.contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """A context in which `model` is in evaluation mode: HF's gradient checkpointing keeps no cache in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def _small_windows(config: Any) -> Iterator[None]:
    """A context in which the windows of the config are few tokens; the model reads them at every forward."""
    kept = {key: getattr(config, key) for key in SIZE_KEYS.values() if getattr(config, key, None) is not None}
    try:
        for key in kept:
            setattr(config, key, _WINDOW)
        yield
    finally:
        for key, size in kept.items():
            setattr(config, key, size)
