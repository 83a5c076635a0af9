"""Where SGLang runs: in this process, with the requests and answers of its HTTP server, or in a server of others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from uirl.errors import ConfigError, ContractError, EngineFailure, PromptTooLong
from uirl.inference.http import ModelServerClient, says_too_long
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.precision import dtype_of
from uirl.inference.servers import model_folder
from uirl.inference.weight_files import WeightFiles
from uirl.runtime.event_loop import EventLoopThread

if TYPE_CHECKING:
    from uirl.config import EngineSettings

_COMMANDS = {
    "update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "load_lora_adapter": "LoadLoRAAdapterReqInput",
    "unload_lora_adapter": "UnloadLoRAAdapterReqInput",
}
"""Name of a command, which is also that of a route and of a method, and the class of its request."""
_ORIGINAL = "SGLANG_RETURN_ORIGINAL_LOGPROB"
_COMMAND_SECONDS = 1800.0
"""An update waits until the requests under way are done, and then reads the weights."""


class SGLangProcess:
    """An `sglang.Engine`. Its scheduler and detokenizer are child processes; what speaks to them belongs to one event
    loop, which is on a thread of its own here.

    `arguments`: those of SGLang's `ServerArgs`. Raises ConfigError without the package, for an argument that it does
    not have, and where it could not start.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        if os.environ.get(_ORIGINAL, "").lower() in ("1", "true"):
            raise ContractError(
                f"{_ORIGINAL} is set: log-probs would be those before the temperature, not those of what is sampled "
                "from; unset it"
            )
        try:
            from sglang.srt.entrypoints.engine import Engine
            from sglang.srt.managers import io_struct
        except ImportError as error:
            raise ConfigError(
                "inference.backend=sglang without a server_url needs the package sglang, and a GPU: "
                "pip install 'uirl[sglang]'"
            ) from error
        self._requests = io_struct
        self._closed = False
        try:
            self._engine = Engine(**arguments)
        except (TypeError, ValueError, RuntimeError, AssertionError, OSError) as error:
            raise ConfigError(
                f"SGLang did not start: {type(error).__name__}: {error}. Its arguments are those of "
                "inference.engine_options and of the model; its own log says more."
            ) from error
        self._manager = self._engine.tokenizer_manager
        told = ("enable_deterministic_inference", "image_processor_backend")
        self._started = {name: arguments.get(name) for name in told}
        self._loop = EventLoopThread()

    async def facts(self) -> dict[str, Any]:
        """Return what it serves and how it was started."""
        return {**self._engine.get_model_info(), **self._started}

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer what `/generate` would be asked. SGLang stops sampling for a call that is given up."""
        try:
            return await self._loop.hand_over(self._first(self._requests.GenerateReqInput(**body)))
        except asyncio.CancelledError:
            if self._closed:
                raise EngineFailure("the engine was closed") from None
            raise
        except Exception as error:
            # it raises ValueError, RuntimeError and the HTTP errors of its server alike
            kind = PromptTooLong if says_too_long(str(error)) else EngineFailure
            raise kind(f"SGLang could not generate: {type(error).__name__}: {error}") from error

    async def command(self, name: str, body: Mapping[str, Any]) -> None:
        """Nothing, where it was done."""
        request = getattr(self._requests, _COMMANDS[name])(**body)
        done = await self._loop.hand_over(getattr(self._manager, name)(request, None))
        # updates answer with a tuple, adapters with an object
        ok, message = (done[0], done[1]) if isinstance(done, tuple) else (done.success, done.error_message)
        if not ok:
            raise EngineFailure(f"SGLang refused {name}: {message}")

    async def close(self) -> None:
        """End SGLang's processes, and with them every child process of this one: that is how it shuts down."""
        self._closed = True
        await asyncio.to_thread(self._loop.close)
        await asyncio.to_thread(self._engine.shutdown)

    async def _first(self, request: Any) -> dict[str, Any]:
        return await anext(self._manager.generate_request(request, None))


def engine_arguments(
    settings: EngineSettings, loaded: LoadedModel, files: WeightFiles, adapters: bool
) -> dict[str, Any]:
    """Arguments of `sglang.Engine` that follow from `settings`."""
    model, inference = settings.model, settings.inference
    arguments: dict[str, Any] = {
        "model_path": model_folder(model.source, loaded, files, program="SGLang"),
        "dtype": dtype_of(model),
        "trust_remote_code": model.trust_remote_code,
        "tp_size": model.tensor_parallel_size,
        "max_running_requests": inference.max_batch_size,
        "disable_radix_cache": not inference.kv_cache,
        "enable_deterministic_inference": True,
        "random_seed": settings.seed,
    }
    if loaded.vision is not None:
        arguments["image_processor_backend"] = "pil"  # as the learner's
    if inference.max_context is not None:
        arguments["context_length"] = inference.max_context
    if adapters:
        arguments |= {"enable_lora": True, "max_lora_rank": model.lora.r, "lora_target_modules": ["all"]}
    return arguments


class SGLangServer:
    """A server that was started with `python -m sglang.launch_server`."""

    def __init__(self, client: ModelServerClient) -> None:
        self._client = client

    async def facts(self) -> dict[str, Any]:
        """Return what it serves and how it was started."""
        started, serves = await self._client.get("/server_info"), await self._client.get("/model_info")
        return {**json_object(started, "/server_info"), **json_object(serves, "/model_info")}

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of `/generate`. A call that is given up closes its connection, and the server stops
        sampling."""
        return json_object(await self._client.post("/generate", body), "/generate")

    async def command(self, name: str, body: Mapping[str, Any]) -> None:
        """Nothing, where the server did it."""
        # what was half done may be refused the second time (an adapter that is already there): sent once
        await self._client.post(f"/{name}", body, timeout=_COMMAND_SECONDS, retries=0)

    async def close(self) -> None:
        await self._client.close()


def json_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EngineFailure(f"SGLang: {what} should be a JSON object, got {str(value)[:300]}. Is it SGLang's address?")
    return value
