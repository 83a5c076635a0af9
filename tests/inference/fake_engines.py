"""Engines that are told when to answer, to fail and to die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from uirl.errors import EngineLost
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, Weights


class FakeEngine(InferenceEngine):
    """Answers with tokens drawn from the seed of the request and the weights that it holds.

    `held`: requests wait until `let_go`. `broken`: what every request raises. `dead`: requests raise EngineLost, those
    under way too, and `come_back` starts it again without the weights that it was sent.
    """

    def __init__(self, *, keeps_weights: bool = False, takes_adapters: bool = False) -> None:
        self.keeps_weights, self.takes_adapters = keeps_weights, takes_adapters
        self.weights: dict[str, Any] = {}
        self.adapter: Mapping[str, Any] | None = None
        self.served: list[tuple[str | None, int]] = []
        """(session, version) of every request that was answered."""
        self.asked: list[GenerationRequest] = []
        self.released: list[str] = []
        self.closed = 0
        self.broken: Exception | None = None
        self.refuses_update: Exception | None = None
        self.dead = False
        self._free = asyncio.Event()
        self._free.set()
        self._tokens = 0.0

    def hold(self) -> None:
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def die(self) -> None:
        self.dead = True
        self._free.set()

    def come_back(self) -> None:
        self.dead, self.weights, self.policy_version = False, {}, 0

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        await self._free.wait()
        if self.dead:
            raise EngineLost("it was killed")
        if self.broken is not None:
            raise self.broken
        version = self.policy_version
        self.served.append((request.session_id, version))
        draws = random.Random(f"{request.sampling.seed}/{request.prompt_ids}/{sorted(self.weights.items())}")
        tokens = tuple(draws.randrange(100) for _ in range(request.sampling.max_tokens))
        self._tokens += len(tokens)
        return Generation(tokens, (-1.0,) * len(tokens), "length", version)

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        await asyncio.sleep(0)
        if self.dead:
            raise EngineLost("it was killed")
        if self.refuses_update is not None:
            raise self.refuses_update
        self.weights = {name: tensor.tolist() for name, tensor in weights or ()}
        self.policy_version, self.adapter = version, adapter

    async def probe(self) -> None:
        if self.dead:
            raise EngineLost("it was killed")

    def release(self, session_id: str) -> None:
        self.released.append(session_id)

    def stats(self) -> dict[str, float]:
        tokens, self._tokens = self._tokens, 0.0
        return {"generated_tokens": tokens}

    async def close(self) -> None:
        self.closed += 1
