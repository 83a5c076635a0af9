"""Calls of an agent become a trajectory: token for token what the engine was fed and what it sampled."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from tests.inference.pictures import picture
from tests.patience import PATIENCE
from tests.serving.worlds import ADD, Watched, ask, client_of, converse, data_url, fed, says, user, with_tools
from uirl.errors import ContractError
from uirl.inference import ChatRenderer, LoadedModel, Message, SamplingParams, TransformersInferenceEngine
from uirl.inference.base import Generation, GenerationRequest
from uirl.rollout import samples_of
from uirl.serving import ModelEndpoint
from uirl.types import Task, Trajectory


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
            await asyncio.wait_for(both.wait(), PATIENCE)

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
    assert not endpoint.sessions.active


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


async def test_a_text_model_is_shown_no_pictures(lm: LoadedModel) -> None:
    async with ModelEndpoint(says(lm, "x"), lm, any_model=True) as endpoint:
        with pytest.raises(openai.BadRequestError, match="sees no pictures"):
            await ask(client_of(endpoint), [user([data_url(picture(1))])])


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
