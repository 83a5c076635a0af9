"""A vLLM server, started by the command that `vllm_server_command` gives."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.inference.prompts import contract, gap_of
from tests.inference.vllm.real.running import GAP, SMALL, Server, change, config_of, prompts_of, requests_of
from uirl.config import ConfigStore
from uirl.errors import EngineFailure
from uirl.inference import Generation, GenerationRequest, SamplingParams
from uirl.inference.models.loading import load_model
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.inference.vllm.requests import to_vllm_request
from uirl.learner import Policy

pytestmark = pytest.mark.vllm


def engine_for(server: Server, config: ConfigStore, policy: Policy | None = None) -> VLLMInferenceEngine:
    config.inference.server_url = server.url
    config.inference.request_retries = 1
    loaded = policy.loaded if policy else load_model(config.model)
    return VLLMInferenceEngine.from_config(config.engine_settings, loaded, shared=True)


@pytest.fixture
async def lm(lm_server: Server) -> AsyncIterator[VLLMInferenceEngine]:
    """An engine whose server has the weights it was started with."""
    engine = engine_for(lm_server, config_of("uirl/tiny-lm", *SMALL))
    await engine.update_weights(engine.loaded.model.named_parameters(), 0)
    yield engine
    await engine.close()


async def test_the_contract(lm: VLLMInferenceEngine) -> None:
    loaded = lm.loaded
    report = await contract(lm, loaded, prompts_of(loaded), tolerance=GAP)
    assert report.cached_tokens >= 32


async def test_updates_arrive_and_nothing_old_is_served(lm: VLLMInferenceEngine) -> None:
    request = requests_of(lm)[0]
    before = await lm.generate(request)
    assert (await lm.generate(request)).cached_tokens >= 32
    for version in (5, 6):
        change(lm.loaded.model, version)
        assert gap_of(lm.loaded, request, before) > 100 * GAP
        await lm.update_weights(lm.loaded.model.named_parameters(), version)
        before = await lm.generate(request)
        assert (before.policy_version, before.cached_tokens) == (version, 0)
        assert gap_of(lm.loaded, request, before) < GAP


async def test_what_others_have_under_way_ends_with_the_weights_it_began_with(lm: VLLMInferenceEngine) -> None:
    sampling = SamplingParams(max_tokens=600, temperature=0.0)
    request = GenerationRequest(requests_of(lm)[0].prompt_ids, (), sampling)
    call = to_vllm_request(request, lm.loaded, await lm._backend.start())
    body = {"token_ids": call.prompt_ids, "sampling_params": call.sampling, "stream": True}
    old = copy.deepcopy(lm.loaded.model.state_dict())
    tokens: list[int] = []
    log_probs: list[float] = []
    async with (
        httpx.AsyncClient(timeout=120) as somebody,
        somebody.stream("POST", f"{lm._backend._client.base_url}/inference/v1/generate", json=body) as lines,
    ):
        update = None
        async for line in lines.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            tokens += choice["token_ids"]
            log_probs += [entry["logprob"] for entry in choice["logprobs"]["content"]]
            if update is None:
                change(lm.loaded.model, 21)
                update = asyncio.ensure_future(lm.update_weights(lm.loaded.model.named_parameters(), 21))
    assert len(tokens) > 100
    await update
    mine = requests_of(lm)[1]
    assert gap_of(lm.loaded, mine, await lm.generate(mine)) < GAP
    lm.loaded.model.load_state_dict(old)
    assert gap_of(lm.loaded, request, Generation(tuple(tokens), tuple(log_probs), "length", 0)) < GAP


async def test_adapters_are_swapped(lm_server: Server, lm: VLLMInferenceEngine) -> None:
    change(lm.loaded.model, 31)
    await lm.update_weights(lm.loaded.model.named_parameters(), 31)  # not the weights that the adapters belong to
    config = config_of("uirl/tiny-lm", *SMALL, "model.use_lora=true")
    policy = Policy.from_config(config)
    engine = engine_for(lm_server, config, policy)
    request = requests_of(engine)[0]
    made = await engine.generate(request)
    for version in (1, 2, 3):
        change(policy.model, version, only=".lora_B.")
        assert gap_of(engine.loaded, request, made) > 100 * GAP
        weights, adapter = policy.update_for(engine)
        await engine.update_weights(weights, version, adapter=adapter)
        made = await engine.generate(request)
        assert (made.policy_version, made.cached_tokens) == (version, 0)
        assert gap_of(engine.loaded, request, made) < GAP
        assert await _adapters(lm_server) == 1
    await engine.close()
    assert await _adapters(lm_server) == 0


async def _adapters(server: Server) -> int:
    async with httpx.AsyncClient() as client:
        cards = (await client.get(server.url + "/v1/models")).json()["data"]
    return sum(card["parent"] is not None for card in cards)


async def test_a_model_that_sees(vlm_server: Server) -> None:
    engine = engine_for(vlm_server, config_of("uirl/tiny-vlm"))
    loaded = engine.loaded
    await contract(engine, loaded, prompts_of(loaded), tolerance=GAP, continuation=())
    before = [await engine.generate(request) for request in requests_of(engine)]
    for version, part in ((1, "visual"), (2, "")):
        change(loaded.model, version, only=part)
        assert gap_of(engine.loaded, requests_of(engine)[0], before[0]) > 100 * GAP
        await engine.update_weights(loaded.model.named_parameters(), version)
        before = [await engine.generate(request) for request in requests_of(engine)]
        assert max(gap_of(engine.loaded, r, g) for r, g in zip(requests_of(engine), before, strict=True)) < GAP
    # a server that is gone
    vlm_server.kill()
    with pytest.raises(EngineFailure, match="Does the server run"):
        await engine.generate(requests_of(engine)[0])
    with pytest.raises(EngineFailure, match="Does the server run"):
        await engine.update_weights(loaded.model.named_parameters(), 3)
    await engine.close()
