"""The proof, before the first request, that masks and cache of the embedded engine do what the model itself does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference.embedded.cache import SlotCache
from uirl.inference.models.attention import OTHER_ENGINES, SIZE_KEYS, AttentionSpans
from uirl.inference.models.loading import LoadedModel, hidden_states
from uirl.inference.models.picture_proof import SIZES, probe
from uirl.inference.models.probing import evaluating, plain_ids

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""Largest relative difference of hidden states, as a mean over tokens, that rounding explains. Over the 30 families of
transformers 5.10 that have windows or chunks, with random weights, a mask without them made 0.2 to 0.98."""

_TOKENS, _WINDOW = 12, 3


def proven_spans(loaded: LoadedModel) -> AttentionSpans:
    """Return what the layers of a model see, proved once per model: see `prove_attention`."""
    if loaded.spans is None:
        spans = loaded.attention_spans()
        prove_attention(loaded)
        loaded.spans = spans if loaded.vision is None else proven_with_pictures(loaded, spans)
    return loaded.spans


@torch.no_grad()
def prove_attention(loaded: LoadedModel) -> None:
    """Raise ContractError where the engine's masks and cache are not what the model itself does.

    Compares a few tokens through masks and cache with the model's own forward of all of them, with the windows of the
    config made small for the moment: real ones are longer than what can be tried at every start.
    """
    ids = list(itertools.islice(itertools.cycle(plain_ids(loaded)), _TOKENS))
    gap = _gap_of(loaded, loaded.attention_spans(), ids, (), (5, 9, *range(10, _TOKENS + 1)))
    if not gap <= TOLERANCE.get(loaded.dtype, 1e-3):
        raise ContractError(
            f"{loaded.name}: hidden states through the masks and the cache of the embedded engine differ from the "
            f"model's own by {gap:.2g} of their size, expected at most {TOLERANCE.get(loaded.dtype, 1e-3):g}: it "
            "attends, or counts positions, in a way this engine does not know. " + OTHER_ENGINES
        )


@torch.no_grad()
def proven_with_pictures(loaded: LoadedModel, spans: AttentionSpans) -> AttentionSpans:
    """Return `spans` with whether the placeholders of a picture see each other in both directions: tried, and held
    against the model's own forward of a prompt with a picture and a second turn. Raises ContractError where neither is
    what the model does."""
    vision = loaded.vision
    assert vision is not None
    picture = probe(SIZES[0])
    text = list(itertools.islice(itertools.cycle(plain_ids(loaded)), 6))
    (image,) = vision.encode([picture])
    ids = [*text[:2], *image.expansion.ids.tolist(), *text[2:]]
    ends = (len(ids) - 3, len(ids) - 1, len(ids))
    tried = [replace(spans, both_ways=both_ways) for both_ways in ((False,) if vision.types is None else (False, True))]
    gaps = [_gap_of(loaded, each, ids, (picture,), ends) for each in tried]
    # the least: in 16 bits the wrong direction of a picture may be less than rounding is allowed
    if min(gaps) <= TOLERANCE.get(loaded.dtype, 1e-3):
        return tried[gaps.index(min(gaps))]
    raise ContractError(
        f"{loaded.name}: hidden states of a prompt with a picture, through the masks and the cache of the embedded "
        f"engine, differ from the model's own by {min(gaps):.2g} of their size, expected at most "
        f"{TOLERANCE.get(loaded.dtype, 1e-3):g}: pictures enter its layers in a way this engine does not know. "
        + OTHER_ENGINES
    )


def _gap_of(
    loaded: LoadedModel, spans: AttentionSpans, ids: list[int], images: Sequence[Screenshot], ends: Sequence[int]
) -> float:
    """Return the difference between the hidden states of `ids` through masks and cache, fed up to each of `ends`, and
    the model's own, in parts of their size, as a mean over tokens."""
    places, _ = loaded.positions(ids, images)
    tokens = torch.tensor([ids], device=loaded.device)
    positions = torch.from_numpy(places.copy()).to(loaded.device)[:, None]
    with evaluating(loaded.model), _small_windows(loaded.config.get_text_config()):
        # the spans of the config as they are now
        here = replace(loaded.attention_spans(), both_ways=spans.both_ways)
        theirs = hidden_states(loaded, tokens, positions, images)
        try:
            ours = _through_the_cache(loaded, here, tokens, positions, images, ends)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise ContractError(
                f"{loaded.name} does not run with the cache and the masks of the embedded engine: "
                f"{type(error).__name__}: {error}. {OTHER_ENGINES}"
            ) from error
    return ((ours - theirs).float().norm(dim=-1) / theirs.float().norm(dim=-1).clamp(min=1e-30)).mean().item()


def _through_the_cache(
    loaded: LoadedModel,
    spans: AttentionSpans,
    tokens: Tensor,
    positions: Tensor,
    images: Sequence[Screenshot],
    ends: Sequence[int],
) -> Tensor:
    """Return hidden states [1, T, H] of `tokens`, fed in parts that end at `ends`; the first holds all pictures."""
    cache = SlotCache(loaded.device)
    cache.reserve(1, tokens.shape[1])
    groups = None
    if loaded.vision is not None:
        groups = torch.from_numpy(loaded.vision.groups(tokens[0].tolist())).to(loaded.device)[None]
    parts, start = [], 0
    for end in ends:
        at = torch.arange(start, end, device=loaded.device)
        cache.aim(slice(0, 1), torch.zeros_like(at), at, torch.ones_like(at, dtype=torch.bool)[None], end)
        masks = spans.masks(at[None], end, None if groups is None else groups[:, :end])
        feed = (tokens[:, start:end], positions[:, :, start:end], images if start == 0 else ())
        parts.append(hidden_states(loaded, *feed, attention_mask=masks, past_key_values=cache, use_cache=True))
        start = end
    return torch.cat(parts, dim=1)


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
