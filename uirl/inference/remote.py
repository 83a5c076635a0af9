"""An engine that is in another process: what asks there, and what answers here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from uirl.errors import ContractError, EngineFailure
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights
from uirl.peers.peer import Peer, PeerLost


class GateEngine(InferenceEngine):
    """The engine of the process at the other end of `peer`. It samples; weights are that process's own affair."""

    takes_weights = False

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    async def generate(self, request: GenerationRequest) -> Generation:
        try:
            generation: Generation = await self._peer.call("generate", request, returns=Generation)
        except PeerLost as error:
            raise EngineFailure(f"the engine is out of reach: {error}") from error
        return generation

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        raise ContractError("this engine is in another process, which gives it its weights; update them there")

    def release(self, session_id: str) -> None:
        self._peer.notify("release", session_id)


class EngineDoor:
    """What one peer may ask of `engine`. `close` releases what the peer left behind."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._sessions: set[str] = set()

    @property
    def handlers(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """The handlers of a `Peer`."""
        return {"generate": self._generate, "release": self._release}

    def close(self) -> None:
        """Release the episodes that the peer did not release itself. Calling it twice is fine."""
        while self._sessions:
            self._engine.release(self._sessions.pop())

    async def _generate(self, request: GenerationRequest) -> Generation:
        if request.session_id is not None:
            self._sessions.add(request.session_id)
        return await self._engine.generate(request)

    async def _release(self, session_id: str) -> None:
        self._sessions.discard(session_id)
        self._engine.release(session_id)
