"""The convenience front: texts in, texts out, without an event loop of your own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from uirl.config import ConfigStore
from uirl.errors import ConfigError
from uirl.images import screenshot
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.registry import create_engine
from uirl.runtime.event_loop import EventLoopThread

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GenerationOutput:
    """Responses to a list of prompts, in their order."""

    sequences: list[str]
    tokens: np.ndarray
    """int64 [batch, longest], right-padded with `pad_token_id`."""
    log_probs: np.ndarray
    """float32 [batch, longest], NaN where `tokens` is padding."""
    generations: list[Generation]
    pad_token_id: int


class TextEngine:
    """An engine with its model, tokenizer and chat template: what `create_inference_engine` returns."""

    def __init__(self, loaded: LoadedModel, engine: InferenceEngine) -> None:
        self.loaded = loaded
        self.engine = engine
        self._loop: EventLoopThread | None = None
        self._lock = threading.Lock()

    @cached_property
    def chat(self) -> ChatRenderer:
        """The chat template; raises ContractError where the tokenizer has none."""
        return ChatRenderer(self.loaded)

    def generate(
        self,
        prompts: Sequence[str] | Sequence[Sequence[Message]],
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        *,
        images: Sequence[Any] | None = None,
        seed: int | None = None,
    ) -> GenerationOutput:
        """Return one response per prompt. A str is continued as it is (no chat template); a list of `Message` is a
        conversation. `images[i]`, a picture or None, makes prompt i a user message with that picture."""
        requests = []
        for i, prompt in enumerate(prompts):
            own_seed = None if seed is None else seed + i
            params = SamplingParams(max_tokens, temperature, top_p, top_k, seed=own_seed)
            requests.append(self._request(prompt, images[i] if images else None, params))
        return self._output(self.run(self._all(requests)))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns, which runs on the engine's own event loop, also where another loop is
        running."""
        with self._lock:  # two threads that begin at once share one loop: the engine belongs to it
            if self._loop is None:
                self._loop = EventLoopThread()
            loop = self._loop
        return loop.run(coroutine)

    def close(self) -> None:
        """Free the engine and its event loop. Calling it twice is fine."""
        self.run(self.engine.close())
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    async def _all(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return list(await asyncio.gather(*[self.engine.generate(r) for r in requests]))

    def _request(self, prompt: Any, picture: Any, params: SamplingParams) -> GenerationRequest:
        images = () if picture is None else (screenshot(picture),)
        if isinstance(prompt, str) and not images:
            ids = self.loaded.tokenizer(prompt)["input_ids"]
            return GenerationRequest(tuple(ids), (), params, messages=(Message("user", prompt),))
        messages = [Message("user", prompt, images)] if isinstance(prompt, str) else list(prompt)
        shown = tuple(image for message in messages for image in message.images)
        return GenerationRequest(tuple(self.chat.whole(messages)), shown, params, messages=tuple(messages))

    def _output(self, generations: list[Generation]) -> GenerationOutput:
        pad = self.loaded.tokenizer.pad_token_id
        pad = self.loaded.end_ids[0] if pad is None else pad
        longest = max((len(g.token_ids) for g in generations), default=0)
        tokens = np.full((len(generations), longest), pad, np.int64)
        log_probs = np.full((len(generations), longest), np.nan, np.float32)
        for i, g in enumerate(generations):
            tokens[i, : len(g.token_ids)] = g.token_ids
            if g.log_probs is not None:
                log_probs[i, : len(g.token_ids)] = g.log_probs
        texts = [self.loaded.tokenizer.decode(g.token_ids, skip_special_tokens=True) for g in generations]
        return GenerationOutput(texts, tokens, log_probs, generations, pad)


class BatchInferenceManager:
    """Long prompt lists in batches of `batch_size`, with progress."""

    def __init__(self, engine: TextEngine, batch_size: int = 32) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.engine, self.batch_size = engine, batch_size

    def generate_batch(self, prompts: Sequence[str], **options: Any) -> GenerationOutput:
        """Return the responses to all prompts; `options` are those of `TextEngine.generate`."""
        generations = [g for output in self.batches(prompts, **options) for g in output.generations]
        return self.engine._output(generations)

    def batches(self, prompts: Sequence[str], **options: Any) -> Iterator[GenerationOutput]:
        """Yield the responses batch by batch, as they come."""
        seed, images = options.pop("seed", None), options.pop("images", None)
        for start in range(0, len(prompts), self.batch_size):
            part = slice(start, start + self.batch_size)
            yield self.engine.generate(
                prompts[part],
                seed=None if seed is None else seed + start,
                images=None if images is None else images[part],
                **options,
            )


def create_inference_engine(
    model_path: str, backend: str = "transformers", config: Mapping[str, Any] | None = None
) -> TextEngine:
    """Return an engine for `model_path` (a HF id, a folder, or a built-in tiny model).

    `config` holds keys of the `model` and `inference` sections by their plain names (`dtype`, `device`,
    `max_batch_size`, ...); vLLM's `max_model_len` is read as `max_context`. Raises ConfigError for any other key.
    """
    store = ConfigStore()
    store.model.model_name = model_path
    store.inference.backend = backend  # type: ignore[assignment]
    for key, value in dict(config or {}).items():
        name = {"max_model_len": "max_context"}.get(key, key)
        section = next((s for s in (store.model, store.inference) if name in type(s).model_fields), None)
        if section is None:
            keys = [*type(store.model).model_fields, *type(store.inference).model_fields]
            raise ConfigError(f"unknown engine option {key!r}; expected a key of model or inference: {', '.join(keys)}")
        setattr(section, name, value)
    # the other engines load the weights themselves, in a process of their own
    loaded = load_model(store.model, weights=store.inference.backend == "transformers")
    return TextEngine(loaded, create_engine(store, loaded))
