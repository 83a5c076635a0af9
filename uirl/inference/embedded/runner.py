"""The model of the embedded engine: prefill and decode of many sequences over one KV cache, and the draw of tokens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uirl.errors import ContractError
from uirl.images import Screenshot
from uirl.inference.base import Counters, Weights
from uirl.inference.embedded.cache import SlotCache
from uirl.inference.embedded.packed_weights import PackedWeights
from uirl.inference.embedded.sampling import BatchSampling
from uirl.inference.embedded.scheduler import Admission, SequenceState
from uirl.inference.models.attention import OTHER_ENGINES, SIZE_KEYS, AttentionSpans, Masks
from uirl.inference.models.loading import LoadedModel, hidden_states, project
from uirl.inference.models.proving import RAISED, SIZES, difference, evaluating, plain_words, probe, tolerance
from uirl.inference.weight_files import fitting

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
    ids, allowed = plain_words(loaded, _TOKENS), tolerance(loaded.dtype)
    gap = _gap_of(loaded, loaded.attention_spans(), ids, (), (5, 9, *range(10, _TOKENS + 1)))
    if not gap <= allowed:
        raise ContractError(
            f"{loaded.name}: hidden states through the masks and the cache of the embedded engine differ from the "
            f"model's own by {gap:.2g} of their size, expected at most {allowed:g}: it attends, or counts positions, "
            "in a way this engine does not know. " + OTHER_ENGINES
        )


@torch.no_grad()
def proven_with_pictures(loaded: LoadedModel, spans: AttentionSpans) -> AttentionSpans:
    """Return `spans` with whether the placeholders of a picture see each other in both directions: tried, and held
    against the model's own forward of a prompt with a picture and a second turn. Raises ContractError where neither is
    what the model does."""
    vision = loaded.vision
    assert vision is not None
    picture, text, allowed = probe(SIZES[0]), plain_words(loaded, 6), tolerance(loaded.dtype)
    (image,) = vision.encode([picture])
    ids = [*text[:2], *image.expansion.ids.tolist(), *text[2:]]
    ends = (len(ids) - 3, len(ids) - 1, len(ids))
    tried = [replace(spans, both_ways=both_ways) for both_ways in ((False,) if vision.types is None else (False, True))]
    gaps = [_gap_of(loaded, each, ids, (picture,), ends) for each in tried]
    # the least: in 16 bits the wrong direction of a picture may be less than rounding is allowed
    if min(gaps) <= allowed:
        return tried[gaps.index(min(gaps))]
    raise ContractError(
        f"{loaded.name}: hidden states of a prompt with a picture, through the masks and the cache of the embedded "
        f"engine, differ from the model's own by {min(gaps):.2g} of their size, expected at most {allowed:g}: pictures "
        "enter its layers in a way this engine does not know. " + OTHER_ENGINES
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
        except RAISED as error:
            raise ContractError(
                f"{loaded.name} does not run with the cache and the masks of the embedded engine: "
                f"{type(error).__name__}: {error}. {OTHER_ENGINES}"
            ) from error
    return difference(ours, theirs)


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


Sampled = tuple[list[int], list[float]]
"""(token, log-prob) of each sequence, as two lists."""


class ModelRunner:
    """Holds a model and its KV cache. Which sequences run, and in which rows, the scheduler says.

    `max_context`: tokens that one sequence may have. `pool_bytes`: what the cache takes at most. Raises ContractError
    for a model whose attention is not understood.
    """

    def __init__(self, loaded: LoadedModel, *, max_context: int, pool_bytes: int, counters: Counters) -> None:
        self.loaded = loaded
        self._spans = proven_spans(loaded)
        self._counters = counters
        self.max_cached_tokens = pool_bytes // self._bytes_of_a_token()
        """Rows x tokens of each that the cache holds at most."""
        self._max_context = min(max_context, self.max_cached_tokens)
        self._cache = SlotCache(loaded.device, self.max_cached_tokens)
        self._packed = PackedWeights(loaded.model)
        self._rows = 0
        self._batch: BatchSampling | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache takes."""
        return self._cache.bytes

    def reset(self) -> None:
        """Free the cache, and the copies of weights that decoding uses."""
        self._packed.forget()
        self._cache, self._batch = SlotCache(self.loaded.device, self.max_cached_tokens), None

    def weights_changed(self) -> None:
        """Drop the copies of the weights, which are others now."""
        self._packed.forget()

    def load_weights(self, weights: Weights) -> None:
        """Copy `weights` into the model by name. Raises ContractError for a name or a shape that it does not have."""
        parameters = dict(self.loaded.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, tensor in fitting(weights, parameters, self.loaded.name):
                parameters[name].copy_(tensor)
        self.loaded.features.clear()  # the weights may be those of another vision side
        self.weights_changed()

    # -- rows --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def place(self, admission: Admission) -> None:
        """Make room for sequences that begin to run, and move and copy rows as the scheduler says."""
        self._rows, self._batch = admission.rows, None
        self._cache.reserve(admission.rows, admission.length, admission.moves)
        self._cache.copy(admission.copies)

    @torch.inference_mode()
    def move(self, moves: Mapping[int, int]) -> None:
        """Copy rows, {from: to}; the batch of the next decoding step is another one."""
        self._cache.move(moves)
        self._batch = None

    # -- steps -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(self, admitted: Sequence[SequenceState]) -> Sampled:
        """Feed the prompt tokens that are not cached yet, left-padded to one block [B, n]; draw the first tokens.

        What twins share is fed once.
        """
        started = time.perf_counter()
        fed = [sequence for sequence in admitted if sequence.twin is None]
        counts = np.array([sequence.uncached for sequence in fed])
        width, span = int(counts.max()), max(len(s.request.prompt_ids) for s in fed)
        begins = (width - counts)[:, None]
        valid = np.arange(width) >= begins
        served = np.array([s.cached for s in fed])
        columns = np.where(valid, np.arange(width) - begins + served[:, None], 0)
        ids = np.full((len(fed), width), self.loaded.end_ids[0])
        positions = np.zeros((self.loaded.axes, len(fed), width), np.int64)
        groups = np.zeros((len(fed), span), np.int64)
        images: list[Screenshot] = []
        for i, (sequence, begin) in enumerate(zip(fed, begins[:, 0].tolist(), strict=True)):
            prompt = sequence.request.prompt_ids
            ids[i, begin:] = prompt[sequence.cached :]
            positions[:, i, begin:], shown = self._uncached(sequence)
            images += shown
            if self.loaded.vision is not None and self._spans.both_ways:
                groups[i, : len(prompt)] = self.loaded.vision.groups(prompt)
            sequence.cached = len(prompt)
        device = self.loaded.device
        rows = torch.tensor([s.row for s in fed], device=device)
        at, mask = torch.from_numpy(columns).to(device), torch.from_numpy(valid).to(device)
        together = fed[-1].row - fed[0].row == len(fed) - 1
        block = slice(fed[0].row, fed[-1].row + 1) if together else rows
        self._cache.aim(block, rows[:, None].expand_as(at)[mask], at[mask], mask, span)
        masks = self._spans.masks(at, span, torch.from_numpy(groups).to(device))
        pixels = self.loaded.pixels_read
        logits = self._forward(ids, positions, masks, images)
        if len(fed) < len(admitted):
            logits = logits[self._share(fed, admitted)]
        sampled = self._draw(admitted, BatchSampling([s.request.sampling for s in admitted], device), logits)
        self._counters.add("prefill_tokens", int(counts.sum()))
        self._counters.add("prefill_pairs", int((counts * served + counts * (counts + 1) // 2).sum()))
        self._counters.add("prefill_replies", len(fed))
        self._counters.add("prefill_pixels", self.loaded.pixels_read - pixels)
        self._counters.add("reused_tokens", sum(s.reused for s in admitted))
        self._counters.add("prefill_steps", 1)
        # a draw waits for the device, so only behind it is the step over
        self._counters.add("prefill_seconds", time.perf_counter() - started)
        return sampled

    @torch.inference_mode()
    def decode(self, running: Sequence[SequenceState]) -> Sampled:
        """Feed the last token of every running sequence, in the order of their rows; draw the next."""
        started = time.perf_counter()
        n, device = len(running), self.loaded.device
        if self._batch is None:
            self._batch = BatchSampling([s.request.sampling for s in running], device)
        ids = np.array([[s.tokens[-1]] for s in running])
        columns = torch.tensor([s.cached for s in running], device=device)
        positions = np.array([s.next_position for s in running])
        span = max(s.cached for s in running) + 1
        if span > self._cache.length:
            longest = max(s.longest(self._max_context) for s in running)
            self._cache.reserve(self._rows, min(2 * span, longest))
        self._cache.aim(slice(0, n), torch.arange(n, device=device), columns, None, span)
        masks = self._spans.masks(columns[:, None], span)
        every_axis = np.broadcast_to(positions[None, :, None], (self.loaded.axes, n, 1))
        logits = self._forward(ids, every_axis.copy(), masks, [])
        for sequence in running:
            sequence.cached += 1
            sequence.next_position += 1
        sampled = self._draw(running, self._batch, logits)
        self._counters.add("decode_steps", 1)
        self._counters.add("decode_tokens", n)
        self._counters.add("decode_replies", n)
        self._counters.add("decode_pairs", sum(s.cached for s in running))
        self._counters.add("decode_seconds", time.perf_counter() - started)
        return sampled

    def _share(self, fed: Sequence[SequenceState], admitted: Sequence[SequenceState]) -> list[int]:
        """Copy to each twin what was fed in its place; return which of the `fed` speaks for each of the `admitted`."""
        self._cache.copy({s.row: (s.twin.row, s.cached) for s in admitted if s.twin is not None})
        place = {sequence: i for i, sequence in enumerate(fed)}
        for sequence in admitted:
            if sequence.twin is not None:
                sequence.next_position = sequence.twin.next_position
        return [place[sequence.twin or sequence] for sequence in admitted]

    def _uncached(self, sequence: SequenceState) -> tuple[np.ndarray, Sequence[Screenshot]]:
        """Return positions [axes, n] of the prompt tokens that are not in the row yet, and the pictures whose
        placeholders are among them; note the position that follows."""
        prompt, images, row = sequence.request.prompt_ids, sequence.request.images, sequence.continues
        if row is not None:
            shown = images[row.pictures :]
            if self.loaded.adds_up(shown):
                places, following = self.loaded.positions(prompt[sequence.cached :], shown)
                sequence.next_position = row.next_position + following
                return places + row.next_position, shown
        whole, sequence.next_position = self.loaded.positions(prompt, images)
        begins = [start for start, _ in sequence.spans]
        shown = tuple(image for image, start in zip(images, begins, strict=True) if start >= sequence.cached)
        return whole[:, sequence.cached :], shown

    def _forward(self, ids: np.ndarray, positions: np.ndarray, masks: Masks, images: Sequence[Screenshot]) -> Tensor:
        """Return logits [B, V] after the last column of `ids` [B, n] at `positions` [axes, B, n]. `masks`: what each
        token sees; `images`: those whose placeholders are among the ids."""
        if self.loaded.model.training:
            self.loaded.model.eval()
        device = self.loaded.device
        with self._packed.at_work(ids.size):
            hidden = hidden_states(
                self.loaded,
                torch.from_numpy(ids).to(device),
                torch.from_numpy(positions).to(device),
                images,
                attention_mask=masks,
                past_key_values=self._cache,
                use_cache=True,
            )
            return project(self.loaded, hidden[:, -1])

    @torch.inference_mode()
    def _bytes_of_a_token(self) -> int:
        """Return the bytes of the keys and values of one token, in all layers."""
        cache, at = SlotCache(self.loaded.device, 1), torch.zeros(1, dtype=torch.long, device=self.loaded.device)
        cache.reserve(1, 1)
        cache.aim(slice(0, 1), at, at, torch.ones_like(at, dtype=torch.bool)[None], 1)
        with evaluating(self.loaded.model):
            hidden_states(
                self.loaded,
                torch.full_like(at, self.loaded.end_ids[0])[None],
                at.expand(self.loaded.axes, 1, 1),
                (),
                attention_mask=self._spans.masks(at[None], 1),
                past_key_values=cache,
                use_cache=True,
            )
        return cache.bytes

    def _draw(self, sequences: Sequence[SequenceState], sampling: BatchSampling, logits: Tensor) -> Sampled:
        """Return one token for each row of `logits` [B, V]."""
        self._counters.add("generated_tokens", len(sequences))
        return sampling.sample(logits, [s.uniforms.random() for s in sequences])
