"""vLLM as the engine: in processes of its own that start here, or a server that already runs.

No response spans an update. An update waits until what is under way has ended, keeps what comes meanwhile at the door,
loads the weights in place and drops every cached state; so a response has one policy version, and no KV state of old
weights is read under new ones. Episodes need no session: vLLM finds their history in its prefix cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from uirl.errors import ContractError, EngineFailure
from uirl.inference.base import Counters, Generation, GenerationRequest, InferenceEngine, Weights
from uirl.inference.footprint import CACHE, WEIGHTS, Footprint, Held
from uirl.inference.models.loading import LoadedModel
from uirl.inference.servers import model_folder, pushed_weights, server_client
from uirl.inference.vllm.arguments import check_heads, engine_arguments, sleep_level
from uirl.inference.vllm.process import VLLMProcess
from uirl.inference.vllm.requests import Adapter, VLLMBackend, VLLMRequest, VLLMResponse, to_generation, to_vllm_request
from uirl.inference.vllm.server import VLLMServer
from uirl.inference.weight_files import WeightFiles, plain_parameters
from uirl.runtime.event_loop import EventLoopThread

if TYPE_CHECKING:
    from uirl.config import EngineSettings

T = TypeVar("T")


class VLLMInferenceEngine(InferenceEngine):
    """Samples from a vLLM; usable from any event loop, and from several.

    `loaded`: the model's tokenizer, picture side and parameter names; its weights may be absent
    (`load_model(..., weights=False)`). `files`: the folder through which weights go. `max_context`: most tokens of
    prompt and response together; None: what vLLM was started with. `takes_adapters`: LoRA adapters are pushed.
    `holds_base`: vLLM is known to hold the weights of `loaded`; otherwise they are pushed before the first adapter,
    which would count for nothing on top of others. `sleep_level`: what `sleep` does (`inference.sleep`); 0: nothing.
    """

    def __init__(
        self,
        backend: VLLMBackend,
        loaded: LoadedModel,
        *,
        files: WeightFiles,
        max_context: int | None = None,
        takes_adapters: bool = False,
        holds_base: bool = False,
        sleep_level: int = 0,
    ) -> None:
        self.loaded = loaded
        self.takes_adapters = takes_adapters
        self._backend, self._files = backend, files
        self._max_context = max_context
        self._limit: int | None = None
        self._loop = EventLoopThread()
        self._gate = _Gate()
        self._running: set[asyncio.Task[Any]] = set()
        self._adapter: Adapter | None = None
        self._adapters = itertools.count(1)
        self._holds_base = holds_base
        self._sleep_level, self.sleeps = sleep_level, sleep_level > 0
        self._asleep: list[str] = []
        """Parts of its memory that are given away, in the order in which they wake."""
        self._moments: list[Held | None] = []
        """What it held at those of the sleep under way."""
        self._broken: str | None = None
        self._clock = _Clock()
        self._counters = Counters()
        self._closed = False

    @classmethod
    def from_config(cls, settings: EngineSettings, loaded: LoadedModel, *, shared: bool) -> VLLMInferenceEngine:
        """Build the engine that `settings` describe: the server at `server_url`, or a vLLM that starts here
        and now.

        `shared`: the learner is in this process, and on its GPU. Weights are never shared: vLLM has its own.
        """
        model, inference = settings.model, settings.inference
        size = sum(parameter.nbytes for _, parameter in plain_parameters(loaded))
        files = WeightFiles(inference.weights_dir, size=size)
        try:
            backend: VLLMBackend
            level = sleep_level(settings, beside_learner=shared and loaded.device.type == "cuda")
            if inference.server_url is not None:
                client = server_client(inference, inference.server_url, key_variable="VLLM_API_KEY")
                rank = model.lora.r if model.use_lora else None
                backend = VLLMServer(client, model=inference.server_model, lora_rank=rank)
            else:
                text = loaded.text_config
                check_heads(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
                positions = getattr(text, "max_position_embeddings", None)
                arguments = engine_arguments(
                    model, inference, beside_learner=shared, positions=positions, sleeps=level > 0
                )
                backend = VLLMProcess(arguments | {"model": model_folder(model.source, loaded, files, program="vLLM")})
            starts_here = inference.server_url is None
            engine = cls(
                backend,
                loaded,
                files=files,
                max_context=inference.max_context,
                takes_adapters=model.use_lora,
                holds_base=starts_here and inference.engine_options.get("load_format") != "dummy",
                sleep_level=level,
            )
            if starts_here:
                engine._start()
        except BaseException:
            files.close()
            raise
        return engine

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._limit is None:
            self._limit = await self._here(self._backend.start())
        # pictures are encoded where the learner encodes its own: both fill one cache
        call = to_vllm_request(request, self.loaded, min(self._limit, self._max_context or self._limit))
        response, version = await self._here(self._respond(call))
        generation = to_generation(response, request, self.loaded, version)
        self._counters.add("generated_tokens", len(generation.token_ids))
        self._counters.add("prefill_tokens", len(request.prompt_ids) - generation.cached_tokens)
        self._counters.add("reused_tokens", generation.cached_tokens)
        return generation

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        weights = pushed_weights(weights, adapter, takes_adapters=self.takes_adapters, program="vLLM")
        started = time.perf_counter()
        # first, so that a closed engine or a server that does not fit is told before anything is written
        self._limit = await self._here(self._backend.start())
        whole: Path | None = None
        beside: Path | None = None
        try:
            if adapter is None:
                whole = await asyncio.to_thread(self._files.write_weights, weights, self.loaded)
            else:
                whole = await self._write_base()
                beside = await asyncio.to_thread(self._files.write_adapter, weights, adapter)
            await self._here(self._install(version, whole, beside))
        finally:
            self._files.remove(whole)
        self._counters.add("update_seconds", time.perf_counter() - started)

    async def sleep(self) -> None:
        if self.sleeps:
            started = time.perf_counter()
            await self._here(self._backend.start())
            await self._here(self._fall_asleep())
            self._counters.add("sleep_seconds", time.perf_counter() - started)

    async def _write_base(self) -> Path | None:
        """Return the weights under the adapters, on their way to vLLM; None where it holds them."""
        if self._holds_base:
            return None
        if self.loaded.device.type == "meta":
            raise ContractError("an adapter needs the weights it was trained on, and this engine was made without them")
        return await asyncio.to_thread(self._files.write_weights, plain_parameters(self.loaded), self.loaded)

    def stats(self) -> dict[str, float]:
        """Counters since the last call. `busy_seconds`: the time in which vLLM worked on at least one request (it does
        not tell prefill from decoding); `update_seconds`: the time that pushing weights took, the waking included;
        `sleep_seconds`: that of falling asleep."""
        counts, busy = self._counters.take(), self._clock.read()
        return counts | ({"busy_seconds": busy} if busy else {})

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._loop.hand_over(self._end())
        finally:
            self._loop.close()
            self._files.close()

    # -- on the engine's own loop ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the backend now, so that a wrong setting is found before the first episode."""
        try:
            self._limit = self._loop.run(self._backend.start())
        except BaseException:
            self._loop.close()
            raise

    async def _here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns. It runs on the loop that vLLM's sockets belong to."""
        if self._closed:
            coroutine.close()
            raise EngineFailure("the engine is closed; make a new one")
        return await self._loop.hand_over(self._tracked(coroutine))

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(coroutine)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._closed:
                raise EngineFailure("the engine was closed") from None
            raise

    async def _respond(self, call: VLLMRequest) -> tuple[VLLMResponse, int]:
        async with self._gate.request():
            if self._asleep:
                raise EngineFailure(
                    "got a request while the engine sleeps, beside an update of the learner; expected none before the "
                    "new weights are there. Push weights (update_weights), or set inference.sleep=off"
                )
            if self._broken is not None:
                raise EngineFailure(f"the last weight update failed ({self._broken}); push the weights again")
            with self._clock:
                return await self._backend.generate(call, self._adapter), self.policy_version

    async def _install(self, version: int, whole: Path | None, beside: Path | None) -> None:
        """Make the files the sampled policy: the weights in `whole`, and on top of them the adapter in `beside`."""
        number = next(self._adapters)
        new = Adapter(f"{self._files.path.name}-{number}", number, beside) if beside else None
        async with self._gate.update():
            previous = self._adapter
            try:
                if whole is not None:
                    self._holds_base, self._broken = False, "it did not end"
                await self._wake(WEIGHTS)
                if whole is not None:
                    await self._backend.load(whole)
                await self._backend.swap(previous, new)
            except BaseException as error:
                if whole is not None:
                    self._broken = f"{type(error).__name__}: {error}"
                self._files.remove(beside)
                raise
            # a whole model has its adapters merged in: it is no base for the next one
            self._holds_base, self._broken = new is not None, None
            self._adapter = new
            self._files.remove(previous.folder if previous else None)
            self.policy_version = version
            await self._wake(CACHE)

    async def _fall_asleep(self) -> None:
        async with self._gate.update():
            if self._asleep:
                return
            self._moments = [await self._backend.held()]
            # whatever comes of it, nothing is sampled before new weights are there
            self._asleep = [WEIGHTS, CACHE]
            if self._sleep_level == 2:
                self._holds_base, self._broken = False, "it sleeps, and its weights were dropped"
            await self._backend.sleep(self._sleep_level)
            self._moments.append(await self._backend.held())

    async def _wake(self, part: str) -> None:
        """Take `part` again, where it was given away."""
        if part not in self._asleep:
            return
        if part == CACHE:
            self._moments.append(await self._backend.held())
        elif self.loaded.device.type == "cuda":
            torch.cuda.empty_cache()  # what the learner freed in its update, this process still holds
        await self._backend.wake(part)
        self._asleep.remove(part)
        if not self._asleep:
            moments = [*self._moments, await self._backend.held()]
            known = [held for held in moments if held is not None]
            self.footprint = Footprint(*known) if len(known) == 4 else None

    async def _end(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._backend.close(self._adapter)


class _Gate:
    """Requests pass together; an update waits until they are gone, and lets none in until it is over."""

    def __init__(self) -> None:
        self._inside = 0
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._updates = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

    @contextlib.asynccontextmanager
    async def update(self) -> AsyncIterator[None]:
        async with self._updates:
            self._open.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._open.set()


class _Clock:
    """Seconds in which at least one was inside."""

    def __init__(self) -> None:
        self._inside = 0
        self._since = self._seconds = 0.0

    def __enter__(self) -> None:
        if self._inside == 0:
            self._since = time.perf_counter()
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._inside == 0:
            self._seconds += time.perf_counter() - self._since

    def read(self) -> float:
        """Return the seconds since the last call; those of requests still under way come with the next."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
