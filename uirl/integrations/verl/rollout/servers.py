"""verl's rollout servers when one of them dies: the others take its requests."""

from __future__ import annotations

from typing import Any

from ray.exceptions import ActorDiedError
from verl.workers.rollout.llm_server import LLMServerClient


class SurvivingClient(LLMServerClient):
    """verl's client, which takes a dead server out of the balancer and asks another one.

    A dead server answers at once, so verl's balancer finds it idle and sends it everything. A request holds the whole
    prompt: another server, with the same weights, gives the same answer. Raises RuntimeError where no server is left.
    """

    def __init__(self, config: Any, load_balancer_handle: Any = None, **options: Any) -> None:
        super().__init__(config, load_balancer_handle, **options)
        self._server_of: dict[str, str] = {}

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        server, handle = await super()._acquire_server(request_id, **extra)
        self._server_of[request_id] = server
        return server, handle

    async def generate(self, request_id: str, **request: Any) -> Any:
        """Generate as verl's client does, and ask another server where one is dead. Requests of one `request_id` are in
        flight one at a time, as turns of an episode are."""
        try:
            while True:
                try:
                    return await super().generate(request_id, **request)
                except ActorDiedError:
                    server = self._server_of.pop(request_id, None)
                    if server is None:  # it was the balancer
                        raise
                    await self._load_balancer.remove_servers.remote([server])
        finally:
            self._server_of.pop(request_id, None)


def surviving(client: Any) -> Any:
    """Return `client`, or a `SurvivingClient` in its place where it is verl's plain one."""
    if type(client) is not LLMServerClient:
        return client  # somebody else's, or the one for asynchronous trainers
    return SurvivingClient(client.config, client._load_balancer)
