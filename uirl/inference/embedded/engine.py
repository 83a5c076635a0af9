"""The embedded engine: continuous batching over any HF model, the KV cache of an episode kept between turns.

Requests wait in a queue. One task admits as many as fit, prefills their new tokens together, then decodes all active
sequences one token at a time; a sequence that ends leaves at once and its episode goes on while the others decode.
Between tokens the event loop runs, so environments step while the engine works.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from uirl.errors import ContractError, EngineFailure
from uirl.images import Screenshot
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights, room_for_reply
from uirl.inference.embedded.cache import SlotCache, rows_for_admission, rows_for_retirement
from uirl.inference.embedded.sampling import BatchSampling
from uirl.inference.models.attention import Masks, context_limit, proven_spans
from uirl.inference.models.loading import LoadedModel, hidden_states, project

if TYPE_CHECKING:
    from uirl.config import ConfigStore

AHEAD = 1024
"""Tokens of a reply that the cache has room for from the start; it grows with one that is longer, so that what a reply
may take costs nothing before it takes it."""


@dataclass(slots=True)
class _Sequence:
    """A request on its way, and the cache row it holds."""

    request: GenerationRequest
    done: asyncio.Future[Generation]
    row: int = -1
    cached: int = 0
    """Tokens whose keys and values are in the row."""
    reused: int = 0
    next_position: int = 0
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    uniforms: random.Random = field(default_factory=random.Random)
    version: int = 0


@dataclass(slots=True)
class _Parked:
    """What a waiting episode left in its row."""

    row: int
    ids: tuple[int, ...]
    images: tuple[str, ...]


class TransformersInferenceEngine(InferenceEngine):
    """Samples from a HF model in this process.

    `shared=True`: the model is the learner's own module, and `update_weights(None, version)` only announces what the
    learner changed in place. Otherwise updates are copied into the model by parameter name.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        shared: bool = False,
        max_batch_size: int = 256,
        max_context: int | None = None,
        kv_cache: bool = True,
        max_prefill_tokens: int = 16384,
    ) -> None:
        self.loaded = loaded
        self.policy_version = 0
        self.shares_weights = shared
        self._max_rows = max_batch_size
        self._keep = kv_cache
        self._max_prefill = max_prefill_tokens
        self._spans = proven_spans(loaded)
        self._max_context, self._limited_by = context_limit(loaded, max_context)
        self._waiting: deque[_Sequence] = deque()
        self._active: list[_Sequence] = []
        self._parked: OrderedDict[str, _Parked] = OrderedDict()
        self._cache = SlotCache(loaded.device)
        self._worker: asyncio.Task[None] | None = None
        self._stats: dict[str, float] = {}
        self._batch: BatchSampling | None = None
        self._closed = False

    @classmethod
    def from_config(cls, config: ConfigStore, loaded: LoadedModel, *, shared: bool) -> TransformersInferenceEngine:
        """The engine as `config.inference` says."""
        settings = config.inference
        return cls(
            loaded,
            shared=shared,
            max_batch_size=settings.max_batch_size,
            max_context=settings.max_context,
            kv_cache=settings.kv_cache,
        )

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")
        room_for_reply(request.prompt_ids, self._max_context, self._limited_by)
        sequence = _Sequence(request, asyncio.get_running_loop().create_future(), version=self.policy_version)
        sequence.uniforms.seed(request.sampling.seed)
        self._waiting.append(sequence)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run())
        try:
            return await sequence.done
        except asyncio.CancelledError:
            self._abandon(sequence)
            raise

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        if adapter is not None:
            raise ContractError("this engine takes no adapters (takes_adapters is False); send merged weights")
        if weights is None and not self.shares_weights:
            raise ContractError("update_weights(None) needs an engine that shares the learner's module (shared=True)")
        if weights is not None:
            self._copy_in(weights)
        self.policy_version = version
        self._parked.clear()

    def release(self, session_id: str) -> None:
        self._parked.pop(session_id, None)

    def stats(self) -> dict[str, float]:
        out, self._stats = self._stats, {}
        return out

    async def close(self) -> None:
        self._closed = True
        if self._worker is not None and not self._worker.done():
            self._worker.cancel()
        for sequence in [*self._waiting, *self._active]:
            if not sequence.done.done():
                sequence.done.set_exception(EngineFailure("the engine was closed"))
        self._waiting.clear()
        self._active.clear()
        self._parked.clear()
        self._cache = SlotCache(self.loaded.device)

    # -- the loop ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._waiting or self._active:
                if self.loaded.model.training:
                    self.loaded.model.eval()
                with torch.inference_mode():
                    admitted = self._admit()
                    if admitted:
                        self._prefill(admitted)
                    if self._active:
                        self._decode()
                await asyncio.sleep(0)
        except Exception as error:
            # nothing may wait for ever on a worker that died; every caller gets the cause
            for sequence in [*self._waiting, *self._active]:
                if not sequence.done.done():
                    failure = EngineFailure(f"the forward pass failed: {type(error).__name__}: {error}")
                    failure.__cause__ = error
                    sequence.done.set_exception(failure)
            self._waiting.clear()
            self._active.clear()
            self._parked.clear()
            self._batch = None
            self._cache = SlotCache(self.loaded.device)

    def _admit(self) -> list[_Sequence]:
        """Moves waiting requests to the active rows as far as rows and the prefill budget allow."""
        admitted: list[_Sequence] = []
        tokens = 0
        while self._waiting and len(self._active) + len(admitted) < self._max_rows:
            sequence = self._waiting[0]
            if sequence.done.done():
                self._waiting.popleft()
                continue
            if admitted and tokens + len(sequence.request.prompt_ids) > self._max_prefill:
                break
            tokens += len(sequence.request.prompt_ids)
            admitted.append(self._waiting.popleft())
        if admitted:
            self._place(admitted)
        return admitted

    def _place(self, admitted: list[_Sequence]) -> None:
        """Gives each admitted sequence a row right behind the active ones, its own kept row where it has one."""
        first = len(self._active)
        kept = [self._parked.pop(s.request.session_id or "", None) for s in admitted]
        while self._parked and first + len(admitted) + len(self._parked) > self._max_rows:
            self._parked.popitem(last=False)
        others = {parked.row: parked for parked in self._parked.values()}
        rows, moves = rows_for_admission(first, [k.row if k else None for k in kept], set(others))
        for sequence, row, own in zip(admitted, rows, kept, strict=True):
            sequence.row = row
            if own is not None:
                sequence.cached = sequence.reused = self._shared_prefix(own, sequence.request)
        for row, parked in others.items():
            parked.row = moves.get(row, row)
        longest = max(len(s.request.prompt_ids) + min(s.request.sampling.max_tokens, AHEAD) for s in admitted)
        highest = max(first + len(admitted), 1 + max((p.row for p in self._parked.values()), default=0))
        self._cache.reserve(_round_up(highest, 16), _round_up(min(longest, self._max_context), 64))
        self._cache.move(moves)
        admitted.sort(key=lambda s: s.row)
        self._active += admitted
        self._batch = None

    def _shared_prefix(self, parked: _Parked, request: GenerationRequest) -> int:
        """How many tokens of the row serve the request: at most all but the last, and never half a picture."""
        ids, kept = request.prompt_ids, parked.ids
        n = min(len(kept), len(ids) - 1)
        if ids[:n] != kept[:n]:
            n = next(i for i in range(n) if ids[i] != kept[i])
        if self.loaded.vision is None:
            return n
        same = 0
        for ours, theirs in zip((s.hash for s in request.images), parked.images, strict=False):
            if ours != theirs:
                break
            same += 1
        token, count = self.loaded.vision.image_token_id, 0
        sizes = [image.tokens for image in self.loaded.vision.encode(request.images)] if request.images else []
        ends = np.cumsum(sizes)
        for i in range(n):
            if ids[i] == token:
                count += 1
                picture = int(np.searchsorted(ends, count))
                start_of_picture = count - (int(ends[picture - 1]) if picture else 0) == 1
                if start_of_picture and (picture >= same or i + sizes[picture] > n):
                    return i
        return n

    def _prefill(self, admitted: list[_Sequence]) -> None:
        """Feeds the tokens that are not yet cached, left-padded to one block, and samples the first token."""
        started = time.perf_counter()
        counts = [len(s.request.prompt_ids) - s.cached for s in admitted]
        width, span = max(counts), max(len(s.request.prompt_ids) for s in admitted)
        device = self.loaded.device
        ids = np.full((len(admitted), width), self.loaded.end_ids[0])
        positions = np.zeros((self.loaded.axes, len(admitted), width), np.int64)
        columns = np.zeros((len(admitted), width), np.int64)
        valid = np.zeros((len(admitted), width), bool)
        shots: list[Screenshot] = []
        for i, (sequence, n) in enumerate(zip(admitted, counts, strict=True)):
            prompt = sequence.request.prompt_ids
            where, sequence.next_position = self.loaded.positions(prompt, sequence.request.images)
            ids[i, width - n :] = prompt[sequence.cached :]
            positions[:, i, width - n :] = where[:, sequence.cached :]
            columns[i, width - n :] = np.arange(sequence.cached, len(prompt))
            valid[i, width - n :] = True
            shots += self._new_images(sequence)
            sequence.cached = len(prompt)
        rows = torch.tensor([s.row for s in admitted], device=device)
        at, mask = torch.from_numpy(columns).to(device), torch.from_numpy(valid).to(device)
        # the admitted rows stand side by side: read without a copy
        block = slice(admitted[0].row, admitted[-1].row + 1)
        self._cache.aim(block, rows[:, None].expand_as(at)[mask], at[mask], mask, span)
        logits = self._forward(ids, positions, self._spans.masks(at, span), shots)
        self._count("prefill_tokens", sum(counts))
        self._count("reused_tokens", sum(s.reused for s in admitted))
        self._count("prefill_seconds", time.perf_counter() - started)
        self._take(admitted, BatchSampling([s.request.sampling for s in admitted], device), logits)

    def _new_images(self, sequence: _Sequence) -> list[Screenshot]:
        vision = self.loaded.vision
        if vision is None or not sequence.request.images:
            return []
        token = vision.image_token_id
        seen = sum(1 for i in sequence.request.prompt_ids[: sequence.cached] if i == token)
        used = 0
        for k, image in enumerate(vision.encode(sequence.request.images)):
            if used == seen:
                return list(sequence.request.images[k:])
            used += image.tokens
        return []

    def _decode(self) -> None:
        """Feeds the last token of every active sequence and samples the next."""
        started = time.perf_counter()
        active, device = self._active, self.loaded.device
        if self._batch is None:
            self._batch = BatchSampling([s.request.sampling for s in active], device)
        n = len(active)
        ids = np.array([[s.tokens[-1]] for s in active])
        columns = torch.tensor([s.cached for s in active], device=device)
        positions = np.array([s.next_position for s in active])
        span = max(s.cached for s in active) + 1
        if span > self._cache.length:
            self._cache.reserve(0, _round_up(min(2 * span, self._max_context), 64))
        self._cache.aim(slice(0, n), torch.arange(n, device=device), columns, None, span)
        masks = self._spans.masks(columns[:, None], span)
        where = np.broadcast_to(positions[None, :, None], (self.loaded.axes, n, 1))
        logits = self._forward(ids, where.copy(), masks, [])
        for sequence in active:
            sequence.cached += 1
            sequence.next_position += 1
        self._count("decode_steps", 1)
        self._count("decode_seconds", time.perf_counter() - started)
        self._take(active, self._batch, logits)

    def _forward(self, ids: np.ndarray, positions: np.ndarray, masks: Masks, shots: list[Screenshot]) -> Tensor:
        """Logits [B, V] behind the last column. `masks`: what each token sees."""
        device = self.loaded.device
        hidden = hidden_states(
            self.loaded,
            torch.from_numpy(ids).to(device),
            torch.from_numpy(positions).to(device),
            shots,
            attention_mask=masks,
            past_key_values=self._cache,
            use_cache=True,
        )
        return project(self.loaded, hidden[:, -1])

    def _take(self, sequences: list[_Sequence], sampling: BatchSampling, logits: Tensor) -> None:
        """Samples one token for each sequence and retires those that are finished."""
        tokens, log_probs = sampling.sample(logits, [s.uniforms.random() for s in sequences])
        finished: list[tuple[_Sequence, str]] = []
        for sequence, token, log_prob in zip(sequences, tokens, log_probs, strict=True):
            sequence.tokens.append(token)
            sequence.log_probs.append(log_prob)
            params = sequence.request.sampling
            if token in self.loaded.end_ids or token in params.stop_token_ids:
                finished.append((sequence, "stop"))
            elif len(sequence.tokens) >= params.max_tokens or sequence.cached + 1 >= self._max_context:
                finished.append((sequence, "length"))
            elif sequence.done.done():
                finished.append((sequence, "abort"))
        self._count("generated_tokens", len(tokens))
        if finished:
            self._retire(finished)

    def _retire(self, finished: list[tuple[_Sequence, str]]) -> None:
        """Answers finished requests; the active rows close up and kept rows stay behind them."""
        gone = {id(sequence) for sequence, _ in finished}
        stay = [s for s in self._active if id(s) not in gone]
        moves = rows_for_retirement([s.row for s in stay], [s.row for s, _ in finished])
        self._cache.move(moves)
        for sequence in self._active:
            sequence.row = moves.get(sequence.row, sequence.row)
        # decoding reads rows [0, active) in this order
        self._active = sorted(stay, key=lambda s: s.row)
        self._batch = None
        for sequence, reason in finished:
            request = sequence.request
            if self._keep and request.session_id and reason != "abort":
                ids = (request.prompt_ids + tuple(sequence.tokens))[: sequence.cached]
                self._parked[request.session_id] = _Parked(sequence.row, ids, tuple(s.hash for s in request.images))
            if not sequence.done.done():
                tokens, log_probs = tuple(sequence.tokens), tuple(sequence.log_probs)
                sequence.done.set_result(Generation(tokens, log_probs, reason, sequence.version, sequence.reused))

    def _abandon(self, sequence: _Sequence) -> None:
        """The caller went away; the row is freed when the sequence is next looked at."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)

    def _copy_in(self, weights: Weights) -> None:
        own = dict(self.loaded.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, tensor in weights:
                if name not in own:
                    raise ContractError(f"weight update holds {name!r}, which {self.loaded.name} does not have")
                if own[name].shape != tensor.shape:
                    raise ContractError(f"{name}: got shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}")
                own[name].copy_(tensor)

    def _count(self, name: str, value: float) -> None:
        self._stats[name] = self._stats.get(name, 0.0) + value


def _round_up(n: int, step: int) -> int:
    return (n + step - 1) // step * step
