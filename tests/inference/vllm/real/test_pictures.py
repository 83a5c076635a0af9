"""vLLM in processes of its own, with a model that sees, and adapters."""

from __future__ import annotations

import copy

import pytest

from tests.inference.pictures import picture
from tests.inference.prompts import contract, gap_of
from tests.inference.vllm.real.running import GAP, change, prompts_of, requests_of
from uirl.inference import ChatRenderer, Generation, GenerationRequest, Message, SamplingParams
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.learner import Policy

pytestmark = pytest.mark.vllm


async def answers(engine: VLLMInferenceEngine) -> list[Generation]:
    return [await engine.generate(request) for request in requests_of(engine)]


def furthest(engine: VLLMInferenceEngine, made: list[Generation]) -> float:
    """How far the log-probs of all answers are from those of the learner as it is now."""
    return max(gap_of(engine.loaded, r, g) for r, g in zip(requests_of(engine), made, strict=True))


async def test_the_contract(vlm_engine: VLLMInferenceEngine) -> None:
    loaded = vlm_engine.loaded
    report = await contract(vlm_engine, loaded, prompts_of(loaded), tolerance=GAP, continuation=())
    assert report.cached_tokens >= 32


async def test_pictures_of_any_size_are_seen_as_the_learner_sees_them(vlm_engine: VLLMInferenceEngine) -> None:
    chat = ChatRenderer(vlm_engine.loaded)
    for number, size in enumerate([(56, 56), (28, 112), (100, 37), (300, 200), (20, 20)]):
        shots = (picture(number, size),)
        ids = chat.whole([Message("user", "press", shots)])
        request = GenerationRequest(tuple(ids), shots, SamplingParams(max_tokens=6, seed=number))
        assert gap_of(vlm_engine.loaded, request, await vlm_engine.generate(request)) < GAP


async def test_adapters_are_swapped(vlm_engine: VLLMInferenceEngine, vlm_policy: Policy) -> None:
    made = await answers(vlm_engine)
    for version in (1, 2, 3):
        change(vlm_policy.model, version, only=".lora_B.")
        assert furthest(vlm_engine, made) > 100 * GAP
        weights, adapter = vlm_policy.update_for(vlm_engine)
        await vlm_engine.update_weights(weights, version, adapter=adapter)
        made = await answers(vlm_engine)
        assert {g.policy_version for g in made} == {version}
        assert {g.cached_tokens for g in made} == {0}
        assert furthest(vlm_engine, made) < GAP
    assert len(await vlm_engine._here(vlm_engine._backend._engine.list_loras())) == 1


async def test_a_whole_update_reaches_the_eyes_too(vlm_engine: VLLMInferenceEngine, vlm_policy: Policy) -> None:
    kept = copy.deepcopy(vlm_policy.model.state_dict())
    await vlm_engine.update_weights(vlm_policy.weights(), 10)
    before = await answers(vlm_engine)
    assert furthest(vlm_engine, before) < GAP
    for version, part in ((11, "visual"), (12, "language_model"), (13, "embed_tokens")):
        change(vlm_policy.model, version, only=part)
        assert furthest(vlm_engine, before) > 100 * GAP
        await vlm_engine.update_weights(vlm_policy.weights(), version)
        before = await answers(vlm_engine)
        assert {g.policy_version for g in before} == {version}
        assert furthest(vlm_engine, before) < GAP
    vlm_policy.model.load_state_dict(kept)
    weights, adapter = vlm_policy.update_for(vlm_engine)
    await vlm_engine.update_weights(weights, 14, adapter=adapter)
    assert furthest(vlm_engine, await answers(vlm_engine)) < GAP
