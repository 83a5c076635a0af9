"""OpenAI-compatible servers as engines: what each kind of server is trusted with, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.inference.embedded.test_engine import prompts_for
from tests.inference.openai.stand_in_openai import StandInOpenAI
from tests.inference.pictures import picture
from tests.inference.stand_in_http import Answer
from uirl.config import ConfigStore
from uirl.errors import ConfigError, ContractError, EngineFailure
from uirl.images import ImageStore
from uirl.inference import (
    ChatRenderer,
    GenerationRequest,
    LoadedModel,
    Message,
    SamplingParams,
    TransformersInferenceEngine,
    check_engine,
    recompute_with,
)
from uirl.inference.openai.engine import OPENAI, OpenAIInferenceEngine
from uirl.inference.openai.wire import data_url, reply_text, wire_messages
from uirl.parsers import create_parser
from uirl.rollout.episode import EngineAgent
from uirl.serving import ModelEndpoint
from uirl.training import RayPPOTrainer
from uirl.types import ToolCall

KEY = "sk-very-secret-4711"
TALK = (Message("system", "be brief"), Message("user", "guess 1-7"))


@pytest.fixture
def make() -> Iterator[Any]:
    """A function that makes (engine, stand-in server) of a grade; the servers end with the test."""
    servers: list[StandInOpenAI] = []

    def build(loaded: LoadedModel, grade: str, **options: Any) -> tuple[OpenAIInferenceEngine, StandInOpenAI]:
        server = StandInOpenAI(loaded, grade, **options)
        servers.append(server)
        config = config_of(server.url)
        return OpenAIInferenceEngine.from_config(config, loaded, shared=True), server

    yield build
    for server in servers:
        server.close()


def config_of(url: str) -> ConfigStore:
    config = ConfigStore()
    config.inference.backend, config.inference.server_url = "openai", url
    config.inference.api_key_env, config.inference.request_retries = "TEST_KEY", 0
    return config


def asked_of(chat: ChatRenderer, messages: tuple[Message, ...] = TALK, **sampling: Any) -> GenerationRequest:
    shots = tuple(shot for m in messages for shot in m.images)
    params = SamplingParams(**({"max_tokens": 8, "seed": 3} | sampling))
    return GenerationRequest(tuple(chat.whole(messages)), shots, params, messages=messages)


# -- servers that talk in token ids ----------------------------------------------------------------------------


async def test_a_server_that_talks_in_ids_keeps_the_contract(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    chat = ChatRenderer(lm)
    report = await check_engine(
        engine,
        prompts_for(lm, chat),
        recompute_with(lm),
        banned_ids=lm.banned_ids,
        continuation=chat.following([Message("user", "next")], after_end=False),
        max_tokens=6,
    )
    assert report.log_prob_gap < 2e-5
    assert {s.path for s in server.seen} == {"/v1/models", "/v1/completions"}
    assert engine.stats()["generated_tokens"] > 20
    assert not engine.takes_weights
    await engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate(asked_of(chat))


async def test_our_own_endpoint_is_such_a_server(lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    async with ModelEndpoint(TransformersInferenceEngine(lm), lm) as endpoint:
        engine = OpenAIInferenceEngine.from_config(config_of(endpoint.url), lm, shared=True)
        report = await check_engine(
            engine,
            prompts_for(lm, chat),
            recompute_with(lm),
            banned_ids=lm.banned_ids,
            continuation=chat.following([Message("user", "next")], after_end=False),
            max_tokens=6,
        )
        await engine.close()
    assert report.log_prob_gap < 2e-5


async def test_log_probs_of_the_plain_model_count_where_it_is_what_was_sampled(make: Any, lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    engine, server = make(lm, "ids", reports="raw")
    assert (await engine.generate(asked_of(chat))).log_probs is None  # the ban makes it another distribution
    assert server.seen[-1].body["logit_bias"] == {"0": -100}
    engine, server = make(lm, "ids", reports="raw", refuses=("logit_bias",))
    for same in ({}, {"temperature": 0.0}):
        asked = asked_of(chat, **same)
        made = await engine.generate(asked)
        expected = server.brain.sample(asked.prompt_ids, limit=8, seed=3, stop=lm.end_ids, **same)
        assert made.token_ids == tuple(expected.ids)
        assert made.log_probs == pytest.approx(expected.raw, abs=1e-6)
    for other in ({"temperature": 0.7}, {"top_p": 0.9}, {"top_k": 5}):
        assert (await engine.generate(asked_of(chat, **other))).log_probs is None


@pytest.mark.parametrize("reports", ["scaled", "unscaled"])
async def test_half_processed_log_probs_count_as_plain_ones(make: Any, lm: LoadedModel, reports: str) -> None:
    engine, _ = make(lm, "ids", reports=reports, refuses=("logit_bias",))
    chat = ChatRenderer(lm)
    assert (await engine.generate(asked_of(chat))).log_probs is not None
    assert (await engine.generate(asked_of(chat, temperature=0.7))).log_probs is None


async def test_a_model_that_is_too_sure_tells_nothing(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    sure = {"token_ids": [40, 41], "text": lm.tokenizer.decode([40, 41]), "logprobs": {"token_logprobs": [-1e-5, -1.0]}}
    server.faults += [Answer({"data": [{"id": lm.name}]}), Answer({"choices": [sure]})]
    assert (await engine.generate(asked_of(ChatRenderer(lm)))).log_probs is None


async def test_a_server_without_bias_and_stops_gets_neither(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids", refuses=("logit_bias", "stop_token_ids"))
    chat = ChatRenderer(lm)
    made = await engine.generate(asked_of(chat))
    assert made.log_probs is not None
    assert not {"logit_bias", "stop_token_ids"} & set(server.seen[-1].body)
    with pytest.raises(ContractError, match="takes no stop_token_ids"):
        await engine.generate(asked_of(chat, stop_token_ids=(40,)))


async def test_every_end_token_ends_a_response_and_belongs_to_it(make: Any, lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    second = (await make(lm, "ids")[0].generate(asked_of(chat))).token_ids[1]
    made = await make(lm, "ids")[0].generate(asked_of(chat, stop_token_ids=(second,)))
    assert made.token_ids[1:] == (second,)
    assert made.finish_reason == "stop"
    made = await make(replace(lm, end_ids=(*lm.end_ids, second)), "ids")[0].generate(asked_of(chat))
    assert made.token_ids[1:] == (second,)
    assert made.finish_reason == "stop"


@pytest.mark.parametrize("grade", ["ids", "text", "chat"])
@pytest.mark.parametrize("no_limit", [(-1,), (0,), (-1, 0)])
async def test_what_a_server_does_by_itself_does_not_apply(
    make: Any, lm: LoadedModel, grade: str, no_limit: tuple[int, ...]
) -> None:
    """A generation_config.json that says how to sample, on a server that takes the fields: nothing of it holds."""
    chat, takes = ChatRenderer(lm), ("top_k", "repetition_penalty")
    options = {"takes": takes, "no_limit": no_limit}
    expected = [await make(lm, grade, **options)[0].generate(asked_of(chat, seed=seed)) for seed in range(4)]
    defaults = {"top_k": 1, "top_p": 0.1, "temperature": 0.2, "repetition_penalty": 1.05}
    engine, server = make(lm, grade, defaults=defaults, **options)
    made = [await engine.generate(asked_of(chat, seed=seed)) for seed in range(4)]
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    assert len({one.token_ids for one in made}) > 1
    assert not server.shaped
    said = server.seen[-1].body
    assert (said["top_k"], said["repetition_penalty"]) == (no_limit[0], 1.0)
    assert ("min_p" in said) == (grade == "ids")
    limited = await engine.generate(asked_of(chat, top_k=3))
    assert server.seen[-1].body["top_k"] == 3
    assert limited.token_ids


async def test_a_server_that_takes_none_of_it_is_asked_without(
    make: Any, lm: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    engine, server = make(lm, "chat")
    with caplog.at_level(logging.INFO, "uirl.inference.openai.engine"):
        await engine.generate(asked_of(ChatRenderer(lm)))
    assert {"presence_penalty", "frequency_penalty"} <= set(server.seen[-1].body)
    assert not {"top_k", "min_p", "repetition_penalty"} & set(server.seen[-1].body)
    assert "takes no top_k, min_p, typical_p, repetition_penalty, repeat_penalty" in caplog.text


async def test_equal_ids_of_another_tokenizer_are_found_out(make: Any, lm: LoadedModel) -> None:
    for other in ("other_tokens", "other_prompt"):
        engine, server = make(lm, "ids", **{other: True})
        made = await engine.generate(asked_of(ChatRenderer(lm)))
        assert made.log_probs is None
        assert server.seen[-1].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"token_ids": "missing"}, "token ids with as many log-probs"),
        ({"token_ids": [30]}, "token ids with as many log-probs"),
        ({"token_ids": ["x"] * 8}, "token ids with as many log-probs"),
        ({"logprobs": None}, "token ids with as many log-probs"),
        ({"logprobs": {"token_logprobs": [float("nan")] * 8}}, "token ids with as many log-probs"),
        ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "1 to 8 token ids"),
        ({"token_ids": [30] * 9, "logprobs": {"token_logprobs": [-1.0] * 9}}, "1 to 8 token ids"),
        ({"prompt_token_ids": [30, 31]}, "tokens that were sent"),
        ({"finish_reason": None}, "a finish_reason"),
        ({"finish_reason": "bored"}, "a finish_reason"),
        ({"token_ids": [30], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "stop"}, "the end token at the"),
        ({"token_ids": [0], "logprobs": {"token_logprobs": [-1.0]}}, "sampled placeholder tokens"),
        ({"token_ids": [float("inf")] * 8}, "token ids with as many log-probs"),
        ({"token_ids": [30.5] * 8}, "token ids with as many log-probs"),
        ({"logprobs": {"token_logprobs": [10**400] * 8}}, "token ids with as many log-probs"),
        ({"prompt_token_ids": [float("inf")]}, "token ids with as many log-probs"),
        ({"token_ids": [-1], "logprobs": {"token_logprobs": [-1.0]}}, r"token ids \(-1,\); expected ints"),
        ({"token_ids": [30], "logprobs": {"token_logprobs": [5.0]}}, "finite and not positive"),
        ({"finish_reason": ["stop"]}, "a finish_reason"),
        ({"finish_reason": {}}, "a finish_reason"),
    ],
)
async def test_misshapen_answers_are_failures(make: Any, lm: LoadedModel, spoiled: dict, message: str) -> None:
    engine, server = make(lm, "ids")
    asked = asked_of(ChatRenderer(lm))
    await engine.generate(asked)
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
    asked = asked_of(chat)
    made = await engine.generate(asked)
    body = server.seen[-1].body
    assert body["prompt"] == lm.tokenizer.decode(asked.prompt_ids)
    assert body["seed"] == 3
    assert body["max_tokens"] == 8
    assert made.log_probs is None
    expected = server.brain.sample(asked.prompt_ids, limit=8, seed=3, stop=[lm.tokenizer.eos_token_id])
    assert chat.decode(made.token_ids) == chat.decode(expected.ids)
    assert (made.finish_reason == "stop") == (made.token_ids[-1] in lm.end_ids)


@pytest.mark.parametrize("limit_field", ["max_tokens", "max_completion_tokens"])
async def test_a_chat_server_gets_messages_and_its_words_are_recorded(
    make: Any, vlm: LoadedModel, limit_field: str
) -> None:
    engine, server = make(vlm, "chat", limit_field=limit_field)
    chat = ChatRenderer(vlm)
    talk = (Message("system", "be brief"), Message("user", "press", (picture(1), picture(2, (84, 56)))))
    asked = asked_of(chat, talk, temperature=0.7, top_p=0.9)
    made = await engine.generate(asked)
    body = server.seen[-1].body
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert [part["type"] for part in body["messages"][1]["content"]] == ["image_url", "image_url", "text"]
    assert {k: body[k] for k in ("temperature", "top_p", "seed", limit_field)} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        limit_field: 8,
    }
    # the pictures arrived whole: a model that sees them says the same
    again = server.brain.sample(
        asked.prompt_ids, asked.images, limit=8, temperature=0.7, top_p=0.9, seed=3, stop=vlm.end_ids
    )
    assert chat.decode(made.token_ids) == chat.decode(again.ids)
    assert made.log_probs is None


async def test_a_complete_reply_ends_with_the_end_token_of_the_template(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "chat")
    chat = ChatRenderer(lm)
    server.scripted += [
        ({"role": "assistant", "content": "guess 4"}, "stop"),
        ({"role": "assistant", "content": "guess"}, "length"),
        ({"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}, "stop"),
        ({"role": "assistant", "content": None, "refusal": "no"}, "stop"),
        ({"role": "assistant", "content": ""}, "content_filter"),
    ]
    made = [await engine.generate(asked_of(chat)) for _ in range(5)]
    assert list(made[0].token_ids) == chat.demonstration("guess 4")
    assert [m.finish_reason for m in made] == ["stop", "length", "stop", "stop", "abort"]
    assert [chat.decode(m.token_ids) for m in made] == ["guess 4", "guess", "onetwo", "no", ""]
    assert made[1].token_ids[-1] not in lm.end_ids
    assert made[4].token_ids == ()


async def test_which_end_token_closes_a_complete_text(make: Any, lm: LoadedModel) -> None:
    words = [40, 41]
    said = {"finish_reason": "stop", "text": lm.tokenizer.decode(words)}
    several = replace(lm, end_ids=(1, 2))
    engine, server = make(several, "text")
    server.spoil = said
    asked = asked_of(ChatRenderer(lm))
    assert (await engine.generate(asked)).token_ids[-1] == 2  # the template's, of several
    bare = replace(lm, tokenizer=copy.deepcopy(lm.tokenizer))
    bare.tokenizer.chat_template = None
    engine, server = make(bare, "text")
    server.spoil = said
    assert (await engine.generate(replace(asked, messages=()))).token_ids[-1] in lm.end_ids
    server.spoil = said | {"finish_reason": "length"}
    assert (await engine.generate(replace(asked, messages=()))).token_ids[-1] not in lm.end_ids


async def test_without_messages_a_chat_server_cannot_be_asked(make: Any, lm: LoadedModel) -> None:
    engine, _ = make(lm, "chat")
    with pytest.raises(EngineFailure, match="no messages were given, and it continues no text"):
        await engine.generate(replace(asked_of(ChatRenderer(lm)), messages=()))


async def test_pictures_go_as_messages_also_to_a_server_that_talks_in_ids(make: Any, vlm: LoadedModel) -> None:
    engine, server = make(vlm, "ids")
    chat = ChatRenderer(vlm)
    assert (await engine.generate(asked_of(chat))).log_probs is not None
    made = await engine.generate(asked_of(chat, (Message("user", "press", (picture(1),)),)))
    assert made.log_probs is None
    assert server.seen[-1].path == "/v1/chat/completions"


async def test_extra_stop_tokens_become_stop_words(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "chat")
    await engine.generate(asked_of(ChatRenderer(lm), stop_token_ids=(40, *lm.end_ids)))
    assert server.seen[-1].body["stop"] == [lm.tokenizer.decode([40])]


# -- tools -----------------------------------------------------------------------------------------------------

ADD = {"type": "function", "function": {"name": "add", "description": "a + b", "parameters": {"type": "object"}}}


async def test_structured_calls_become_text_that_the_parser_reads_and_go_back_structured(
    make: Any, lm: LoadedModel
) -> None:
    engine, server = make(lm, "chat")
    engine.tools = [ADD]
    chat = ChatRenderer(lm)
    calls = [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "é}{"}'}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": ""}},
    ]
    server.scripted += [({"role": "assistant", "content": "Two sums.", "tool_calls": calls}, "tool_calls")]
    made = await engine.generate(asked_of(chat))
    assert server.seen[-1].body["tools"] == [ADD]
    assert made.finish_reason == "stop"
    said = chat.decode(made.token_ids)
    action = create_parser("qwen").parse(said)
    assert [(c.name, dict(c.arguments)) for c in action.tool_calls] == [("add", {"a": 1, "b": "é}{"}), ("add", {})]
    server.scripted += [({"role": "assistant", "content": "3"}, "stop")]
    talk = (*TALK, Message("assistant", said), Message("tool", "3", name="add"), Message("tool", "0", name="add"))
    await engine.generate(asked_of(chat, talk))  # the stand-in refuses what OpenAI would refuse
    sent = server.seen[-1].body["messages"]
    assert sent[2]["content"] == "Two sums."
    assert [c["function"]["arguments"] for c in sent[2]["tool_calls"]] == ['{"a": 1, "b": "é}{"}', "{}"]
    ids = [c["id"] for c in sent[2]["tool_calls"]]
    assert sent[3:] == [
        {"role": "tool", "tool_call_id": ids[0], "content": "3"},
        {"role": "tool", "tool_call_id": ids[1], "content": "0"},
    ]


def test_what_cannot_be_structured_stays_text() -> None:
    broken = reply_text({"content": None, "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1'}}]})
    assert create_parser("qwen").parse(broken).parse_error is not None
    talk = [Message("assistant", broken), Message("tool", "no JSON", name="add")]
    assert wire_messages(talk) == [
        {"role": "assistant", "content": broken},
        {"role": "user", "content": "<tool_response>\nno JSON\n</tool_response>"},
    ]


def test_calls_of_others_keep_their_ids() -> None:
    calls = (ToolCall("add", {"a": 1}, id="x"), ToolCall("add", {"a": 2}, id="y"))
    talk = [
        Message("assistant", tool_calls=calls),
        Message("tool", "2", name="add", call_id="y"),
        Message("tool", "1", name="add", call_id="x"),
        Message("tool", "nobody asked", name="add"),
    ]
    sent = wire_messages(talk)
    assert sent[0]["content"] is None
    assert [c["id"] for c in sent[0]["tool_calls"]] == ["x", "y"]
    assert [m.get("tool_call_id") for m in sent[1:]] == ["y", "x", None]
    assert sent[3]["role"] == "user"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "plain"}, "plain"),
        ({"content": None}, ""),
        (
            {"function_call": {"name": "add", "arguments": {"a": 1}}},
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        ),
    ],
)
def test_the_text_of_a_message(message: dict[str, Any], text: str) -> None:
    assert reply_text(message) == text


def test_calls_in_a_text_that_nothing_answers_stay_text() -> None:
    act = '<thinking>tap</thinking>\n<tool_call>\n{"name": "mobile_use", "arguments": {"action": "wait"}}\n</tool_call>'
    seen = [Message("user", "go"), Message("assistant", act), Message("user", "a picture")]
    assert wire_messages(seen)[1] == {"role": "assistant", "content": act}
    answered = wire_messages([*seen[:2], Message("tool", "done"), seen[2]])
    assert [call["function"]["name"] for call in answered[1]["tool_calls"]] == ["mobile_use"]
    assert answered[2]["role"] == "tool"


@pytest.mark.parametrize(
    "message",
    [
        *(None, "text", {"tool_calls": [{"id": "x"}]}, {"tool_calls": ["add"]}, {"tool_calls": 5}),
        *({"content": 5}, {"content": {"text": "x"}}, {"content": True}),
    ],
)
def test_a_misshapen_message_is_a_failure(message: Any) -> None:
    with pytest.raises(EngineFailure, match=r"no function with a name|holds no message|expected content as text"):
        reply_text(message)


async def test_half_a_character_that_a_model_wrote_does_not_end_the_run(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "chat")
    asked = asked_of(ChatRenderer(lm))
    await engine.generate(asked)
    call = {"id": "x", "function": {"name": "say", "arguments": {"word": "\ud83d"}}}
    server.scripted += [({"content": "no \ud83d"}, "stop"), ({"content": None, "tool_calls": [call]}, "stop")]
    for _ in range(2):
        made = await engine.generate(asked)
        assert made.finish_reason == "stop"
        assert len(made.token_ids) > 1
    assert reply_text({"content": "\ud83d\ude00 and \ud83d"}) == "\U0001f600 and \ufffd"


# -- trouble ---------------------------------------------------------------------------------------------------


async def test_passing_trouble_is_waited_out(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    engine._client.retries, engine._client.backoff = 3, 0.01
    asked = asked_of(ChatRenderer(lm))
    expected = await engine.generate(asked)
    server.faults += [Answer("oops", 500), Answer("oops", 500)]
    assert await engine.generate(asked) == expected
    server.faults += [Answer("slow down", 429, {"retry-after": "0.01"}), Answer({"x": "y" * 99}, keep=0.5)]
    assert await engine.generate(asked) == expected


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Answer("<html>", 502), "502 Bad Gateway"),
        (Answer("no JSON"), "no JSON: 'no JSON'"),
        (Answer([1]), "expected a choice"),
        (Answer({"choices": []}), "expected a choice"),
        (Answer({"choices": [3]}), "expected a choice"),
        (Answer({"choices": [{"finish_reason": "stop"}]}), "holds no message|expected a text|token ids"),
        (Answer({"error": "late"}, seconds=2.0), "no answer within 0.3 s"),
        (Answer({"x": "y" * 99}, keep=0.5), "RemoteProtocolError"),
    ],
)
@pytest.mark.parametrize("grade", ["ids", "text", "chat"])
async def test_every_fault_is_a_typed_failure(
    make: Any, lm: LoadedModel, grade: str, fault: Answer, message: str
) -> None:
    engine, server = make(lm, grade)
    asked = asked_of(ChatRenderer(lm))
    await engine.generate(asked)
    if fault.seconds:
        engine._client.timeout = 0.3
    server.faults += [fault]
    with pytest.raises(EngineFailure, match=message):
        await engine.generate(asked)
    server.faults.clear()  # where the time was over before the request came
    engine._client.timeout = 60.0
    assert (await engine.generate(asked)).token_ids


async def test_a_server_that_is_down_is_not_taken_for_one_that_can_do_less(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "ids")
    chat = ChatRenderer(lm)
    server.faults += [Answer("starting", 503)]
    with pytest.raises(EngineFailure, match="503"):
        await engine.generate(asked_of(chat))
    server.faults += [Answer({"object": "list", "data": [{"id": lm.name}]}), Answer("who are you", 401)]
    with pytest.raises(EngineFailure, match="TEST_KEY is not set"):
        await engine.generate(asked_of(chat))
    assert (await engine.generate(asked_of(chat))).log_probs is not None
    server.close()
    failed = await asyncio.gather(*[engine.generate(asked_of(chat)) for _ in range(4)], return_exceptions=True)
    assert all(isinstance(e, EngineFailure) for e in failed)


@pytest.mark.parametrize("grade", ["ids", "chat"])
async def test_many_requests_at_once_get_their_own_answers(make: Any, lm: LoadedModel, grade: str) -> None:
    engine, server = make(lm, grade)
    chat = ChatRenderer(lm)
    asked = [asked_of(chat, (Message("user", f"guess {n}"),), seed=n, max_tokens=2) for n in range(64)]
    together = await asyncio.gather(*[engine.generate(a) for a in asked])
    for n in (0, 31, 63):
        assert await engine.generate(asked[n]) == together[n]
    assert [s.path for s in server.seen].count("/v1/models") == 1


async def test_the_key_goes_out_and_stays_out_of_sight(
    make: Any, lm: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TEST_KEY", KEY)
    told = []
    for grade in ("ids", "text", "chat"):
        engine, server = make(lm, grade)
        asked = asked_of(ChatRenderer(lm))
        await engine.generate(asked)
        assert {s.headers.get("authorization") for s in server.seen} == {f"Bearer {KEY}"}
        for fault in (Answer(f"bad key {KEY}", 401), Answer({"choices": [KEY]}), Answer({"choices": [{"text": KEY}]})):
            server.faults += [fault]
            with pytest.raises(EngineFailure) as caught:
                await engine.generate(asked)
            told += [str(caught.value), repr(caught.value.__cause__), repr(engine), repr(engine._client)]
    assert any("serves uirl/tiny-lm" in line for line in caplog.text.splitlines())
    assert not [text for text in [*told, caplog.text] if KEY in text]


# -- which model, and what for ---------------------------------------------------------------------------------


async def test_the_model_is_the_one_that_is_asked_for_or_the_only_one(make: Any, lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    engine, server = make(lm, "chat", models=["some/other"])
    await engine.generate(asked_of(chat))
    assert server.seen[-1].body["model"] == "some/other"
    engine, server = make(lm, "chat", models=["a", lm.name, "b"])
    await engine.generate(asked_of(chat))
    assert server.seen[-1].body["model"] == lm.name
    engine, server = make(lm, "chat", models=None)  # it lists none
    await engine.generate(asked_of(chat))
    assert server.seen[-1].body["model"] == lm.name
    engine, server = make(lm, "chat", models=["a", "uirl/tiny"])
    with pytest.raises(ConfigError, match=r"inference\.server_model.*did you mean 'uirl/tiny'"):
        await engine.generate(asked_of(chat))
    config = config_of(server.url)
    config.inference.server_model = "a"
    engine = OpenAIInferenceEngine.from_config(config, lm, shared=True)
    await engine.generate(asked_of(chat))
    assert server.seen[-1].body["model"] == "a"


@pytest.mark.parametrize(
    ("given", "used"),
    [(None, OPENAI), ("http://h:1", "http://h:1/v1"), ("http://h:1/", "http://h:1/v1"), ("http://h/api/v3", None)],
)
def test_an_address_without_a_path_gets_the_usual_one(lm: LoadedModel, given: str | None, used: str | None) -> None:
    config = ConfigStore()
    config.inference.backend, config.inference.server_url = "openai", given
    engine = OpenAIInferenceEngine.from_config(config, lm, shared=True)
    assert engine._client.base_url == (used or given)


async def test_the_context_limit_cuts_the_response(make: Any, lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    _, server = make(lm, "ids")
    config = config_of(server.url)
    config.inference.max_context = len(chat.whole(TALK)) + 2
    engine = OpenAIInferenceEngine.from_config(config, lm, shared=True)
    assert len((await engine.generate(asked_of(chat))).token_ids) <= 2
    longer = (*TALK, Message("assistant", "ok"), Message("user", "a much longer prompt"))
    with pytest.raises(EngineFailure, match=r"expected 1 to \d+ \(inference\.max_context\)"):
        await engine.generate(asked_of(chat, longer))


async def test_replies_without_log_probs_are_refused_in_training(make: Any, lm: LoadedModel) -> None:
    engine, _ = make(lm, "chat")
    asked = asked_of(ChatRenderer(lm))

    class Context:
        prompt_ids, images, messages = asked.prompt_ids, (), asked.messages

    with pytest.raises(ContractError, match="unfit for training"):
        await EngineAgent(engine, asked.sampling, "x").act(Context, None, 1, 8)  # type: ignore[arg-type]
    looked = EngineAgent(engine, asked.sampling, "x", for_training=False)
    assert (await looked.act(Context, None, 1, 8)).log_probs == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("grade", ["ids", "chat"])
def test_a_run_can_be_evaluated_and_not_trained(make: Any, lm: LoadedModel, grade: str, tmp_path: Any) -> None:
    _, server = make(lm, grade)
    config = config_of(server.url)
    config.model.model_name, config.environment.name = "uirl/tiny-lm", "guess_number"
    config.logging.runs_dir, config.inference.max_tokens, config.inference.max_turns = str(tmp_path), 6, 2
    trainer = RayPPOTrainer(config)
    try:
        report = trainer.evaluate(4)
        assert report.episodes == 4
        assert report.failures == 0
        turns = [turn for t in report.trajectories for turn in t.turns]
        assert turns
        assert all(turn.response_ids for turn in turns)
        asked = len(server.seen)
        with pytest.raises(ContractError, match="somebody else's model, which cannot be trained: evaluate with it"):
            trainer.fit(1, 1)
        assert len(server.seen) == asked  # it ended before the first episode
    finally:
        trainer.cleanup()


def test_what_goes_out_is_json(lm: LoadedModel) -> None:
    talk = [Message("user", "half a pair \ud83d", (picture(1),))]
    assert "\\ud83d" in json.dumps(wire_messages(talk))


def test_what_users_say_may_be_parts() -> None:
    shot = ImageStore().put(picture(1))
    talk = [Message("system", "s"), Message("user", "u"), Message("user", "", (shot,)), Message("assistant", "a")]
    sent = wire_messages([*talk, Message("user", "")], text_parts=True)
    url = data_url(shot.data)
    assert [message["content"] for message in sent] == [
        "s",
        [{"type": "text", "text": "u"}],
        [{"type": "image_url", "image_url": {"url": url}}],
        "a",
        [{"type": "text", "text": ""}],
    ]
