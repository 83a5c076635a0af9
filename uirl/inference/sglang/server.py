"""An SGLang server that somebody started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uirl.errors import EngineFailure
from uirl.inference.http import ModelServerClient

_COMMAND_SECONDS = 1800.0
"""An update waits until the requests under way are done, and then reads the weights."""


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
