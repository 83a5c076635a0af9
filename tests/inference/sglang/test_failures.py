"""What SGLang answers is believed only where it fits what it was asked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.inference.sglang.stand_in_sglang import ASKED
from tests.inference.stand_in_http import Answer
from uirl.errors import ContractError, EngineFailure
from uirl.inference import ChatRenderer, GenerationRequest, LoadedModel, Message, SamplingParams
from uirl.inference.sglang.engine import SGLangInferenceEngine


async def test_log_probs_of_another_distribution_are_refused(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, original=True)
    with pytest.raises(ContractError, match="without SGLANG_RETURN_ORIGINAL_LOGPROB"):
        await world.engine.generate(ASKED)


def test_the_environment_variable_is_seen_before_the_start(
    make: Any, lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "true")
    with pytest.raises(ContractError, match="unset it"):
        make("process", lm)


async def test_another_prompt_than_was_sent_is_a_failure(make: Any, vlm: LoadedModel) -> None:
    chat = ChatRenderer(vlm)
    shot = picture(4)
    ids = tuple(chat.whole([Message("user", "press", (shot,))]))
    asked = GenerationRequest(ids, (shot,), SamplingParams(max_tokens=2, seed=1))
    world = make("server", vlm, retokenizes=True)
    with pytest.raises(EngineFailure, match="SGLANG_MM_AVOID_RETOKENIZE=1"):
        await world.engine.generate(asked)
    world.logic.retokenizes = False
    assert len((await world.engine.generate(asked)).token_ids) == 2
    world.logic.spoil = {"prompt_tokens": len(ids) - 1}
    with pytest.raises(EngineFailure, match=f"got {len(ids) - 1} tokens, expected {len(ids)}"):
        await world.engine.generate(asked)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"finish_reason": {"type": "abort", "message": "Abort in waiting queue", "status_code": 503}}, "gave the req"),
        ({"finish_reason": {"type": "stop", "matched": "NaN happened"}}, "are the weights finite"),
        ({"finish_reason": None}, "lacks meta_info.finish_reason"),
        ({"finish_reason": "stop"}, "lacks meta_info.finish_reason"),
        ({"finish_reason": {"type": "tired"}}, "lacks meta_info.finish_reason"),
        ({"output_token_logprobs": None}, "lacks meta_info.output_token_logprobs"),
        ({"output_token_logprobs": [[None, 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"output_token_logprobs": [7]}, "lacks meta_info.output_token_logprobs"),
        ({"output_token_logprobs": []}, "lacks 1 to 6 tokens"),
        ({"output_token_logprobs": [[-1.0, 3, None]] * 7, "completion_tokens": 7}, "lacks 1 to 6 tokens"),
        ({"completion_tokens": 5}, "lacks 1 to 6 tokens"),
        ({"output_token_logprobs": [[-1.0, float("inf"), None]], "completion_tokens": 1}, "expected ints"),
        ({"output_token_logprobs": [[-1.0, 3.5, None]], "completion_tokens": 1}, "expected ints"),
        ({"output_token_logprobs": [[float("nan"), 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"output_token_logprobs": [[10**400, 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"output_token_logprobs": [["-1.0", 3, None]], "completion_tokens": 1}, "finite and not positive"),
        ({"cached_tokens": "many"}, "tokens from its cache"),
        ({"weight_version": "another run's"}, "does another run update"),
        ({"weight_versions": [{"version": "default"}, {"version": "other"}]}, "does another run update"),
    ],
)
async def test_misshapen_answers_are_failures(make: Any, lm: LoadedModel, spoiled: dict, message: str) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    world.logic.spoil = spoiled
    with pytest.raises(EngineFailure, match=message):
        await world.engine.generate(ASKED)
    world.logic.spoil = {}
    assert (await world.engine.generate(ASKED)).token_ids


@pytest.mark.parametrize("filtered", [7, True, [float("nan")] * 6, [[]] * 6, ["x"] * 6, [None] * 6])
async def test_misshapen_log_probs_of_what_was_filtered_are_failures(make: Any, lm: LoadedModel, filtered: Any) -> None:
    world = make("server", lm)
    asked = replace(ASKED, sampling=SamplingParams(max_tokens=6, seed=3, top_k=5))
    made = await world.engine.generate(asked)
    assert made.log_probs is not None
    given = filtered[: len(made.token_ids)] if isinstance(filtered, list) else filtered
    world.logic.spoil = {"output_token_sampling_logprobs": given}
    with pytest.raises(EngineFailure, match=r"finite and not positive|output_token_sampling_logprobs"):
        await world.engine.generate(asked)


async def test_a_token_that_the_model_does_not_have_is_a_failure(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    world.logic.spoil = {"output_token_logprobs": [[-1.0, 10**6, None]], "completion_tokens": 1}
    made = await world.engine.generate(ASKED)
    with pytest.raises(EngineFailure, match="does it serve the same model"):
        lm.check_sampled(made.token_ids)


async def test_what_the_server_refuses_is_told(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm, context=20)
    with pytest.raises(EngineFailure, match=r"400 .*maximum context length of 20 tokens"):
        await world.engine.generate(replace(ASKED, prompt_ids=(30,) * 18))
    limit = world.engine._max_context
    with pytest.raises(EngineFailure, match=r"inference\.max_context"):
        await world.engine.generate(replace(ASKED, prompt_ids=(30,) * limit))
    with pytest.raises(EngineFailure, match="a prompt of 0 tokens"):
        await world.engine.generate(replace(ASKED, prompt_ids=()))
    world.server.faults += [Answer([1, 2])]
    with pytest.raises(EngineFailure, match="should be a JSON object"):
        await world.engine.generate(ASKED)
    # the room that is left cuts a response short, and it says so
    short = SGLangInferenceEngine(lm, world.engine._backend, world.engine._files, max_context=8)
    made = await short.generate(replace(ASKED, sampling=SamplingParams(max_tokens=50, seed=3)))
    assert len(made.token_ids) == 4
    assert made.finish_reason == "length"


async def test_a_dead_server_is_a_typed_failure(make: Any, lm: LoadedModel) -> None:
    world = make("server", lm)
    await world.engine.generate(ASKED)
    world.server.close()
    failed = await asyncio.gather(*[world.engine.generate(ASKED) for _ in range(8)], return_exceptions=True)
    assert {type(e).__mro__[1] for e in failed} == {EngineFailure}
    with pytest.raises(EngineFailure, match="update_weights_from_disk"):
        await world.engine.update_weights(lm.model.named_parameters(), version=1)
    assert world.engine.policy_version == 0
    assert not list(world.engine._files.path.glob("0*"))
    await world.engine.close()
