"""A pretrained model in vLLM: what the learner exports is what vLLM says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import torch

from tests.inference.prompts import gap_of
from tests.inference.vllm.real.running import GAP, change, config_of
from uirl.inference import ChatRenderer, GenerationRequest, Message, SamplingParams
from uirl.inference.vllm.engine import VLLMInferenceEngine
from uirl.learner import Policy, export_hf

pytestmark = pytest.mark.vllm
QUESTIONS = ("What is the capital of France?", "Name a fruit.", "What is 2 + 2?")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.from_config(config_of("uirl/smollm2-135m"))


@pytest.fixture(scope="module")
def engine(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMInferenceEngine]:
    """vLLM on what the learner exports."""
    folder = tmp_path_factory.mktemp("exported")
    export_hf(folder, policy)
    settings = config_of("uirl/smollm2-135m", f"model.local_path={folder}").engine_settings
    engine = VLLMInferenceEngine.from_config(settings, policy.loaded, shared=False)
    yield engine
    asyncio.run(engine.close())


def prompt_of(policy: Policy, question: str) -> tuple[int, ...]:
    return tuple(ChatRenderer(policy.loaded).whole([Message("user", question)]))


async def test_it_says_what_hf_generates(policy: Policy, engine: VLLMInferenceEngine) -> None:
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    prompts = [prompt_of(policy, question) for question in QUESTIONS]
    made = await asyncio.gather(*[engine.generate(GenerationRequest(prompt, (), greedy)) for prompt in prompts])
    for prompt, reply in zip(prompts, made, strict=True):
        theirs = policy.loaded.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0]
        assert list(reply.token_ids) == theirs[len(prompt) :].tolist()


async def test_log_probs_are_the_learners_before_and_after_an_update(
    policy: Policy, engine: VLLMInferenceEngine
) -> None:
    for version in (0, 1):
        if version:
            change(policy.loaded.model, version, only="q_proj")
            await engine.update_weights(policy.loaded.model.named_parameters(), version)
        for seed, question in enumerate(QUESTIONS):
            prompt, sampling = prompt_of(policy, question), SamplingParams(max_tokens=24, seed=seed)
            asked = GenerationRequest(prompt, (), sampling)
            assert gap_of(policy.loaded, asked, await engine.generate(asked)) < GAP
