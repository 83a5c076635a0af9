"""The embedded engine: continuous batching over any HF model, the KV cache of an episode kept between turns.

Requests wait in a queue. One task admits as many as fit, prefills their new tokens together, then decodes all running
sequences one token at a time; a sequence that ends leaves at once and its episode goes on while the others decode.
Between tokens the event loop runs, so environments step while the engine works.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from uirl.errors import ContractError, EngineFailure
from uirl.inference.base import Counters, Generation, GenerationRequest, InferenceEngine, Weights, max_reply_tokens
from uirl.inference.embedded.runner import ModelRunner, Sampled
from uirl.inference.embedded.scheduler import Scheduler, SchedulerLimits, SequenceState
from uirl.inference.models.attention import context_limit
from uirl.inference.models.loading import LoadedModel
from uirl.runtime.memory import free_memory
from uirl.runtime.time_limits import TimedOut
from uirl.runtime.waiting import wait_for

if TYPE_CHECKING:
    from uirl.config import EngineSettings

_LOG = logging.getLogger(__name__)
LONGEST_REPLY = 300.0
"""Seconds that an update waits for the replies under way, where it waits for them."""


class TransformersInferenceEngine(InferenceEngine):
    """Samples from a HF model in this process.

    `shared=True`: the model is the learner's own module, and `update_weights(None, version)` only announces what the
    learner changed in place. Otherwise updates are copied into the model by parameter name.

    `swap`: new weights come in between two tokens of the replies under way ('token'), or once these have ended, while
    new requests wait ('turn'). `keep_cache`: what older weights computed of an episode serves its next turns too; else
    it is computed again, and the next turn is sampled as the learner would score it.

    `pool_bytes`: what the attention cache takes at most; requests wait until there is room for their whole reply. None:
    half of the memory that is free now.
    """

    keeps_weights = True

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        shared: bool = False,
        max_batch_size: int = 256,
        max_context: int | None = None,
        kv_cache: bool = True,
        pool_bytes: int | None = None,
        swap: Literal["token", "turn"] = "token",
        keep_cache: bool = False,
    ) -> None:
        self.loaded = loaded
        self.swap, self.keep_cache = swap, keep_cache
        self.shares_weights = shared
        limit, self._limited_by = context_limit(loaded.config, max_context)
        self._counters = Counters()
        room = _free_on(loaded.device) // 2 if pool_bytes is None else pool_bytes
        self._runner = ModelRunner(loaded, max_context=limit, pool_bytes=room, counters=self._counters)
        if self._runner.max_cached_tokens < limit:
            limit = self._runner.max_cached_tokens
            self._limited_by = f"all that the attention cache of {room} bytes holds, inference.kv_cache_gib"
        self.limits = SchedulerLimits(max_batch_size, limit, max_cached_tokens=self._runner.max_cached_tokens)
        self._scheduler = Scheduler(
            self.limits,
            end_ids=loaded.end_ids,
            keep_rows=kv_cache,
            image_spans=loaded.vision.spans if loaded.vision else None,
        )
        self._replies: dict[SequenceState, asyncio.Future[Generation]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._updates = asyncio.Lock()
        self._steps = 0
        self._swapped_at = -1
        """The steps that were done when an update let the requests in that it had held back."""
        self._closed = False

    @classmethod
    def from_config(cls, settings: EngineSettings, loaded: LoadedModel, *, shared: bool) -> TransformersInferenceEngine:
        """Return the engine as `settings` say."""
        inference, actors = settings.inference, settings.actors
        return cls(
            loaded,
            shared=shared,
            max_batch_size=inference.max_batch_size,
            max_context=inference.max_context,
            kv_cache=inference.kv_cache,
            swap=actors.swap,
            keep_cache=actors.keep_cache,
            pool_bytes=None if inference.kv_cache_gib is None else int(inference.kv_cache_gib * 2**30),
        )

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._closed:
            raise EngineFailure("the engine is closed; make a new one")
        max_reply_tokens(request.prompt_ids, self.limits.max_context, self._limited_by)
        sequence = self._scheduler.add(request)
        reply = self._replies[sequence] = asyncio.get_running_loop().create_future()
        self._wake()
        try:
            return await reply
        except asyncio.CancelledError:
            self._scheduler.abort(sequence)
            raise
        finally:
            del self._replies[sequence]

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        if adapter is not None:
            raise ContractError("this engine takes no adapters (takes_adapters is False); send merged weights")
        if weights is None and not self.shares_weights:
            raise ContractError("update_weights(None) needs an engine that shares the learner's module (shared=True)")
        async with self._updates:
            try:
                if self.swap == "turn":
                    await self._let_replies_end()
                if self._closed:
                    raise EngineFailure("the engine is closed; make a new one")
                if weights is None:
                    self._runner.weights_changed()
                else:
                    self._runner.load_weights(weights)
                self.policy_version = version
                self._scheduler.stop_sharing()
                if not self.keep_cache:
                    self._scheduler.forget_rows()
            finally:
                self._scheduler.held, self._swapped_at = False, self._steps
                self._free_idle_cache()
                self._wake()

    def release(self, session_id: str) -> None:
        self._scheduler.release(session_id)
        self._free_idle_cache()

    def stats(self) -> dict[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        self._closed = True
        if self._worker is not None and not self._worker.done():
            self._worker.cancel()
        self._fail("the engine was closed")

    @property
    def cache_bytes(self) -> int:
        """Bytes of the attention cache. None are held while no episode is under way, so that a learner on the same
        device has them for its update."""
        return self._runner.cache_bytes

    # -- the loop ----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """See to it that somebody works, where there is work."""
        if self._scheduler.has_work and not self._closed and (self._worker is None or self._worker.done()):
            self._worker = asyncio.create_task(self._run())

    def _free_idle_cache(self) -> None:
        """Free the cache where nothing in it will be read again."""
        if self._scheduler.is_empty:
            self._runner.reset()

    async def _let_replies_end(self) -> None:
        """Admit no request until the replies under way have ended, or for `LONGEST_REPLY` seconds."""
        while self._steps == self._swapped_at and self._scheduler.has_work and not self._closed:
            await asyncio.sleep(0)  # what the last update held back goes first: updates cannot starve requests
        self._scheduler.held = True
        if self._worker is None or self._worker.done():
            return
        try:
            what = f"{len(self._scheduler.running)} replies to end before new weights come in (actors.swap=turn)"
            await wait_for(what, asyncio.wait({self._worker}), LONGEST_REPLY)
        except TimedOut as error:
            self._counters.add("early_swaps", 1)
            _LOG.warning("%s; the new weights come in between their tokens", error)

    async def _run(self) -> None:
        """Step while there is work."""
        try:
            while self._scheduler.has_work:
                self._step()
                await asyncio.sleep(0)
            self._free_idle_cache()
        except Exception as error:
            # nothing may wait for ever on a worker that died; every caller gets the cause
            self._fail(f"the forward pass failed: {type(error).__name__}: {error}", error)

    def _step(self) -> None:
        """Prefill what can be admitted, then decode one token of everything that runs."""
        self._steps += 1
        admission = self._scheduler.admit(self.policy_version)
        if admission is not None:
            self._runner.place(admission)
            self._append(admission.sequences, self._runner.prefill(admission.sequences))
        if self._scheduler.running:
            self._append(self._scheduler.running, self._runner.decode(self._scheduler.running))

    def _append(self, sequences: Sequence[SequenceState], sampled: Sampled) -> None:
        """Record one token of each sequence and answer the requests that end with it."""
        finished = self._scheduler.append(sequences, *sampled)
        if not finished.sequences:
            return
        self._runner.move(finished.moves)
        for sequence, reason in finished.sequences:
            reply = self._replies.get(sequence)
            if reply is not None and not reply.done():
                tokens, log_probs = tuple(sequence.tokens), tuple(sequence.log_probs)
                reply.set_result(Generation(tokens, log_probs, reason, sequence.policy_version, sequence.reused))

    def _fail(self, message: str, cause: Exception | None = None) -> None:
        """End everything under way with an EngineFailure, and free the cache."""
        for sequence in self._scheduler.clear():
            reply = self._replies.get(sequence)
            if reply is not None and not reply.done():
                failure = EngineFailure(message)
                failure.__cause__ = cause
                reply.set_exception(failure)
        self._runner.reset()


def _free_on(device: torch.device) -> int:
    """Return the bytes that are free on a device; more than anything needs where nothing says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = free_memory()
    return 2**62 if free is None else free
