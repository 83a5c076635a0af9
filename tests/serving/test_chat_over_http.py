"""The real openai client against a real server: what a program without a session sees."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from tests.patience import PATIENCE
from tests.serving.worlds import ADD, CALLS_ADD, Gate, Watched, ask, client_of, says, user
from uirl import ConfigStore
from uirl.errors import SamplingRefused
from uirl.inference import ChatRenderer, LoadedModel, Message, SamplingParams, TransformersInferenceEngine
from uirl.inference.base import Generation, GenerationRequest
from uirl.inference.openai.engine import OpenAIInferenceEngine
from uirl.parsers import create_parser
from uirl.serving import ModelEndpoint

HI = [user("hi")]


async def test_an_answer_is_what_the_engine_says(endpoint: ModelEndpoint, engine: Watched, lm: LoadedModel) -> None:
    chat = ChatRenderer(lm)
    prompt = tuple(chat.whole([Message("system", "be brief"), Message("user", "hi")]))
    own = await engine.generate(GenerationRequest(prompt, (), SamplingParams(8, 0.7, 0.9, seed=5)))
    made = await client_of(endpoint).chat.completions.create(
        model="x",
        messages=[{"role": "developer", "content": "be brief"}, *HI],
        max_completion_tokens=8,
        temperature=0.7,
        top_p=0.9,
        seed=5,
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    choice = made.choices[0]
    assert choice.message.content == chat.decode(own.token_ids)
    assert choice.finish_reason == own.finish_reason
    assert choice.token_ids == list(own.token_ids)
    assert made.prompt_token_ids == list(prompt)
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(own.log_probs, abs=1e-5)
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (len(prompt), len(own.token_ids))
    assert made.model == "uirl/tiny-lm"


async def test_tools_that_the_template_does_not_show_are_described_to_the_policy(lm: LoadedModel) -> None:
    engine = Watched(says(lm, CALLS_ADD))
    async with ModelEndpoint(engine, lm, any_model=True) as endpoint:
        client = client_of(endpoint)
        asked: dict[str, Any] = {"model": "x", "messages": HI, "tools": [ADD]}
        answer = await client.chat.completions.create(**asked)
        call = answer.choices[0].message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("add", '{"a": 1, "b": 2}')
        said = [*HI, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "three"}]
        await client.chat.completions.create(**asked | {"messages": said})
    first, second = (lm.tokenizer.decode(request.prompt_ids) for request in engine.requests)
    assert first.startswith("<|system|>")
    assert '"description": "the sum"' in first
    assert create_parser("qwen").describe() in first
    assert second.startswith(first + CALLS_ADD)
    assert "three" in second.removeprefix(first)


async def test_a_stream_tells_the_prompt_once_and_looks_a_token_up_once(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt in every piece of a long reply is gigabytes."""
    asked: list[int] = []
    real = lm.tokenizer.convert_ids_to_tokens
    monkeypatch.setattr(lm.tokenizer, "convert_ids_to_tokens", lambda token: (asked.append(token), real(token))[1])
    async with ModelEndpoint(says(lm, "one one one one"), lm, any_model=True) as endpoint:
        stream = await client_of(endpoint).chat.completions.create(
            model="any", messages=HI, stream=True, n=2, logprobs=True, extra_body={"return_token_ids": True}
        )
        pieces = [piece async for piece in stream]
    assert len(pieces) > 4
    assert ["prompt_token_ids" in (piece.model_extra or {}) for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert len(asked) == len(set(asked))


async def test_a_token_that_is_a_part_of_a_character_has_its_bytes(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "a\N{PARROT}"), lm, any_model=True) as endpoint:
        choice = await ask(client_of(endpoint), HI, logprobs=True)
    whole, *parts = choice.logprobs.content[:-1]
    assert (whole.token, whole.bytes) == ("a", [97])
    assert len(parts) > 1
    assert bytes(byte for part in parts for byte in part.bytes) == "\N{PARROT}".encode()
    assert choice.logprobs.content[-1].token == "<|im_end|>"


async def test_several_choices_draw_differently_and_repeatably(endpoint: ModelEndpoint) -> None:
    client = client_of(endpoint)
    texts = []
    for _ in range(2):
        made = await client.chat.completions.create(model="x", messages=HI, n=4, max_tokens=8, seed=11)
        texts.append([choice.message.content for choice in made.choices])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4
    alone = await ask(client, HI, max_tokens=8, seed=11)
    assert alone.message.content == texts[0][0]


async def test_a_stop_string_cuts_text_ids_and_log_probs(lm: LoadedModel) -> None:
    # 'ok button' is several tokens: the engine says all of it, and what stands behind the stop is as if never sampled
    async with ModelEndpoint(says(lm, "press the ok button now"), lm, any_model=True) as endpoint:
        client = client_of(endpoint)
        extra = {"extra_body": {"return_token_ids": True}, "logprobs": True}
        cut = await ask(client, HI, stop=["k but"], **extra)
        assert (cut.message.content, cut.finish_reason) == ("press the o", "stop")
        kept = lm.tokenizer.decode(cut.token_ids)
        assert "k but" in kept
        assert "k but" not in lm.tokenizer.decode(cut.token_ids[:-1])
        assert len(cut.logprobs.content) == len(cut.token_ids)
        whole = await ask(client, HI, stop="never said")
        assert whole.message.content == "press the ok button now"


async def test_a_stop_string_of_one_token_stops_the_engine_at_once(lm: LoadedModel) -> None:
    engine = Watched(says(lm, "1 2"))
    async with ModelEndpoint(engine, lm, any_model=True) as endpoint:
        cut = await ask(client_of(endpoint), HI, stop=[" "])
    assert cut.message.content == "1"
    assert engine.requests[0].sampling.stop_token_ids == tuple(lm.tokenizer(" ", add_special_tokens=False)["input_ids"])


async def test_token_ids_stop_a_reply_and_belong_to_it(lm: LoadedModel) -> None:
    (space,) = lm.tokenizer(" ", add_special_tokens=False)["input_ids"]
    engine = TransformersInferenceEngine(lm)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session(sampling=SamplingParams(max_tokens=64))
        extra = {"stop_token_ids": list(range(100, 512)), "return_token_ids": True}
        choice = await ask(client_of(session), HI, seed=1, extra_body=extra)
        with pytest.raises(openai.BadRequestError, match="stop_token_ids"):
            await ask(client_of(session), HI, extra_body={"stop_token_ids": [-1, space]})
    await engine.close()
    assert choice.finish_reason == "stop"
    assert [token >= 100 for token in choice.token_ids] == [False] * (len(choice.token_ids) - 1) + [True]


async def test_completions_take_text_and_token_ids(endpoint: ModelEndpoint, engine: Watched, lm: LoadedModel) -> None:
    client = client_of(endpoint)
    ids = lm.tokenizer("press the red")["input_ids"]
    own = await engine.generate(GenerationRequest(tuple(ids), (), SamplingParams(6, seed=1)))
    for prompt in ("press the red", ids):
        made = await client.completions.create(
            model="x", prompt=prompt, max_tokens=6, seed=1, logprobs=0, extra_body={"return_token_ids": True}
        )
        assert made.choices[0].token_ids == list(own.token_ids)
        assert made.choices[0].text == lm.tokenizer.decode(own.token_ids, skip_special_tokens=True)
        assert made.choices[0].logprobs.token_logprobs == pytest.approx(own.log_probs, abs=1e-5)
    stream = await client.completions.create(model="x", prompt=ids, max_tokens=6, seed=1, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == made.choices[0].text


async def test_models_and_health(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "x"), lm, model_name="mine/lm") as endpoint:
        client = client_of(endpoint)
        assert [model.id async for model in client.models.list()] == ["mine/lm"]
        assert (await client.models.retrieve("mine/lm")).id == "mine/lm"
        assert (await client.chat.completions.create(model="mine/lm", messages=HI)).choices[0].message.content == "x"
        with pytest.raises(openai.NotFoundError, match="this is 'mine/lm'") as told:
            await client.chat.completions.create(model="gpt-4o", messages=HI)
        assert (told.value.code, told.value.param) == ("model_not_found", "model")
        async with httpx.AsyncClient() as plain:
            health = (await plain.get(f"{endpoint.url}/health")).json()
            assert health == {"status": "ok", "model": "mine/lm", "policy_version": 0}


GOOD = b'{"model": "x", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}], "metadata": 1}'


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"[" * 100_000, GOOD.replace(b"1}", b"NaN}"), GOOD.replace(b"1}", b"9" * 5000 + b"}")]
)
async def test_bodies_that_are_no_request(endpoint: ModelEndpoint, body: bytes) -> None:
    async with httpx.AsyncClient() as plain:
        headers = {"content-type": "application/json"}
        assert (
            await plain.post(f"{endpoint.base_url}/chat/completions", content=GOOD, headers=headers)
        ).status_code == 200
        answer = await plain.post(f"{endpoint.base_url}/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_half_characters_are_refused_and_whole_ones_come_back(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "\N{WAVING HAND SIGN} é"), lm, any_model=True) as endpoint:
        assert (
            await ask(client_of(endpoint), [user("\N{WAVING HAND SIGN}")])
        ).message.content == "\N{WAVING HAND SIGN} é"
        async with httpx.AsyncClient() as plain:
            body = json.dumps({"model": "x", "messages": [user("half \ud83d")]})
            headers = {"content-type": "application/json"}
            answer = await plain.post(f"{endpoint.base_url}/chat/completions", content=body, headers=headers)
    assert answer.json()["error"]["param"] == "messages[0].content"


async def test_an_address_that_is_none_answers_in_the_same_shape(endpoint: ModelEndpoint) -> None:
    with pytest.raises(openai.NotFoundError) as told:
        await client_of(endpoint).embeddings.create(model="x", input="y")
    assert told.value.code == "unknown_url"
    async with httpx.AsyncClient() as plain:
        assert (await plain.get(f"{endpoint.base_url}/chat/completions")).status_code == 405


@pytest.mark.parametrize("in_session", [False, True])
async def test_what_this_engine_cannot_do_is_the_clients_affair_and_no_failure(
    lm: LoadedModel, in_session: bool
) -> None:
    """An agent that could make its episode a failure could have every lost one played again."""

    async def at_most_2(request: GenerationRequest) -> None:
        if request.sampling.temperature > 2:
            raise SamplingRefused("this server samples at temperature 0 to 2")

    engine = Watched(TransformersInferenceEngine(lm, max_context=64), at_most_2)
    async with ModelEndpoint(engine, lm, any_model=True, sampling=SamplingParams(max_tokens=2)) as endpoint:
        session = endpoint.session()
        client = client_of(session if in_session else endpoint)
        asked: list[tuple[dict[str, Any], str]] = [
            ({"temperature": 3.0}, "temperature"),
            ({"extra_body": {"stop_token_ids": [len(lm.tokenizer)]}}, "stop_token_ids"),
            ({"extra_body": {"top_k": 2**63}}, "top_k"),
        ]
        for options, param in asked:
            with pytest.raises(openai.BadRequestError) as told:
                await ask(client, HI, **options)
            assert told.value.param == param
        with pytest.raises(openai.BadRequestError) as told:
            await ask(client, [user("word " * 100)])
        assert (told.value.code, told.value.param) == ("context_length_exceeded", "messages")
        with pytest.raises(openai.BadRequestError) as told:
            await client.completions.create(model="any", prompt=[5] * 64)
        assert (told.value.code, told.value.param) == ("context_length_exceeded", "prompt")
        await ask(client, HI)
        assert session.failure is None


async def test_a_temperature_that_the_trainer_wants_and_the_engine_refuses_is_a_failure(lm: LoadedModel) -> None:
    async def never(request: GenerationRequest) -> None:
        raise SamplingRefused("this server is greedy")

    async with ModelEndpoint(Watched(says(lm, "yes"), never), lm) as endpoint:
        session = endpoint.session(sampling=SamplingParams(temperature=0.5))
        with pytest.raises(openai.InternalServerError):
            await ask(client_of(session), HI, temperature=1.0)
        assert session.failure is not None
        assert session.failure.kind == "engine"


async def test_a_client_that_goes_while_it_sends_is_no_mistake_of_ours(
    lm: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, any_model=True) as endpoint:
        host, port = endpoint.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 1000\r\n\r\n{{".encode())
        await writer.drain()
        assert (await ask(client_of(endpoint), HI)).message.content == "yes"  # it was read up to here
        writer.close()
        await writer.wait_closed()
    # closing waits for what is on its way
    assert not [record for record in caplog.records if record.exc_info]


async def test_too_many_calls_are_told_to_come_back(lm: LoadedModel) -> None:
    gate = Gate()
    async with ModelEndpoint(Watched(says(lm, "yes"), gate), lm, any_model=True, max_pending=1) as endpoint:
        client = client_of(endpoint)
        first = asyncio.create_task(ask(client, HI))
        await gate.reached()
        with pytest.raises(openai.RateLimitError) as told:
            await ask(client, HI)
        assert told.value.response.headers["retry-after"] == "1"
        gate.opened.set()
        assert (await first).message.content == "yes"
        assert (await ask(client, HI)).message.content == "yes"


async def test_a_client_that_hangs_up_frees_its_place(lm: LoadedModel) -> None:
    gate = Gate()
    async with ModelEndpoint(Watched(says(lm, "yes"), gate), lm, any_model=True, max_pending=1) as endpoint:
        with pytest.raises(openai.APITimeoutError):
            await ask(client_of(endpoint, timeout=0.2), HI)
        gate.opened.set()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    assert (await ask(client_of(endpoint), HI)).message.content == "yes"
                    break
                except openai.RateLimitError:
                    await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["chat", "choices", "stream", "completion", "through another server"])
async def test_generation_ends_with_the_client_that_wanted_it(lm: LoadedModel, way: str) -> None:
    """However much was asked for: the engine has nothing to do once nobody waits."""
    engine = Waiting(TransformersInferenceEngine(lm))
    asked: dict[str, Any] = {"model": "x", "max_tokens": 10**9}
    asked |= {"prompt": "count"} if way == "completion" else {"messages": HI}
    asked |= {"n": 3} if way == "choices" else {"stream": True} if way == "stream" else {}
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(ModelEndpoint(engine, lm, any_model=True))
        if way == "through another server":
            config = ConfigStore().override([f"inference.server_url={place.url}", "inference.request_retries=0"])
            between = OpenAIInferenceEngine.from_config(config.engine_settings, lm, shared=True)
            stack.push_async_callback(between.close)
            place = await stack.enter_async_context(ModelEndpoint(between, lm, any_model=True))
        path = "completions" if way == "completion" else "chat/completions"
        async with httpx.AsyncClient(timeout=None) as plain:
            call = asyncio.create_task(plain.post(f"{place.base_url}/{path}", json=asked))
            async with asyncio.timeout(PATIENCE):
                while len(engine.long) < (3 if way == "choices" else 1):
                    await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        async with asyncio.timeout(PATIENCE):
            while not all(task.done() for task in engine.long):
                await asyncio.sleep(0.01)
        assert all(task.cancelled() for task in engine.long)


class Waiting(Watched):
    """An engine that never answers a call for a long reply."""

    def __init__(self, engine: TransformersInferenceEngine) -> None:
        super().__init__(engine)
        self.long: list[asyncio.Task[None]] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        if request.sampling.max_tokens > 100:
            self.long.append(asyncio.create_task(asyncio.sleep(10**6)))
            await self.long[-1]
        return await super().generate(request)
