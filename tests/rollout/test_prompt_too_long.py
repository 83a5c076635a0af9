"""A context that is full: after a reply it is how the episode ended, before the first it is a failure of the set-up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inference.stand_in_http import Answer, StandIn
from tests.rollout.worlds import Countdown, collector, play_with, scripted, specs
from uirl import ContractError, MultiTurnInferenceEngine, TextEngine
from uirl.errors import EngineFailure, PromptTooLong, RolloutFailure
from uirl.inference import LoadedModel, SamplingParams, ScriptedInferenceEngine, TransformersInferenceEngine
from uirl.inference.base import GenerationRequest
from uirl.inference.http import ModelServerClient
from uirl.inference.vllm.requests import to_vllm_request
from uirl.rollout import EpisodeLimits, samples_of
from uirl.rollout.samples import samples_of_all
from uirl.training.evaluation.evaluation import require_evidence


class Wordy(Countdown):
    """Answers what it does not like at length: a losing policy fills its context."""

    def step(self, action: str) -> Any:
        observation, reward, done, info = super().step(action)
        more = "" if action == "yes" else " not a button" * 30
        return observation.text + more, reward, done, info


def engine_of(kind: str, lm: LoadedModel, limit: int, *replies: str) -> Any:
    said = scripted(lm, *replies)
    if kind == "scripted":
        return ScriptedInferenceEngine(said._script, end_ids=said._end_ids, max_context=limit)
    return TransformersInferenceEngine(lm, max_context=limit)


@pytest.mark.parametrize("kind", ["scripted", "embedded"])
async def test_a_policy_that_fills_its_context_bears_it(lm: LoadedModel, kind: str) -> None:
    engine = engine_of(kind, lm, 120, "no")
    played = await collector(lm, Wordy(length=9), limits=EpisodeLimits(9), retries=2).collect(
        specs(2), play_with(engine, max_tokens=4)
    )
    assert len(played) == 2  # nothing was played again
    for record in played:
        assert (record.stop_reason, record.failure) == ("token_budget", None)
        assert 1 <= len(record) < 9
        assert samples_of(record)


@pytest.mark.parametrize("kind", ["scripted", "embedded", "limit"])
async def test_a_first_prompt_too_long_is_a_failure_and_is_not_tried_again(lm: LoadedModel, kind: str) -> None:
    engine = scripted(lm, "yes") if kind == "limit" else engine_of(kind, lm, 4, "yes")
    limits = EpisodeLimits(9, max_tokens=3 if kind == "limit" else None)
    played = await collector(lm, Countdown(), limits=limits, retries=2).collect(specs(2), play_with(engine))
    assert len(played) == 2
    for record in played:
        assert (record.turns, record.stop_reason, record.failure.kind) == ([], "failure", "prompt")
        assert ("rollout.max_tokens" if kind == "limit" else "max_context") in record.failure.message
    assert samples_of_all(played) == []
    with pytest.raises(RolloutFailure, match=r"all 2 episodes of this update failed. The first, prompt: "):
        require_evidence(played, "of this update")


async def test_every_engine_says_it_the_same_way(lm: LoadedModel) -> None:
    request = GenerationRequest((20,) * 9)
    with pytest.raises(PromptTooLong, match=r"9 tokens .* expected 1 to 8"):
        to_vllm_request(request, lm, 9)
    for kind in ("scripted", "embedded"):
        with pytest.raises(PromptTooLong, match=r"9 tokens .* expected 1 to 8"):
            await engine_of(kind, lm, 9, "yes").generate(request)
    with pytest.raises(EngineFailure, match="a prompt of 0 tokens"):
        to_vllm_request(GenerationRequest(()), lm, 9)


@pytest.mark.parametrize(
    ("said", "too_long"),
    [
        ('{"error": {"message": "too many", "code": "context_length_exceeded"}}', True),
        ("This model's maximum context length is 4096 tokens. However, you requested 4100 tokens", True),
        ("The decoder prompt (length 17) is longer than the maximum model length of 16.", True),
        ("The input (300 tokens) is longer than the model's context length (256 tokens).", True),
        ("the request exceeds the available context size. try increasing the context size", True),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens", True),
        ("prompt is too long: 210000 tokens > 200000 maximum", True),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048575).", True),
        ("logit_bias: Extra inputs are not permitted", False),
        ("max_tokens must be at least 1, got 0.", False),
    ],
)
async def test_a_server_that_refuses_a_long_prompt_is_understood(said: str, too_long: bool) -> None:
    with StandIn() as server:
        server.faults.append(Answer(said, 400))
        client = ModelServerClient(server.url, backoff=0.01, timeout=5.0)
        with pytest.raises(EngineFailure, match="400") as refused:
            await client.post("/completions", {})
        await client.close()
    assert isinstance(refused.value, PromptTooLong) is too_long
    assert refused.value.kind == ("prompt" if too_long else "engine")
    assert refused.value.status == 400


def test_a_conversation_that_fills_the_context_is_over(lm: LoadedModel) -> None:
    front = MultiTurnInferenceEngine(TextEngine(lm, engine_of("scripted", lm, 60, "yes")))
    front.start_conversation("hello")
    assert front.step() == "yes"
    with pytest.raises(ContractError, match=r"over \(token_budget\)"):
        front.step("not a button " * 30)
    assert front.trajectory.stop_reason == "token_budget"
    front.start_conversation("not a button " * 30)
    with pytest.raises(PromptTooLong):
        front.step()


def test_a_greedy_request_of_one_token_still_fits(lm: LoadedModel) -> None:
    assert to_vllm_request(GenerationRequest((20,) * 8, (), SamplingParams(99)), lm, 9).sampling["max_tokens"] == 1
