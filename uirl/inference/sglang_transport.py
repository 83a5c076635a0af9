"""The two ways to SGLang: its HTTP server, and its engine in this process, with the same requests and answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference.http_client import HTTPClient

_COMMAND_SECONDS = 1800.0
"""An update waits until the requests under way are done, and then reads the weights."""

_COMMANDS = {
    "update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "load_lora_adapter": "LoadLoRAAdapterReqInput",
    "unload_lora_adapter": "UnloadLoRAAdapterReqInput",
}
"""Name of a command, which is also that of a route and of a method, and the class of its request."""
_ORIGINAL = "SGLANG_RETURN_ORIGINAL_LOGPROB"


class SGLangServer:
    """A server that was started with `python -m sglang.launch_server`."""

    def __init__(self, client: HTTPClient) -> None:
        self._client = client

    async def facts(self) -> dict[str, Any]:
        """What it serves and how it was started."""
        started, serves = await self._client.get("/server_info"), await self._client.get("/model_info")
        return {**json_object(started, "/server_info"), **json_object(serves, "/model_info")}

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of `/generate`. A call that is given up closes its connection, and the server stops sampling."""
        return json_object(await self._client.post("/generate", body), "/generate")

    async def command(self, name: str, body: Mapping[str, Any]) -> None:
        """Nothing, where the server did it."""
        # what was half done may be refused the second time (an adapter that is already there): sent once
        await self._client.post(f"/{name}", body, timeout=_COMMAND_SECONDS, retries=0)

    async def close(self) -> None:
        await self._client.close()


class SGLangProcess:
    """An `sglang.Engine`. Its scheduler and detokenizer are child processes; what answers belongs to the event loop of
    the first call, and so must all others.

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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deterministic = bool(arguments.get("enable_deterministic_inference"))
        try:
            self._engine = Engine(**arguments)
        except (TypeError, ValueError, RuntimeError, AssertionError, OSError) as error:
            raise ConfigError(
                f"SGLang did not start: {type(error).__name__}: {error}. Its arguments are those of "
                "inference.engine_options and of the model; its own log says more."
            ) from error
        self._manager = self._engine.tokenizer_manager

    async def facts(self) -> dict[str, Any]:
        """What it serves and how it was started."""
        return {**self._engine.get_model_info(), "enable_deterministic_inference": self._deterministic}

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to what `/generate` would be asked. SGLang stops sampling for a call that is given up."""
        self._check_loop()
        answers = self._manager.generate_request(self._requests.GenerateReqInput(**body), None)
        try:
            return await anext(answers)
        except Exception as error:
            # it raises ValueError, RuntimeError and the HTTP errors of its server alike
            raise EngineFailure(f"SGLang could not generate: {type(error).__name__}: {error}") from error

    async def command(self, name: str, body: Mapping[str, Any]) -> None:
        """Nothing, where it was done."""
        self._check_loop()
        request = getattr(self._requests, _COMMANDS[name])(**body)
        done = await getattr(self._manager, name)(request, None)
        # updates answer with a tuple, adapters with an object
        ok, message = (done[0], done[1]) if isinstance(done, tuple) else (done.success, done.error_message)
        if not ok:
            raise EngineFailure(f"SGLang refused {name}: {message}")

    async def close(self) -> None:
        """Ends SGLang's processes, and with them every child process of this one: that is how it shuts down."""
        await asyncio.to_thread(self._engine.shutdown)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = self._loop or loop
        if loop is not self._loop:
            raise ContractError(
                "SGLang in this process was first called from another event loop, and its answers go there; make all "
                "calls from one, or start a server (inference.server_url)"
            )


def json_object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise EngineFailure(f"SGLang: {what} should be a JSON object, got {str(value)[:300]}. Is it SGLang's address?")
    return value
