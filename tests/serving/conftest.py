"""What tests of the endpoint share: an engine that is watched, an endpoint over it, clients that are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.serving.worlds import CLIENTS, Watched
from uirl.inference import LoadedModel, SamplingParams, TransformersInferenceEngine
from uirl.serving import ModelEndpoint


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    """Clients close on the loop they were used on; one that is left to the collector complains later."""
    yield
    while CLIENTS:
        await CLIENTS.pop().close()


@pytest.fixture
async def engine(lm: LoadedModel) -> AsyncIterator[Watched]:
    engine = Watched(TransformersInferenceEngine(lm))
    yield engine
    await engine.engine.close()


@pytest.fixture
async def endpoint(engine: Watched, lm: LoadedModel) -> AsyncIterator[ModelEndpoint]:
    async with ModelEndpoint(engine, lm, any_model=True, sampling=SamplingParams(max_tokens=8)) as endpoint:
        yield endpoint
