"""The proof, before the first request, that masks and cache of the embedded engine do what the model itself does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from uirl.errors import ContractError
from uirl.inference.embedded.cache import SlotCache
from uirl.inference.models.attention import OTHER_ENGINES, SIZE_KEYS, AttentionSpans
from uirl.inference.models.loading import LoadedModel, hidden_states

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Largest relative difference of hidden states, as a mean over tokens, that rounding explains. Over the 30 families of
transformers 5.10 that have windows or chunks, with random weights, a mask without them made 0.2 to 0.98."""

_TOKENS, _WINDOW = 12, 3


def proven_spans(loaded: LoadedModel) -> AttentionSpans:
    """Return what the layers of a model see, proved once per model: see `prove_attention`."""
    if loaded.spans is None:
        spans = loaded.attention_spans()
        prove_attention(loaded)
        loaded.spans = spans
    return loaded.spans


@torch.no_grad()
def prove_attention(loaded: LoadedModel) -> None:
    """Raise ContractError where the engine's masks and cache are not what the model itself does.

    Compares a few tokens through masks and cache with the model's own forward of all of them, with the windows of the
    config made small for the moment: real ones are longer than what can be tried at every start.
    """
    config = loaded.config.get_text_config()
    banned = {*loaded.banned_ids, *loaded.end_ids}
    ids = list(itertools.islice(itertools.cycle(i for i in range(len(loaded.tokenizer)) if i not in banned), _TOKENS))
    places, _ = loaded.positions(ids, ())
    tokens = torch.tensor([ids], device=loaded.device)
    positions = torch.from_numpy(places.copy()).to(loaded.device)[:, None]
    with _evaluating(loaded.model), _small_windows(config):
        theirs = hidden_states(loaded, tokens, positions, ())
        try:
            ours = _through_the_cache(loaded, loaded.attention_spans(), tokens, positions)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise ContractError(
                f"{loaded.name} does not run with the cache and the masks of the embedded engine: "
                f"{type(error).__name__}: {error}. {OTHER_ENGINES}"
            ) from error
    gap = ((ours - theirs).float().norm(dim=-1) / theirs.float().norm(dim=-1).clamp(min=1e-30)).mean().item()
    if not gap <= TOLERANCE.get(loaded.dtype, 1e-3):
        raise ContractError(
            f"{loaded.name}: hidden states through the masks and the cache of the embedded engine differ from the "
            f"model's own by {gap:.2g} of their size, expected at most {TOLERANCE.get(loaded.dtype, 1e-3):g}: it "
            "attends, or counts positions, in a way this engine does not know. " + OTHER_ENGINES
        )


def _through_the_cache(loaded: LoadedModel, spans: AttentionSpans, tokens: Tensor, positions: Tensor) -> Tensor:
    """Return hidden states [1, T, H] of `tokens`, fed as a prompt, a second turn, and one by one."""
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
    """Return a context in which `model` is in evaluation mode: HF's gradient checkpointing keeps no cache in training
    mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def _small_windows(config: Any) -> Iterator[None]:
    """Return a context in which the windows of the config are few tokens; the model reads them at every forward."""
    kept = {key: getattr(config, key) for key in SIZE_KEYS.values() if getattr(config, key, None) is not None}
    try:
        for key in kept:
            setattr(config, key, _WINDOW)
        yield
    finally:
        for key, size in kept.items():
            setattr(config, key, size)
