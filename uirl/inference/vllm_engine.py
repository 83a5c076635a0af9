"""vLLM as the engine: in processes of its own that start here, or a server that already runs.

No response spans an update. An update waits until what is under way has ended, keeps what comes meanwhile at the door,
loads the weights in place and drops every cached state; so a response has one policy version, and no KV state of old
weights is read under new ones. Episodes need no session: vLLM finds their history in its prefix cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from uirl.errors import ContractError, EngineFailure
from uirl.event_loop import EventLoopThread
from uirl.inference.contract import Generation, GenerationRequest, InferenceEngine, Weights
from uirl.inference.http_client import HTTPClient
from uirl.inference.models import LoadedModel
from uirl.inference.vllm_arguments import engine_arguments
from uirl.inference.vllm_process import VLLMProcess
from uirl.inference.vllm_requests import Adapter, Answer, Call, Core, as_call, as_generation
from uirl.inference.vllm_server import VLLMServer
from uirl.inference.weight_files import WeightFiles, plain_parameters

if TYPE_CHECKING:
    from uirl.config import ConfigStore

T = TypeVar("T")


class VLLMInferenceEngine(InferenceEngine):
    """Samples from a vLLM; usable from any event loop, and from several.

    `core`: the vLLM. `loaded`: the same model's tokenizer, picture side and parameter names; its weights may be absent
    (`load_model(..., weights=False)`). `files`: the folder through which weights go. `max_context`: most tokens of
    prompt and response together; None: what vLLM was started with. `takes_adapters`: LoRA adapters are pushed.
    """

    def __init__(
        self,
        core: Core,
        loaded: LoadedModel,
        *,
        files: WeightFiles,
        max_context: int | None = None,
        takes_adapters: bool = False,
    ) -> None:
        self.loaded = loaded
        self.policy_version = 0
        self.takes_adapters = takes_adapters
        self._core, self._files = core, files
        self._max_context = max_context
        self._limit: int | None = None
        self._loop = EventLoopThread()
        self._gate = _Gate()
        self._running: set[asyncio.Task[Any]] = set()
        self._adapter: Adapter | None = None
        self._adapters = itertools.count(1)
        self._base_is_old = False
        self._broken: str | None = None
        self._clock = _Clock()
        self._stats: dict[str, float] = {}
        self._closed = False

    @classmethod
    def from_config(cls, config: ConfigStore, loaded: LoadedModel, *, shared: bool) -> VLLMInferenceEngine:
        """The engine as `config.inference` says: the server at `server_url`, or a vLLM that starts here and now.

        `shared`: the learner is in this process, and on its GPU. Weights are never shared: vLLM has its own.
        """
        inference, use_lora = config.inference, config.model.use_lora
        size = sum(parameter.nbytes for _, parameter in plain_parameters(loaded))
        files = WeightFiles(inference.weights_dir, size=size)
        try:
            core: Core
            if inference.server_url is not None:
                core = VLLMServer(
                    HTTPClient(
                        inference.server_url,
                        api_key_env=_key_variable(inference.api_key_env),
                        timeout=inference.request_timeout,
                        retries=inference.request_retries,
                    ),
                    model=inference.server_model,
                    lora_rank=config.model.lora.r if use_lora else None,
                )
            else:
                arguments = engine_arguments(config, beside_learner=shared, positions=_positions(loaded))
                core = VLLMProcess(arguments | {"model": _model_path(config, loaded, files)})
            engine = cls(core, loaded, files=files, max_context=inference.max_context, takes_adapters=use_lora)
            if inference.server_url is None:
                engine._start()
        except BaseException:
            files.close()
            raise
        return engine

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        if self._limit is None:
            self._limit = await self._here(self._core.start())
        # pictures are encoded where the learner encodes its own: both fill one cache
        call = as_call(request, self.loaded, min(self._limit, self._max_context or self._limit))
        answer, version = await self._here(self._answer(call))
        generation = as_generation(answer, request, self.loaded, version)
        self._count("generated_tokens", len(generation.token_ids))
        self._count("prefill_tokens", len(request.prompt_ids) - generation.cached_tokens)
        self._count("reused_tokens", generation.cached_tokens)
        return generation

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        if weights is None:
            raise ContractError(
                "update_weights(None) needs an engine that shares the learner's module; vLLM has its own"
            )
        started = time.perf_counter()
        # first, so that a closed engine or a server that does not fit is told before anything is written
        self._limit = await self._here(self._core.start())
        if adapter is None:
            folder = await asyncio.to_thread(self._files.write_weights, weights, self.loaded)
            try:
                await self._here(self._load(folder, version))
            finally:
                self._files.remove(folder)
        else:
            self._check_adapter()
            folder = await asyncio.to_thread(self._files.write_adapter, weights, adapter)
            await self._here(self._swap(folder, version))
        self._count("update_seconds", time.perf_counter() - started)

    def stats(self) -> dict[str, float]:
        """Counters since the last call. `busy_seconds`: the time in which vLLM worked on at least one request (it does
        not tell prefill from decoding); `update_seconds`: the time that pushing weights took."""
        out, self._stats = self._stats, {}
        busy = self._clock.read()
        return out | ({"busy_seconds": busy} if busy else {})

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
        """Starts the core now, so that a wrong setting is found before the first episode."""
        try:
            self._limit = self._loop.run(self._core.start())
        except BaseException:
            self._loop.close()
            raise

    async def _here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. It runs on the loop that vLLM's sockets belong to."""
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

    async def _answer(self, call: Call) -> tuple[Answer, int]:
        async with self._gate.request():
            if self._broken is not None:
                raise EngineFailure(f"the last weight update failed ({self._broken}); push the weights again")
            with self._clock:
                return await self._core.generate(call, self._adapter), self.policy_version

    async def _load(self, folder: Path, version: int) -> None:
        async with self._gate.update():
            with self._whole_or_broken():
                await self._core.load(folder)
            # a whole model has its adapters merged in
            previous, self._adapter = self._adapter, None
            self._base_is_old = self.takes_adapters
            self._files.remove(previous.folder if previous else None)
            self.policy_version = version

    async def _swap(self, folder: Path, version: int) -> None:
        number = next(self._adapters)
        adapter = Adapter(f"{self._files.path.name}-{number}", number, folder)
        async with self._gate.update():
            try:
                await self._core.swap(self._adapter, adapter)
            except BaseException:
                self._files.remove(folder)
                raise
            previous, self._adapter = self._adapter, adapter
            self._files.remove(previous.folder if previous else None)
            self.policy_version = version

    @contextlib.contextmanager
    def _whole_or_broken(self) -> Iterator[None]:
        """A context after which the weights are the new ones, or nothing is sampled from what is there."""
        try:
            yield
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise
        self._broken = None

    def _check_adapter(self) -> None:
        if not self.takes_adapters:
            raise ContractError("this engine takes no adapters (model.use_lora is false); send merged weights")
        if self._base_is_old:
            raise ContractError(
                "a whole model with its adapters merged in was pushed before, so an adapter alone would count twice; "
                "go on with whole models, or make a new engine"
            )

    async def _end(self) -> None:
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._core.close(self._adapter)

    def _count(self, name: str, value: float) -> None:
        self._stats[name] = self._stats.get(name, 0.0) + value


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
        """The seconds since the last call; those of requests still under way come with the next."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _key_variable(name: str) -> str:
    """The environment variable with the server's key. The key of another company's API is never sent to it: unless the
    config names a variable, it is the one that vLLM itself reads."""
    return "VLLM_API_KEY" if name == "OPENAI_API_KEY" else name


def _positions(loaded: LoadedModel) -> int | None:
    config = getattr(loaded.config, "text_config", loaded.config)
    return getattr(config, "max_position_embeddings", None)


def _model_path(config: ConfigStore, loaded: LoadedModel, files: WeightFiles) -> str:
    """Where vLLM finds the model: its own folder or HF id, or one that is written here for a model that has none."""
    named = config.model.local_path or config.model.model_name
    if loaded.name == named and not named.startswith("uirl/"):
        return named
    if loaded.device.type == "meta":
        raise ContractError(f"{loaded.name} was loaded without weights, and vLLM cannot find them under {named!r}")
    folder = files.path / "model"
    os.makedirs(folder)
    loaded.save_parts(folder, {name: p.detach() for name, p in plain_parameters(loaded)})
    return str(folder)
