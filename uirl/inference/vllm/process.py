"""A vLLM of our own: `AsyncLLM` here, its engine in processes that it starts and that end with it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError, EngineFailure
from uirl.inference.footprint import Held
from uirl.inference.vllm.requests import Adapter, VLLMBackend, VLLMRequest, VLLMResponse

_ENVIRONMENT = {
    # a fork of a process with a learner's threads and a loop in it would hang
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Set where the user has not; vLLM reads them when it is imported."""


_GUARD = """
import sys, psutil
watched = [psutil.Process(int(pid)) for pid in sys.argv[1:]]
sys.stdin.buffer.read()
for process in watched:
    if process.is_running():
        for each in [*process.children(recursive=True), process]:
            each.kill()
"""
"""Ends vLLM's processes when this one is gone: those of a trainer that was killed would keep their GPU for ever."""


class VLLMProcess(VLLMBackend):
    """`arguments`: those of `AsyncEngineArgs`, `model` among them."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._vllm = _import_vllm()
        self._arguments = arguments
        self._engine: Any = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    async def start(self) -> int:
        if self._engine is None:
            self._engine = self._launch()
        return int(self._engine.model_config.max_model_len)

    async def generate(self, call: VLLMRequest, adapter: Adapter | None) -> VLLMResponse:
        vllm = self._vllm
        prompt: dict[str, Any] = {"prompt_token_ids": call.prompt_ids}
        if call.pictures:
            prompt["multi_modal_data"] = {"image": [picture.image for picture in call.pictures]}
        params = vllm.SamplingParams(**call.sampling, output_kind=vllm.FINAL_ONLY)
        with self._failures("the request"):
            name = f"uirl-{next(self._numbers)}"
            outputs = self._engine.generate(prompt, params, name, lora_request=self._lora(adapter))
            last = [output async for output in outputs][-1]
        completion = last.outputs[0]
        return VLLMResponse(
            prompt_ids=last.prompt_token_ids,
            token_ids=completion.token_ids,
            log_probs=[
                likeliest[token].logprob
                for token, likeliest in zip(completion.token_ids, completion.logprobs, strict=True)
            ],
            finish_reason=completion.finish_reason,
            cached_tokens=last.num_cached_tokens or 0,
        )

    async def load(self, folder: Path) -> None:
        with self._failures("the weights"):
            await self._engine.collective_rpc("uirl_load_weights", args=(str(folder),))
            await self._forget()

    async def swap(self, old: Adapter | None, new: Adapter | None) -> None:
        with self._failures("the adapter"):
            if new is not None:
                await self._engine.add_lora(self._lora(new))
            if old is not None:
                await self._engine.remove_lora(old.number)
            if old is not None or new is not None:
                await self._forget()

    async def sleep(self, level: int) -> None:
        with self._failures("the order to sleep"):
            await self._engine.sleep(level=level, mode="wait")

    async def wake(self, part: str) -> None:
        # by tag, never all at once: the cache beside old and new weights is more than an engine takes when it plays
        with self._failures(f"the order to wake up its {part}"):
            await self._engine.wake_up(tags=[part])

    async def held(self) -> Held | None:
        with self._failures("the question for its memory"):
            told = await self._engine.collective_rpc("uirl_memory")
        if any(one is None for one in told):
            return None
        return dict(sum((Counter(one) for one in told), Counter()))

    async def close(self, adapter: Adapter | None) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()

    # -- inside ------------------------------------------------------------------------------------------------

    def _launch(self) -> Any:
        vllm = self._vllm
        before = set(multiprocessing.active_children())
        try:
            with _main_left_alone():
                engine = vllm.AsyncLLM.from_engine_args(vllm.AsyncEngineArgs(**self._arguments))
            started = [str(child.pid) for child in multiprocessing.active_children() if child not in before]
            self._guard = subprocess.Popen(
                [sys.executable, "-c", _GUARD, *started], stdin=subprocess.PIPE, start_new_session=True
            )
            return engine
        except TypeError as error:
            raise ConfigError(
                f"vLLM does not take its arguments: {error}. Is it at least 0.32? inference.engine_options are "
                "handed to its AsyncEngineArgs as they are"
            ) from error
        except (ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"vLLM does not start: {error}. What it wrote above says why.") from error

    async def _forget(self) -> None:
        """Drop the KV states and the encoded pictures of older weights."""
        if not await self._engine.reset_prefix_cache():
            raise EngineFailure("vLLM kept the KV cache of older weights; make a new engine")
        await self._engine.reset_encoder_cache()

    def _lora(self, adapter: Adapter | None) -> Any:
        if adapter is None:
            return None
        return self._vllm.LoRARequest(adapter.name, adapter.number, str(adapter.folder))

    @contextlib.contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        """Return a context in which vLLM's exceptions become `EngineFailure`."""
        if self._engine is None:
            raise EngineFailure("the vLLM engine is closed; make a new one")
        try:
            yield
        except EngineFailure:
            raise
        except self._vllm.EngineDeadError as error:
            raise EngineFailure("the process of the vLLM engine died; make a new engine. Its log says why.") from error
        except Exception as error:
            # what goes wrong in vLLM's processes arrives as a bare Exception with the text of the cause
            cause = error.__cause__ or error
            raise EngineFailure(f"vLLM did not take {what}: {type(cause).__name__}: {cause}") from error


def _import_vllm() -> types.SimpleNamespace:
    try:
        from vllm import SamplingParams
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError
    except ImportError as error:
        raise ConfigError(
            f"inference.backend=vllm without a server_url needs the package vllm: pip install 'uirl[vllm]' ({error})"
        ) from error
    return types.SimpleNamespace(
        SamplingParams=SamplingParams,
        FINAL_ONLY=RequestOutputKind.FINAL_ONLY,
        AsyncEngineArgs=AsyncEngineArgs,
        AsyncLLM=AsyncLLM,
        LoRARequest=LoRARequest,
        EngineDeadError=EngineDeadError,
    )


@contextlib.contextmanager
def _main_left_alone() -> Iterator[None]:
    """Return a context in which processes start without running the caller's script again.

    Python repeats the main module in every process that it spawns; a script that makes an engine at its top level, as
    examples do, would start itself for ever. vLLM's processes need nothing of it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
