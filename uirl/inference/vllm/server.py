"""A vLLM server that somebody started, with the command of `vllm_server_command`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError, EngineFailure
from uirl.images import data_url
from uirl.inference.http import ModelServerClient, ServerFailure
from uirl.inference.vllm.arguments import OURS
from uirl.inference.vllm.requests import Adapter, Picture, VLLMBackend, VLLMRequest, VLLMResponse
from uirl.runtime.bounded_cache import BoundedCache
from uirl.runtime.once import Once

_NEEDED = {
    "/inference/v1/generate": "--enable-scale-out",
    "/collective_rpc": "VLLM_SERVER_DEV_MODE=1",
    "/pause": "VLLM_SERVER_DEV_MODE=1",
    "/reset_prefix_cache": "VLLM_SERVER_DEV_MODE=1",
}
_NEEDED_FOR_ADAPTERS = {"/v1/load_lora_adapter": "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"}
_REMEDY = "; start the server as `uirl.vllm_server_command(config)` says"
_ENCODED_BYTES = 256 * 2**20
"""Of the encodings that are kept: an episode sends its pictures again with every turn."""


class VLLMServer(VLLMBackend):
    """`model`: the name under which the server knows the model; None: the only one it serves. `lora_rank`: of the
    adapters that will be pushed; None: none will."""

    def __init__(self, client: ModelServerClient, *, model: str | None = None, lora_rank: int | None = None) -> None:
        self._client = client
        self._model = model
        self._lora_rank = lora_rank
        self._context = Once(self._look)
        """Tokens of prompt and response together that it takes."""
        self._encoded: BoundedCache[str] = BoundedCache(_ENCODED_BYTES)

    async def start(self) -> int:
        return await self._context.get()

    async def generate(self, call: VLLMRequest, adapter: Adapter | None) -> VLLMResponse:
        body: dict[str, Any] = {
            "model": adapter.name if adapter else self._model,
            "token_ids": call.prompt_ids,
            "sampling_params": call.sampling,
            "return_token_ids": True,
        }
        if call.pictures:
            body["content_parts"] = [{"type": "image_url", "url": self._address(p)} for p in call.pictures]
        answer = await self._client.post("/inference/v1/generate", body)
        try:
            choice = answer["choices"][0]
            details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
            return VLLMResponse(
                prompt_ids=answer["prompt_token_ids"],
                token_ids=choice["token_ids"],
                log_probs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
                finish_reason=choice["finish_reason"],
                cached_tokens=details.get("cached_tokens") or 0,
            )
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise EngineFailure(
                f"the vLLM server's answer lacks token ids or log-probs ({type(error).__name__}: {error}); is it a "
                f"vLLM of at least 0.32?"
            ) from error

    async def load(self, folder: Path) -> None:
        # others may use the server too: what they have under way ends with the weights it began with
        await self._client.post("/pause?mode=wait")
        try:
            await self._call("uirl_load_weights", str(folder))
            await self._forget()
        finally:
            await self._client.post("/resume")

    async def swap(self, old: Adapter | None, new: Adapter | None) -> None:
        # cached states are kept by the adapter's name, and no name comes twice: those of the old one are never read
        if new is not None:
            entry = {"lora_name": new.name, "lora_path": str(new.folder)}
            await self._client.post("/v1/load_lora_adapter", entry, text=True, retries=0)
        if old is not None:
            await self._unload(old)

    async def close(self, adapter: Adapter | None) -> None:
        try:
            if adapter is not None:
                await self._unload(adapter)
        except EngineFailure:
            pass  # the server is gone, and the adapter with it
        finally:
            await self._client.close()

    # -- inside ------------------------------------------------------------------------------------------------

    async def _unload(self, adapter: Adapter) -> None:
        await self._client.post("/v1/unload_lora_adapter", {"lora_name": adapter.name}, text=True, retries=0)

    async def _forget(self) -> None:
        answer = await self._client.post("/reset_prefix_cache")
        if not answer["success"]:
            raise EngineFailure("the vLLM server kept the KV cache of older weights; start it again")
        await self._client.post("/reset_encoder_cache", text=True)

    async def _call(self, method: str, *arguments: str) -> dict[str, Any]:
        answer = await self._client.post("/collective_rpc", {"method": method, "args": list(arguments)}, retries=0)
        return answer["results"][0]

    async def _look(self) -> int:
        await self._check_routes()
        self._model = await self._served_model()
        return await self._check_settings()

    async def _check_routes(self) -> None:
        routes = (await self._client.get("/openapi.json"))["paths"]
        needed = _NEEDED | (_NEEDED_FOR_ADAPTERS if self._lora_rank is not None else {})
        for path, setting in needed.items():
            if path not in routes:
                raise ConfigError(f"the server at {self._client.base_url} was started without {setting}{_REMEDY}")

    async def _served_model(self) -> str:
        cards = (await self._client.get("/v1/models"))["data"]
        names = [card["id"] for card in cards if card.get("parent") is None]
        model = names[0] if self._model is None and len(names) == 1 else self._model
        if model is None or model not in names:
            raise ConfigError(
                f"inference.server_model is {model!r}, but the server at {self._client.base_url} serves "
                f"{', '.join(names)}"
            )
        return model

    async def _check_settings(self) -> int:
        """Return the server's context, where it was started as training needs it."""
        try:
            settings = await self._call("uirl_describe")
        except ServerFailure as error:
            if error.status is None or error.status < 500:
                raise
            extension = OURS["worker_extension_cls"]
            raise ConfigError(
                f"the server at {self._client.base_url} knows no `uirl_describe`: it was started without "
                f"--worker-extension-cls {extension}{_REMEDY} ({error})"
            ) from error
        if settings["logprobs_mode"] != OURS["logprobs_mode"]:
            raise ConfigError(
                f"the server gives {settings['logprobs_mode']}, which are not those of what it samples; expected "
                f"--logprobs-mode {OURS['logprobs_mode']}{_REMEDY}"
            )
        rank, max_rank = self._lora_rank, settings["max_lora_rank"]
        if rank is not None and (max_rank is None or max_rank < rank):
            raise ConfigError(f"the server takes adapters up to rank {max_rank}, but model.lora.r is {rank}{_REMEDY}")
        return int(settings["max_model_len"])

    def _address(self, picture: Picture) -> str:
        """Write the picture as a data URL: PNG, which loses nothing."""

        def encode() -> str:
            buffer = io.BytesIO()
            picture.image.save(buffer, format="PNG", compress_level=1)
            return data_url(buffer.getvalue())

        return self._encoded.get(picture.key, encode, len)
