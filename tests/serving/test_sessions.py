"""Calls of an agent become a trajectory: token for token what the engine was fed and what it sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.inference.pictures import picture
from tests.serving.worlds import (
    ADD,
    CALLS_ADD,
    Gate,
    Watched,
    ask,
    breaks,
    client_of,
    data_url,
    fed,
    says,
    user,
    with_tools,
)
from uirl.errors import AlignmentError, ContractError, EngineFailure
from uirl.inference import ChatRenderer, LoadedModel, Message, SamplingParams, TransformersInferenceEngine
from uirl.inference.base import Generation, GenerationRequest
from uirl.rollout import EpisodeLimits, samples_of
from uirl.serving import AgentSession, ModelEndpoint
from uirl.types import Task, Trajectory, Verdict


@pytest.fixture
async def engine(lm: LoadedModel) -> AsyncIterator[Watched]:
    engine = Watched(TransformersInferenceEngine(lm))
    yield engine
    await engine.engine.close()


@pytest.fixture
async def endpoint(engine: Watched, lm: LoadedModel) -> AsyncIterator[ModelEndpoint]:
    async with ModelEndpoint(engine, lm, sampling=SamplingParams(max_tokens=8)) as endpoint:
        yield endpoint


async def converse(client: Any, turns: int, opening: str = "hi", **options: Any) -> list[Any]:
    """A conversation of `turns` calls, as agents hold them; the messages."""
    messages: list[Any] = [user(opening)]
    for turn in range(turns):
        choice = await ask(client, messages, **options)
        messages += [choice.message, user(f"again {turn}")]
    return messages


def assert_recorded(record: Trajectory, requests: list[GenerationRequest]) -> None:
    """Every prompt that the engine was fed stands in the record, and nothing else."""
    assert sorted(fed(record)) == sorted(request.prompt_ids for request in requests)


async def test_the_record_is_what_the_engine_was_fed(endpoint: ModelEndpoint, engine: Watched) -> None:
    session = endpoint.session("a", Task("talk", goal="be nice"), group_id="g", environment_seed=7, sampling_seed=1)
    await converse(client_of(session), 4)
    record = session.finish(reward=0.5, success=True)
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    assert [turn.starts_segment for turn in record.turns] == [True, False, False, False]
    assert [turn.observation.text for turn in record.turns] == ["hi", "again 0", "again 1", "again 2"]
    assert record.rewards == [0.0, 0.0, 0.0, 0.5]
    assert (record.id, record.group_id, record.seed, record.task.goal) == ("a", "g", 7, "be nice")
    assert (record.success, record.stop_reason, record.failure) == (True, "terminated", None)
    (sample,) = samples_of(record)
    assert sum(sample.response_mask) == sum(len(turn.response_ids) for turn in record.turns)
    # one cache from turn to turn, and none is left behind
    assert len({request.session_id for request in engine.requests}) == 1
    assert set(engine.released) == {request.session_id for request in engine.requests}


async def test_what_was_sampled_is_never_encoded_again(lm: LoadedModel) -> None:
    # 'ok' said as two tokens, where the tokenizer would write one; the next prompt must hold the two
    split = [lm.tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in "ok"]
    assert lm.tokenizer("ok", add_special_tokens=False)["input_ids"] != split
    end = lm.tokenizer("<|im_end|>", add_special_tokens=False)["input_ids"]
    engine = says(lm)
    engine._script = lambda request: split + end
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        messages = await converse(client_of(session), 2)
        record = session.finish(1.0)
    assert messages[1].content == "ok"
    assert record.turns[0].response_ids == tuple(split + end)
    assert list(engine.requests[1].prompt_ids)[len(engine.requests[0].prompt_ids) :][:3] == split + end


async def test_a_reply_that_was_cut_off_is_closed_in_the_next_prompt(lm: LoadedModel) -> None:
    engine = says(lm, "press the ok button")
    chat = ChatRenderer(lm)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        messages = await converse(client_of(session), 2, max_tokens=2)
        record = session.finish(1.0)
    assert record.turns[0].finish_reason == "length"
    cut = lm.tokenizer.decode(record.turns[0].response_ids)
    assert messages[1].content == cut
    # what a cut reply lacks stands in the next context, where nobody learns it
    whole = chat.whole([Message("user", "hi"), Message("assistant", cut), Message("user", "again 0")])
    assert list(engine.requests[1].prompt_ids) == whole
    assert not record.turns[1].starts_segment


async def test_a_repeated_session_repeats_every_digit(lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm, kv_cache=False)

    async def play(seed: int, asked: int | None) -> list[Any]:
        session = endpoint.session(sampling_seed=seed)
        client = client_of(session)
        await converse(client, 2, seed=asked)
        await asyncio.gather(*[ask(client, [user("same")], seed=asked) for _ in range(3)])
        return sorted((t.response_ids, t.rollout_log_probs) for t in session.finish(1.0).turns)

    async with ModelEndpoint(engine, lm, sampling=SamplingParams(max_tokens=6)) as endpoint:
        first = await play(1, None)
        assert len({ids for ids, _ in first}) == 5
        again = await play(1, None)
        assert [ids for ids, _ in again] == [ids for ids, _ in first]
        # members of a group draw differently, also where the agent has written a seed into its program
        assert {ids for ids, _ in await play(1, 42)}.isdisjoint(ids for ids, _ in await play(2, 42))
    await engine.close()


async def test_what_the_trainer_says_about_sampling_rules(endpoint: ModelEndpoint, engine: Watched) -> None:
    session = endpoint.session(sampling=SamplingParams(max_tokens=5, temperature=0.7, top_p=0.9))
    await ask(client_of(session), [user("hi")], temperature=0, top_p=0.1, max_tokens=100)
    await ask(client_of(session), [user("hi")], max_tokens=2)
    assert [(r.sampling.temperature, r.sampling.top_p, r.sampling.max_tokens) for r in engine.requests] == [
        (0.7, 0.9, 5),
        (0.7, 0.9, 2),
    ]
    assert session.finish(0.0).turns[0].info["temperature"] == 0.7


async def test_tools_there_and_back(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, f"I add\n{CALLS_ADD}", "it is 3")
    async with ModelEndpoint(engine, loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        messages: list[Any] = [{"role": "system", "content": "be brief"}, user("1 + 2?")]
        choice = await ask(client, messages, tools=[ADD])
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add")
        assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
            "function",
            "add",
            {"a": 1, "b": 2},
        )
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        choice = await ask(client, messages, tools=[ADD], tool_choice="auto")
        assert (choice.finish_reason, choice.message.content) == ("stop", "it is 3")
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    text = loaded.tokenizer.decode(engine.requests[1].prompt_ids)
    assert '"name": "add"' in text.partition("1 + 2?")[0]  # the schema, before the question
    assert text.count('<tool_call>\n{"name": "add"') == 1
    assert "<tool_response>\n3\n</tool_response>" in text
    first = record.turns[0]
    assert first.action.tool_calls[0].arguments == {"a": 1, "b": 2}
    assert first.action.thought == "I add"
    assert (first.tool_call.name, first.tool_call.result, first.tool_call.arguments) == ("add", "3", {"a": 1, "b": 2})
    assert record.turns[1].observation.tool_results[0].text == "3"


async def test_a_reply_in_a_rewritten_history_stands_as_the_policy_wrote_it(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    said = '<tool_call>{"arguments":{"b":2,"a":1},"name":"add"}</tool_call>'  # no template would write it so
    async with ModelEndpoint(says(loaded, said, "3"), loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("1 + 2?")], tools=[ADD])
        result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "3"}
        await ask(client, [user("in short: add"), choice.message, result], tools=[ADD])
        record = session.finish(1.0)
    assert record.turns[1].starts_segment
    assert said in loaded.tokenizer.decode(record.turns[1].context_ids)


async def test_two_calls_in_one_reply_have_two_ids(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    async with ModelEndpoint(says(loaded, f"{CALLS_ADD}\n{CALLS_ADD}", "3"), loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("twice")], tools=[ADD])
        first, second = choice.message.tool_calls
        assert choice.message.content is None
        assert first.id != second.id
        results = [{"role": "tool", "tool_call_id": c.id, "content": f"of {c.id}"} for c in (first, second)]
        # the other way a program may write the same message: a dict, arguments with other blanks
        told = choice.message.model_dump(exclude_none=True)
        told["tool_calls"][0]["function"]["arguments"] = '{"b":2,"a":1}'
        await ask(client, [user("twice"), told, *results], tools=[ADD])
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert [result.text for result in record.turns[0].tool_results] == [f"of {first.id}", f"of {second.id}"]


async def test_what_a_library_notes_on_a_reply_is_passed_over_and_recorded(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    async with ModelEndpoint(says(loaded, f"I add\n{CALLS_ADD}", "3"), loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("1 + 2?")], tools=[ADD])
        # litellm's Message, the openai client's parsed messages and Gemini's signatures, each with what it adds
        told = choice.message.model_dump(exclude_none=True) | {
            "provider_specific_fields": {"refusal": None}, "parsed": None, "annotations": [], "reasoning_content": "so",
            "content": [{"type": "text", "text": "I add", "cache_control": {"type": "ephemeral"}}],
        }  # fmt: skip
        told["tool_calls"][0] |= {"extra_content": {"signature": "x"}, "index": 0}
        told["tool_calls"][0]["function"] |= {"parsed_arguments": {"a": 1}}
        result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "3"}
        await ask(client, [user("1 + 2?"), told, result], tools=[ADD])
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert "ignored_fields" not in record.turns[0].info
    assert set(record.turns[1].info["ignored_fields"]) == {
        "provider_specific_fields", "reasoning_content", "content.cache_control", "tool_calls.extra_content",
        "tool_calls.function.parsed_arguments",
    }  # fmt: skip


async def test_a_call_that_cannot_be_read_is_text_and_so_is_one_that_is_not_wanted(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    async with ModelEndpoint(says(loaded, '<tool_call>{"name": "add", ', CALLS_ADD), loaded) as endpoint:
        session = endpoint.session()
        broken = await ask(client_of(session), [user("x")], tools=[ADD])
        unwanted = await ask(client_of(session), [user("x")], tools=[ADD], tool_choice="none")
        record = session.finish(0.0)
    assert (broken.finish_reason, broken.message.content) == ("stop", '<tool_call>{"name": "add", ')
    assert record.turns[0].action.parse_error
    assert (unwanted.message.tool_calls, unwanted.message.content) == (None, CALLS_ADD)
    assert record.metrics["parse_errors"] == 1


async def test_a_bare_call_is_one_where_the_client_has_a_tool_of_that_name(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, 'add{"a": 1, "b": 2}', 'set{"a": 1}')
    async with ModelEndpoint(engine, loaded, parser="mistral") as endpoint:
        client = client_of(endpoint.session())
        called = await ask(client, [user("x")], tools=[ADD])
        told = await ask(client, [user("x")], tools=[ADD])
    assert [c.function.name for c in called.message.tool_calls or []] == ["add"]
    assert (told.message.tool_calls, told.message.content) == (None, 'set{"a": 1}')


async def test_a_final_answer_that_is_written_as_a_call_is_text(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, "Thought: easy\nFinal Answer: 42", "fine")
    async with ModelEndpoint(engine, loaded, parser="react") as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("x")], tools=[ADD])
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("42", None, "stop")
        await ask(client, [user("x"), choice.message, user("sure?")], tools=[ADD])
        record = session.finish(1.0)
    # the client knows the answer alone; the history goes on with all that the policy wrote
    assert not record.turns[1].starts_segment
    assert "Thought: easy" in loaded.tokenizer.decode(engine.requests[1].prompt_ids)


async def test_a_rewritten_history_starts_a_segment(endpoint: ModelEndpoint, engine: Watched) -> None:
    session = endpoint.session(sampling_seed=3)
    client = client_of(session)
    messages = await converse(client, 2)
    shortened = [user("so far: nothing"), *messages[3:]]  # an agent that sums its history up
    choice = await ask(client, shortened)
    await ask(client, [*shortened, choice.message, user("go on")])
    record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False, True, False]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    assert [turn.observation.text for turn in record.turns[3:]] == ["go on"]
    assert [sample.segment for sample in samples_of(record)] == [0, 1]


@pytest.mark.parametrize("change", ["reply", "blank", "system", "tools"])
async def test_whatever_a_client_changes_is_noticed(lm: LoadedModel, change: str) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, "yes ")
    async with ModelEndpoint(engine, loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        first: list[Any] = [{"role": "system", "content": "s"}, user("hi")]
        choice = await ask(client, first)
        reply = {"reply": "no", "blank": "yes"}.get(change, choice.message.content)
        system = {"role": "system", "content": "t" if change == "system" else "s"}
        options = {"tools": [ADD]} if change == "tools" else {}
        await ask(client, [system, user("hi"), {"role": "assistant", "content": reply}, user("more")], **options)
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, True]
    assert fed(record) == [request.prompt_ids for request in engine.requests]


async def test_a_strangers_reply_behind_ours_is_rendered_whole(lm: LoadedModel) -> None:
    engine = says(lm, "yes")
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        choice = await ask(client_of(session), [user("hi")])
        tail = [user("and?"), {"role": "assistant", "content": "somebody else"}, user("more")]
        await ask(client_of(session), [user("hi"), choice.message, *tail])
        record = session.finish(1.0)
    assert record.turns[1].starts_segment
    assert "somebody else" in lm.tokenizer.decode(record.turns[1].context_ids)


async def test_branches_are_segments_and_their_prompts_are_what_was_sampled(
    endpoint: ModelEndpoint, engine: Watched
) -> None:
    session = endpoint.session(sampling_seed=5)
    client = client_of(session)
    stem = await converse(client, 1)
    left = await ask(client, [*stem[:2], user("left")])
    right = await ask(client, [*stem[:2], user("right")])
    await ask(client, [*stem[:2], user("left"), left.message, user("more left")])
    await ask(client, [*stem[:2], user("right"), right.message, user("more right")])
    record = session.finish(1.0)
    said = [turn.observation.text for turn in record.turns]
    assert said == ["hi", "left", "more left", "right", "more right"]
    assert [turn.starts_segment for turn in record.turns] == [True, False, False, True, False]
    assert_recorded(record, engine.requests)
    # the stem is context of the second branch, with the ids that were sampled, and is learned from once
    first = record.turns[0]
    assert record.turns[3].context_ids[: len(first.context_ids + first.response_ids)] == (
        first.context_ids + first.response_ids
    )
    sampled = sum(sum(sample.response_mask) for sample in samples_of(record))
    assert sampled == sum(len(turn.response_ids) for turn in record.turns)
    assert record.turns[-1].info["call"] == 4
    # two lines of thought, two caches
    assert len({request.session_id for request in engine.requests}) == 2


async def test_calls_on_their_way_never_share_a_cache(lm: LoadedModel) -> None:
    both = asyncio.Barrier(2)

    async def meet(request: GenerationRequest) -> None:
        if len(engine.requests) > 1:
            await asyncio.wait_for(both.wait(), 60)

    engine = Watched(says(lm, "yes"), meet)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        stem = (await converse(client, 1))[:2]
        await asyncio.gather(*[ask(client, [*stem, user(way)]) for way in ("left", "right")])
        session.finish(1.0)
    assert len({request.session_id for request in engine.requests[1:]}) == 2


async def test_calls_in_parallel_and_choices_are_branches(endpoint: ModelEndpoint, engine: Watched) -> None:
    session = endpoint.session(sampling_seed=5)
    client = client_of(session)
    await asyncio.gather(*[converse(client, 3, opening=f"agent {i}") for i in range(4)])
    made = await client.chat.completions.create(model="x", messages=[user("pick")], n=3)
    await ask(client, [user("pick"), made.choices[1].message, user("that one")])
    record = session.finish(1.0)
    assert len(record) == 16
    assert_recorded(record, [*engine.requests[:12], *engine.requests[12:13] * 3, *engine.requests[15:]])
    assert sum(turn.starts_segment for turn in record.turns) == 4 + 3
    samples = samples_of(record)
    assert sum(sum(sample.response_mask) for sample in samples) == sum(len(t.response_ids) for t in record.turns)
    assert sum(sum(sample.rewards) for sample in samples) == 1.0
    # the reward stands where the episode really ended
    assert record.turns[-1].observation.text == "that one"
    assert record.turns[-1].reward == 1.0


async def test_thirty_two_sessions_at_once(endpoint: ModelEndpoint, engine: Watched) -> None:
    sessions = [endpoint.session(f"s{i}", sampling_seed=i) for i in range(32)]
    clients = [client_of(session) for session in sessions]
    await asyncio.gather(*[converse(c, 2, opening=f"agent {i}", max_tokens=4) for i, c in enumerate(clients)])
    records = [session.finish(float(i)) for i, session in enumerate(sessions)]
    for i, record in enumerate(records):
        own = [r for r in engine.requests if (r.session_id or "").startswith(sessions[i].token)]
        assert fed(record) == [request.prompt_ids for request in own]
        assert record.turns[0].observation.text == f"agent {i}"
        assert record.total_reward() == i
    assert not endpoint.open_sessions


async def test_pictures_reach_the_model_and_the_record(vlm: LoadedModel) -> None:
    engine = Watched(TransformersInferenceEngine(vlm))
    red, blue = picture(1), picture(2)
    async with ModelEndpoint(engine, vlm, sampling=SamplingParams(max_tokens=4)) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        parts = [{"type": "text", "text": "press"}, data_url(red), {"type": "text", "text": "not"}, data_url(blue)]
        messages = [user(parts)]
        choice = await ask(client, messages)
        await ask(client, [*messages, choice.message, user([data_url(blue)])])
        record = session.finish(1.0)
    await engine.engine.close()
    assert [turn.context_images for turn in record.turns] == [(red.hash, blue.hash), (blue.hash,)]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    assert engine.requests[1].images == (red, blue, blue)
    assert endpoint.images.get(red.hash).data == red.data
    # texts and pictures stand in the order in which they were sent
    shown = vlm.tokenizer.decode(engine.requests[0].prompt_ids).replace("<|image_pad|>", "")
    gap = "<|vision_start|><|vision_end|>"
    assert f"press{gap}not{gap}" in shown


@pytest.mark.parametrize(
    ("url", "why"),
    [("https://example.com/a.png", "nothing is fetched"), ("data:image/png;base64,AAAA", "is not a picture")],
)
async def test_pictures_that_are_none(vlm: LoadedModel, lm: LoadedModel, url: str, why: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": url}}]
    async with ModelEndpoint(says(vlm, "x"), vlm, any_model=True) as endpoint:
        with pytest.raises(openai.BadRequestError, match=why) as told:
            await ask(client_of(endpoint), [user(content)])
        assert told.value.param == "messages[0].content[0].image_url.url"
    async with ModelEndpoint(says(lm, "x"), lm, any_model=True) as endpoint:
        with pytest.raises(openai.BadRequestError, match="sees no pictures"):
            await ask(client_of(endpoint), [user([data_url(picture(1))])])


async def test_a_failure_of_the_engine_is_on_the_record(lm: LoadedModel) -> None:
    engine = breaks(lm, at=1)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        client = client_of(session, max_retries=2)
        messages = await converse(client, 1)
        with pytest.raises(openai.InternalServerError, match="the card fell out") as told:
            await ask(client, messages)
        assert (told.value.code, told.value.type) == ("engine_failure", "server_error")
        assert len(engine.requests) == 2  # the client was told that a second try is in vain
        with pytest.raises(openai.InternalServerError, match="no evidence"):
            await ask(client, messages)
        record = session.finish(reward=1.0)
        # outside of a session nothing is lost, and the client may try again
        engine.requests.clear()
        with pytest.raises(openai.NotFoundError):
            await ask(client_of(endpoint), messages)
    assert (record.failure.kind, record.failure.turn, record.stop_reason) == ("engine", 1, "failure")
    assert record.rewards == [0.0]
    with pytest.raises(AlignmentError, match="not evidence"):
        samples_of(record)


async def test_a_mistake_of_the_program_reaches_whoever_finishes(lm: LoadedModel) -> None:
    async with ModelEndpoint(breaks(lm, at=0, error=ZeroDivisionError("oops")), lm) as endpoint:
        session = endpoint.session()
        with pytest.raises(openai.InternalServerError, match="oops"):
            await ask(client_of(session), [user("hi")])
        with pytest.raises(ZeroDivisionError):
            session.finish(1.0)
        assert session.failure.kind == "engine"
        assert not endpoint.open_sessions


async def test_a_mistake_in_the_program_tells_a_client_no_address(lm: LoadedModel) -> None:
    for error in (KeyError(object()), EngineFailure(f"the pool {object()!r} is empty")):
        async with ModelEndpoint(breaks(lm, at=0, error=error), lm) as endpoint:
            session = endpoint.session()
            with pytest.raises(Exception, match="object") as told:
                await ask(client_of(session), [user("hi")])
            assert "0x" not in str(told.value)
            record = session.end(0.0)
        assert record.failure is not None
        assert "<object object>" in record.failure.message
        assert "0x" not in record.failure.message


async def test_replies_without_log_probs_are_refused_for_training_and_kept_otherwise(lm: LoadedModel) -> None:
    class Mute(Watched):
        async def generate(self, request: GenerationRequest) -> Generation:
            made = await super().generate(request)
            return Generation(made.token_ids, None, made.finish_reason, made.policy_version)

    async with ModelEndpoint(Mute(says(lm, "yes")), lm) as endpoint:
        session = endpoint.session()
        with pytest.raises(openai.InternalServerError):
            await ask(client_of(session), [user("hi")])
        with pytest.raises(ContractError, match="unfit for training"):
            session.finish(1.0)
    async with ModelEndpoint(Mute(says(lm, "yes")), lm, for_training=False) as endpoint:
        session = endpoint.session()
        await ask(client_of(session), [user("hi")])
        with pytest.raises(openai.BadRequestError, match="no log-probs"):
            await ask(client_of(session), [user("hi")], logprobs=True)
        assert session.finish(1.0).turns[0].rollout_log_probs == ()


async def test_a_session_that_nobody_finishes_expires(lm: LoadedModel) -> None:
    heard: list[Trajectory] = []
    ended = asyncio.Event()

    def hear(record: Trajectory) -> None:
        heard.append(record)
        ended.set()

    engine = says(lm, "yes")
    async with ModelEndpoint(engine, lm, idle_seconds=0.5, on_finished=hear) as endpoint:
        session = endpoint.session("forgotten")
        session.last_used += 3600  # however long the first call takes to come
        await ask(client_of(session), [user("hi")])
        await asyncio.wait_for(ended.wait(), 60)
        with pytest.raises(openai.NotFoundError, match="over or never was"):
            await ask(client_of(session), [user("hi")])
        with pytest.raises(ContractError, match="finished once"):
            session.finish(1.0)
    assert (heard[0].id, heard[0].failure.kind, len(heard[0])) == ("forgotten", "timeout", 1)
    assert engine.released


@pytest.mark.parametrize(("idle", "looks"), [(4.0, 1.0), (3600.0, 30.0)])
async def test_it_is_looked_for_forgotten_sessions_often_enough(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch, idle: float, looks: float
) -> None:
    sleep, waited, twice = asyncio.sleep, list[float](), asyncio.Event()

    async def soon(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            twice.set()
        await sleep(0.001)

    endpoint = ModelEndpoint(says(lm, "yes"), lm, idle_seconds=idle)
    monkeypatch.setattr(asyncio, "sleep", soon)
    sweep = asyncio.create_task(endpoint._sweep())
    await asyncio.wait_for(twice.wait(), 60)
    sweep.cancel()
    assert set(waited) == {looks}


async def test_a_call_on_its_way_keeps_a_session_alive(lm: LoadedModel) -> None:
    gate = Gate()
    async with ModelEndpoint(Watched(says(lm, "yes"), gate), lm) as endpoint:
        session = endpoint.session()
        call = asyncio.create_task(ask(client_of(session), [user("hi")]))
        await gate.reached()
        session.last_used -= 3600
        assert session.idle_seconds == 0
        endpoint.end_idle_sessions()
        assert session.open
        gate.opened.set()
        assert (await call).message.content == "yes"
        endpoint.end_idle_sessions()
        assert session.open
        session.last_used -= 3600
        endpoint.end_idle_sessions()
        assert not session.open


async def test_finishing_cuts_off_what_is_on_its_way(lm: LoadedModel) -> None:
    gate = Gate()

    async def second_waits(request: GenerationRequest) -> None:
        if len(engine.requests) > 1:
            await gate(request)

    engine = Watched(says(lm, "yes"), second_waits)
    async with ModelEndpoint(engine, lm) as endpoint:
        session = endpoint.session()
        await ask(client_of(session), [user("hi")])
        call = asyncio.create_task(ask(client_of(session), [user("hi")]))
        await gate.reached()
        record = session.finish(1.0)
        with pytest.raises(openai.NotFoundError, match="over"):
            await asyncio.wait_for(call, 60)
    assert len(record) == 1
    assert record.failure is None


async def test_limits_refuse_further_calls(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm) as endpoint:
        for limits, reason in [(EpisodeLimits(2), "max_turns"), (EpisodeLimits(9, max_tokens=12), "token_budget")]:
            session = endpoint.session(limits=limits)
            client = client_of(session)
            with pytest.raises(openai.BadRequestError) as told:
                await converse(client, 9)
            assert told.value.code == reason
            record = session.finish(0.25)
            assert (record.stop_reason, record.total_reward(), record.failure) == (reason, 0.25, None)
            assert len(record) == 2


async def test_too_many_sessions_are_refused(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "yes"), lm, max_sessions=1) as endpoint:
        session = endpoint.session()
        with pytest.raises(Exception, match="finish some"):
            endpoint.session()
        session.end()
        endpoint.session()


async def test_an_end_without_calls_and_a_reward_that_is_none(endpoint: ModelEndpoint) -> None:
    assert endpoint.session().finish(1.0).failure.kind == "environment"
    session = endpoint.session()
    await ask(client_of(session), [user("hi")])
    record = session.finish(float("nan"))
    assert (record.failure.kind, record.stop_reason) == ("judge", "failure")


@pytest.mark.parametrize("way", ["verdict", "function"])
async def test_others_may_judge(endpoint: ModelEndpoint, way: str) -> None:
    session: AgentSession = endpoint.session()
    await converse(client_of(session), 2)
    if way == "verdict":
        record = session.finish(verdict=Verdict(0.75, True, "nice"))
        assert record.success is True
    else:
        record = session.finish(reward_fn=lambda record: len(record) / 2 - 0.25)
    assert record.rewards == [0.0, 0.75]


async def test_completions_are_recorded_and_token_prompts_go_on(endpoint: ModelEndpoint, engine: Watched) -> None:
    session = endpoint.session()
    client = client_of(session)
    extra = {"extra_body": {"return_token_ids": True}}
    made = await client.completions.create(model="x", prompt=[20, 21, 22], **extra)
    longer = [20, 21, 22, *made.choices[0].token_ids, 30, 31]
    await client.completions.create(model="x", prompt=longer)
    await client.completions.create(model="x", prompt="press")
    record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False, True]
    assert record.turns[1].context_ids == (30, 31)
    assert fed(record) == [request.prompt_ids for request in engine.requests]


async def test_closing_the_endpoint_ends_its_sessions_as_failures(lm: LoadedModel) -> None:
    heard: list[Trajectory] = []
    endpoint = ModelEndpoint(says(lm, "yes"), lm, on_finished=heard.append)
    with pytest.raises(ContractError, match="not started"):
        endpoint.session()
    async with endpoint:
        await ask(client_of(endpoint.session()), [user("hi")])
    await endpoint.close()
    assert [record.failure.kind for record in heard] == ["engine"]
