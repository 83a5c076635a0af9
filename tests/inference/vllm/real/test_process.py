"""vLLM in processes of its own, with a text model."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import importlib
import inspect
import multiprocessing
import os
import signal
from dataclasses import replace

import pytest

from tests.inference.prompts import contract, gap_of
from tests.inference.vllm.real.running import GAP, change, config_of, prompts_of
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.inference import GenerationRequest, SamplingParams
from uirl.inference.footprint import CACHE, WEIGHTS
from uirl.inference.models.loading import load_model
from uirl.inference.vllm.engine import VLLMInferenceEngine

pytestmark = pytest.mark.vllm


def request_of(engine: VLLMInferenceEngine, seed: int = 1, **options: object) -> GenerationRequest:
    ids, shots = prompts_of(engine.loaded)[0]
    return GenerationRequest(tuple(ids), shots, SamplingParams(seed=seed, **{"max_tokens": 8, **options}))


async def under_way(engine: VLLMInferenceEngine, count: int) -> None:
    """Waits until vLLM works on `count` requests."""
    async with asyncio.timeout(60):
        while engine._backend._engine.get_num_unfinished_requests() != count:
            await asyncio.sleep(0.001)


def endless(engine: VLLMInferenceEngine) -> GenerationRequest:
    """A request that is not over soon: left to itself, this model repeats itself and never says that it is done."""
    return request_of(engine, temperature=0.0, max_tokens=3900)


async def test_the_contract(lm_engine: VLLMInferenceEngine) -> None:
    loaded = lm_engine.loaded
    report = await contract(lm_engine, loaded, prompts_of(loaded), tolerance=GAP)
    assert report.tokens > 0
    assert report.cached_tokens >= 32


async def test_greedy_says_the_plain_distribution_also_among_others(lm_engine: VLLMInferenceEngine) -> None:
    greedy = request_of(lm_engine, temperature=0.0)
    others = [request_of(lm_engine, seed, temperature=0.5, top_k=3, top_p=0.5) for seed in range(6)]
    made, *_ = await asyncio.gather(*[lm_engine.generate(r) for r in (greedy, *others)])
    assert gap_of(lm_engine.loaded, greedy, made) < GAP
    assert made.token_ids == (await lm_engine.generate(greedy)).token_ids


async def test_a_stop_token_belongs_to_the_response(lm_engine: VLLMInferenceEngine) -> None:
    free = await lm_engine.generate(request_of(lm_engine))
    stop = next(i for i in range(2, len(free.token_ids)) if free.token_ids[i] not in free.token_ids[:i])
    request = request_of(lm_engine, stop_token_ids=(free.token_ids[stop],))
    made = await lm_engine.generate(request)
    assert made.finish_reason == "stop"
    assert made.token_ids == free.token_ids[: stop + 1]
    assert gap_of(lm_engine.loaded, request, made) < GAP


async def test_placeholders_are_never_sampled(lm_engine: VLLMInferenceEngine) -> None:
    banned = set(lm_engine.loaded.banned_ids)
    assert banned
    wild = [request_of(lm_engine, seed, max_tokens=64, temperature=2.0) for seed in range(64)]
    made = await asyncio.gather(*[lm_engine.generate(r) for r in wild])
    sampled = {token for generation in made for token in generation.token_ids}
    assert len(sampled) > 300
    assert not sampled & banned


async def test_what_is_under_way_ends_with_the_weights_it_began_with(lm_engine: VLLMInferenceEngine) -> None:
    version = lm_engine.policy_version
    requests = [replace(endless(lm_engine), sampling=SamplingParams(400, 0.0, seed=i)) for i in range(3)]
    running = [asyncio.ensure_future(lm_engine.generate(r)) for r in requests]
    await under_way(lm_engine, 3)
    kept = copy.deepcopy(lm_engine.loaded.model.state_dict())
    change(lm_engine.loaded.model, 11)
    update = asyncio.ensure_future(lm_engine.update_weights(lm_engine.loaded.model.named_parameters(), version + 1))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(lm_engine.generate(request_of(lm_engine)))
    made, _, after = await asyncio.gather(asyncio.gather(*running), update, late)
    assert [(g.policy_version, len(g.token_ids)) for g in made] == [(version, 400)] * 3
    assert gap_of(lm_engine.loaded, request_of(lm_engine), after) < GAP or after.policy_version == version
    after = await lm_engine.generate(request_of(lm_engine))
    assert (after.policy_version, after.cached_tokens) == (version + 1, 0)
    assert gap_of(lm_engine.loaded, request_of(lm_engine), after) < GAP
    lm_engine.loaded.model.load_state_dict(kept)
    assert max(gap_of(lm_engine.loaded, r, g) for r, g in zip(requests, made, strict=True)) < GAP
    await lm_engine.update_weights(lm_engine.loaded.model.named_parameters(), version + 2)


async def test_updates_arrive_and_nothing_old_is_served(lm_engine: VLLMInferenceEngine) -> None:
    kept = copy.deepcopy(lm_engine.loaded.model.state_dict())
    request = request_of(lm_engine)
    before = await lm_engine.generate(request)
    assert (await lm_engine.generate(request)).cached_tokens >= 32
    for version in (5, 6):
        change(lm_engine.loaded.model, version)
        stale = gap_of(lm_engine.loaded, request, before)
        assert stale > 100 * GAP
        await lm_engine.update_weights(lm_engine.loaded.model.named_parameters(), version)
        made = await lm_engine.generate(request)
        assert (made.policy_version, made.cached_tokens) == (version, 0)
        assert gap_of(lm_engine.loaded, request, made) < GAP
        before = made
    # the output head alone, which is tied to the embeddings and which vLLM packs for its CPU kernels
    change(lm_engine.loaded.model, 7, only="embed_tokens")
    await lm_engine.update_weights(lm_engine.loaded.model.named_parameters(), 7)
    assert gap_of(lm_engine.loaded, request, await lm_engine.generate(request)) < GAP
    with pytest.raises(ContractError, match="lacks"):
        await lm_engine.update_weights(list(lm_engine.loaded.model.named_parameters())[1:], 8)
    assert (await lm_engine.generate(request)).policy_version == 7
    lm_engine.loaded.model.load_state_dict(kept)
    await lm_engine.update_weights(lm_engine.loaded.model.named_parameters(), 8)


async def test_a_cancelled_call_ends_vllms_work(lm_engine: VLLMInferenceEngine) -> None:
    calls = [asyncio.ensure_future(lm_engine.generate(endless(lm_engine))) for _ in range(3)]
    await under_way(lm_engine, 3)
    for call in calls:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(r) for r in results} == {asyncio.CancelledError}
    await under_way(lm_engine, 0)
    assert (await lm_engine.generate(request_of(lm_engine, max_tokens=1))).token_ids


async def test_more_prompts_at_once_than_one_step_takes(lm_engine: VLLMInferenceEngine) -> None:
    requests = [request_of(lm_engine, seed) for seed in range(12)]
    requests = [replace(r, prompt_ids=(r.prompt_ids * 40)[: 900 + i]) for i, r in enumerate(requests)]
    made = await asyncio.gather(*[lm_engine.generate(r) for r in requests])
    assert max(gap_of(lm_engine.loaded, r, g) for r, g in zip(requests, made, strict=True)) < GAP


async def test_the_edge_of_the_context(lm_engine: VLLMInferenceEngine) -> None:
    limit = lm_engine._limit
    assert limit == 4096
    request = request_of(lm_engine, max_tokens=50, temperature=2.0)
    ids = (request.prompt_ids * 200)[: limit - 2]
    made = await lm_engine.generate(GenerationRequest(ids, (), request.sampling))
    assert 1 <= len(made.token_ids) <= 2
    with pytest.raises(EngineFailure, match="max_context"):
        await lm_engine.generate(GenerationRequest((*ids, 20, 20), (), request.sampling))
    with pytest.raises(EngineFailure, match=r"vLLM did not take the request.*vocab"):
        await lm_engine.generate(GenerationRequest((10, 10_000), (), request.sampling))


def test_what_we_ask_of_sleep_mode_is_what_vllm_has() -> None:
    from vllm.device_allocator import DEFERRABLE_TAGS, AllocationData
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.executor.abstract import SLEEP_TAGS

    inspect.signature(AsyncLLM.sleep).bind(None, level=1, mode="wait")
    inspect.signature(AsyncLLM.wake_up).bind(None, tags=[WEIGHTS])
    assert set(DEFERRABLE_TAGS) == set(SLEEP_TAGS) == {WEIGHTS, CACHE}
    assert {"handle", "tag", "is_asleep"} <= {field.name for field in dataclasses.fields(AllocationData)}
    assert "pointer_to_data" in inspect.getsource(importlib.import_module("vllm.device_allocator.cumem"))
    assert "enable_sleep_mode" in {field.name for field in dataclasses.fields(AsyncEngineArgs)}


def test_a_level_that_a_cpu_cannot_have_is_refused() -> None:
    config = config_of("uirl/tiny-lm", "inference.sleep=1")
    with pytest.raises(ConfigError, match=r"inference\.sleep=1, but vLLM runs on a CPU"):
        VLLMInferenceEngine.from_config(config.engine_settings, load_model(config.model), shared=True)


async def test_a_killed_process_is_a_failure_for_everybody_and_nothing_is_left(lm_engine: VLLMInferenceEngine) -> None:
    # the last test of this file: afterwards there is no engine
    children = [child.pid for child in multiprocessing.active_children()]
    assert children
    calls = [asyncio.ensure_future(lm_engine.generate(endless(lm_engine))) for _ in range(3)]
    await under_way(lm_engine, 3)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert {type(r) for r in results} == {EngineFailure}
    with pytest.raises(EngineFailure, match="died"):
        await lm_engine.generate(request_of(lm_engine))
    with pytest.raises(EngineFailure):
        await lm_engine.update_weights(lm_engine.loaded.model.named_parameters(), 9)
    folder = lm_engine._files.path
    await lm_engine.close()
    assert not multiprocessing.active_children()
    assert not folder.exists()
