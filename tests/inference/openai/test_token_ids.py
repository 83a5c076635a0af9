"""Servers that answer token ids with token ids and log-probs: the engine contract holds."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from tests.inference.openai.world import asked_of, config_of
from tests.inference.prompts import contract
from tests.inference.stand_in_http import Answer
from uirl.errors import ContractError, EngineFailure
from uirl.inference import ChatRenderer, LoadedModel, TransformersInferenceEngine
from uirl.inference.openai.engine import OpenAIInferenceEngine
from uirl.serving import ModelEndpoint


async def test_a_server_that_talks_in_ids_keeps_the_contract(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    report = await contract(engine, lm, max_tokens=6)
    assert report.log_prob_gap < 2e-5
    assert {s.path for s in server.seen} == {"/v1/models", "/v1/completions"}
    assert [s.path for s in server.seen].count("/v1/models") == 1  # it is looked at once, whoever asks first
    assert engine.stats()["generated_tokens"] > 20
    assert not engine.takes_weights
    await engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate(asked_of(lm))


async def test_our_own_endpoint_is_such_a_server(lm: LoadedModel) -> None:
    async with ModelEndpoint(TransformersInferenceEngine(lm), lm) as endpoint:
        engine = OpenAIInferenceEngine.from_config(config_of(endpoint.url).engine_settings, lm, shared=True)
        report = await contract(engine, lm, max_tokens=6)
        await engine.close()
    assert report.log_prob_gap < 2e-5


async def test_log_probs_of_the_plain_model_count_where_it_is_what_was_sampled(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids", reports="raw")
    assert (await engine.generate(asked_of(lm))).log_probs is None  # the ban makes it another distribution
    assert server.seen[-1].body["logit_bias"] == {"0": -100}
    engine, server = make(lm, "ids", reports="raw", refuses=("logit_bias",))
    for same in ({}, {"temperature": 0.0}):
        asked = asked_of(lm, **same)
        made = await engine.generate(asked)
        expected = server.brain.sample(asked.prompt_ids, limit=8, seed=3, stop=lm.end_ids, **same)
        assert made.token_ids == tuple(expected.ids)
        assert made.log_probs == pytest.approx(expected.raw, abs=1e-6)
    for other in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}):
        assert (await engine.generate(asked_of(lm, **other))).log_probs is None


@pytest.mark.parametrize("reports", ["scaled", "unscaled"])
async def test_half_processed_log_probs_count_as_plain_ones(make: Any, lm: LoadedModel, reports: str) -> None:
    engine, _ = make(lm, "ids", reports=reports, refuses=("logit_bias",))
    assert (await engine.generate(asked_of(lm))).log_probs is not None
    assert (await engine.generate(asked_of(lm, temperature=0.7))).log_probs is None


async def test_a_model_that_is_too_sure_tells_nothing(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    sure = {"token_ids": [40, 41], "text": lm.tokenizer.decode([40, 41]), "logprobs": {"token_logprobs": [-1e-5, -1.0]}}
    server.faults += [Answer({"data": [{"id": lm.name}]}), Answer({"choices": [sure]})]
    assert (await engine.generate(asked_of(lm))).log_probs is None


async def test_a_server_without_bias_and_stops_gets_neither(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids", refuses=("logit_bias", "stop_token_ids"))
    made = await engine.generate(asked_of(lm))
    assert made.log_probs is not None
    assert not {"logit_bias", "stop_token_ids"} & set(server.seen[-1].body)
    with pytest.raises(ContractError, match="takes no stop_token_ids"):
        await engine.generate(asked_of(lm, stop_token_ids=(40,)))


async def test_every_end_token_ends_a_response_and_belongs_to_it(make: Any, lm: LoadedModel) -> None:
    second = (await make(lm, "ids")[0].generate(asked_of(lm))).token_ids[1]
    made = await make(lm, "ids")[0].generate(asked_of(lm, stop_token_ids=(second,)))
    assert made.token_ids[1:] == (second,)
    assert made.finish_reason == "stop"
    made = await make(replace(lm, end_ids=(*lm.end_ids, second)), "ids")[0].generate(asked_of(lm))
    assert made.token_ids[1:] == (second,)
    assert made.finish_reason == "stop"


@pytest.mark.parametrize(("grade", "no_limit"), [("ids", (-1,)), ("text", (0,)), ("chat", (-1, 0))])
async def test_what_a_server_does_by_itself_does_not_apply(
    make: Any, lm: LoadedModel, grade: str, no_limit: tuple[int, ...]
) -> None:
    """A generation_config.json that says how to sample, on a server that takes the fields: nothing of it holds."""
    options = {"takes": ("top_k", "repetition_penalty"), "no_limit": no_limit}
    expected = [await make(lm, grade, **options)[0].generate(asked_of(lm, seed=seed)) for seed in range(3)]
    defaults = {"top_k": 1, "top_p": 0.1, "temperature": 0.2, "repetition_penalty": 1.05}
    engine, server = make(lm, grade, defaults=defaults, **options)
    made = [await engine.generate(asked_of(lm, seed=seed)) for seed in range(3)]
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    assert len({one.token_ids for one in made}) > 1
    assert not server.shaped
    said = server.seen[-1].body
    assert (said["top_k"], said["repetition_penalty"]) == (no_limit[0], 1.0)
    assert ("min_p" in said) == (grade == "ids")
    limited = await engine.generate(asked_of(lm, top_k=3))
    assert server.seen[-1].body["top_k"] == 3
    assert limited.token_ids


async def test_a_server_that_takes_none_of_it_is_asked_without(
    make: Any, lm: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    engine, server = make(lm, "chat")
    with caplog.at_level(logging.INFO, "uirl.inference.openai.probe"):
        await engine.generate(asked_of(lm))
    assert {"presence_penalty", "frequency_penalty"} <= set(server.seen[-1].body)
    assert not {"top_k", "min_p", "repetition_penalty"} & set(server.seen[-1].body)
    assert "takes no top_k, min_p, typical_p, repetition_penalty, repeat_penalty" in caplog.text


async def test_equal_ids_of_another_tokenizer_are_found_out(make: Any, lm: LoadedModel) -> None:
    for other in ("other_tokens", "other_prompt"):
        engine, server = make(lm, "ids", **{other: True})
        made = await engine.generate(asked_of(lm))
        assert made.log_probs is None
        assert server.seen[-1].path == "/v1/chat/completions"


SPOILED: list[tuple[dict, str]] = [
    ({"token_ids": "missing"}, "token_ids is missing"),
    ({"token_ids": [30]}, "token ids with as many log-probs"),
    ({"token_ids": ["x"] * 8}, r"token_ids\[0\] is .*; expected a whole number"),
    ({"logprobs": None}, "logprobs is missing"),
    ({"logprobs": {"token_logprobs": [float("nan")] * 8}}, r"token_logprobs\[0\] is nan; expected a finite number"),
    ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "1 to 8 token ids"),
    ({"token_ids": [30] * 9, "logprobs": {"token_logprobs": [-1.0] * 9}}, "1 to 8 token ids"),
    ({"prompt_token_ids": [30, 31]}, "tokens that were sent"),
    ({"finish_reason": None}, "finish_reason is missing"),
    ({"finish_reason": "bored"}, "expected .*stop.*, .*length"),
    ({"token_ids": [30], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}, "the end token at the"),
    ({"token_ids": [0], "logprobs": {"token_logprobs": [-1.0]}}, "sampled placeholder tokens"),
    ({"token_ids": [float("inf")] * 8}, r"token_ids\[0\] is inf; expected a whole number"),
    ({"token_ids": [30.5] * 8}, r"token_ids\[0\] is 30.5; expected a whole number"),
    ({"logprobs": {"token_logprobs": [10**400] * 8}}, r"token_logprobs\[0\] is .*; expected a number"),
    ({"prompt_token_ids": [float("inf")]}, r"prompt_token_ids\[0\] is inf; expected a whole number"),
    ({"token_ids": [-1], "logprobs": {"token_logprobs": [-1.0]}}, r"token ids \(-1,\); expected ints"),
    ({"token_ids": [30], "logprobs": {"token_logprobs": [5.0]}}, "finite and not positive"),
    ({"finish_reason": ["stop"]}, r"finish_reason is .*; expected .*stop"),
    ({"finish_reason": {}}, "finish_reason is {}; expected .*stop"),
]


async def test_misshapen_answers_are_failures(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    asked = asked_of(lm)
    await engine.generate(asked)
    for spoiled, message in SPOILED:
        server.spoil = {"finish_reason": "length"} | spoiled
        with pytest.raises(EngineFailure, match=message):
            await engine.generate(asked)
    server.spoil, server.usage = {}, {"prompt_tokens": 3}
    with pytest.raises(EngineFailure, match="tokens that were sent"):
        await engine.generate(asked)
    server.usage = None
    assert (await engine.generate(asked)).token_ids
    server.usage = {"prompt_tokens_details": {"cached_tokens": 5}}
    assert (await engine.generate(asked)).cached_tokens == 5


# -- servers that talk in words --------------------------------------------------------------------------------


async def test_log_probs_of_token_strings_are_not_trusted(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "text")
    chat = ChatRenderer(lm)
    asked = asked_of(lm)
    made = await engine.generate(asked)
    body = server.seen[-1].body
    assert body["prompt"] == lm.tokenizer.decode(asked.prompt_ids)
    assert body["seed"] == 3
    assert body["max_tokens"] == 8
    assert made.log_probs is None
    expected = server.brain.sample(asked.prompt_ids, limit=8, seed=3, stop=[lm.tokenizer.eos_token_id])
    assert chat.decode(made.token_ids) == chat.decode(expected.ids)
    assert (made.finish_reason == "stop") == (made.token_ids[-1] in lm.end_ids)
