"""The embedded engine keeps the engine contract on real architectures, and batching changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.pictures import picture
from tests.inference.prompts import contract
from tests.patience import PATIENCE
from uirl.errors import ContractError, EngineFailure
from uirl.inference import (
    ChatRenderer,
    GenerationRequest,
    LoadedModel,
    Message,
    SamplingParams,
    TransformersInferenceEngine,
)
from uirl.inference.embedded import scheduler
from uirl.inference.models.loading import hidden_states, pad_sequences, project


@pytest.mark.parametrize("architecture", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "lm"])
async def test_every_architecture_keeps_the_contract(architecture: str) -> None:
    loaded = tiny_model("uirl/tiny-lm") if architecture == "lm" else tiny_model(architecture=architecture)
    engine = TransformersInferenceEngine(loaded)
    report = await contract(engine, loaded)
    assert report.tokens > 0
    assert report.log_prob_gap < 1e-4
    assert report.cached_tokens > 0


async def play(engine: TransformersInferenceEngine, chat: ChatRenderer, number: int, turns: int = 3) -> tuple:
    """A conversation with a new picture in every turn; its ids, log-probs and cached tokens."""
    shots = [picture(number)]
    ids = chat.whole([Message("user", f"press {number}", tuple(shots))])
    log_probs, cached = [], []
    for turn in range(turns):
        sampling = SamplingParams(max_tokens=3 + number % 5, seed=number * 10 + turn)
        made = await engine.generate(GenerationRequest(tuple(ids), tuple(shots), sampling, f"episode-{number}"))
        log_probs += made.log_probs
        cached.append(made.cached_tokens)
        shots.append(picture(100 * number + turn))
        ids += made.token_ids
        ids += chat.following([Message("user", "", (shots[-1],))], after_end=made.finish_reason == "stop")
    engine.release(f"episode-{number}")
    return ids, log_probs, cached


@pytest.mark.parametrize(("rows", "kept"), [(256, True), (5, True), (256, False), (1, True)])
async def test_episodes_do_not_depend_on_rows_or_cache(vlm: LoadedModel, rows: int, kept: bool) -> None:
    chat = ChatRenderer(vlm)
    alone = TransformersInferenceEngine(vlm, kv_cache=False)
    expected = [await play(alone, chat, n) for n in range(12)]
    engine = TransformersInferenceEngine(vlm, max_batch_size=rows, kv_cache=kept)
    together = await asyncio.gather(*[play(engine, chat, n) for n in range(12)])
    for (ids, log_probs, cached), (want, want_log_probs, _) in zip(together, expected, strict=True):
        assert ids == want
        assert log_probs == pytest.approx(want_log_probs, abs=1e-4)
        assert cached[0] == 0
        if kept and rows > 12:
            assert min(cached[1:]) > 0
        if not kept:
            assert cached == [0, 0, 0]
    assert not engine._scheduler.has_work
    assert not engine._scheduler._kept


async def test_the_system_prompt_of_all_episodes_is_fed_once(vlm: LoadedModel) -> None:
    """Also behind a picture that all have, and of another picture nothing is taken over."""
    chat = ChatRenderer(vlm)
    system = Message("system", "press what is asked for, then say so. " * 6, (picture(1000),))
    shots = [(picture(1000), picture(n)) for n in range(8)]
    ids = [tuple(chat.whole([system, Message("user", f"press {n}", (each[1],))])) for n, each in enumerate(shots)]
    asked = [
        GenerationRequest(prompt, each, SamplingParams(max_tokens=4, seed=n))
        for n, (prompt, each) in enumerate(zip(ids, shots, strict=True))
    ]
    alone = TransformersInferenceEngine(vlm, kv_cache=False)
    expected = [await alone.generate(each) for each in asked]
    engine = TransformersInferenceEngine(vlm)
    made = await asyncio.gather(*map(engine.generate, asked))
    assert [one.token_ids for one in made] == [one.token_ids for one in expected]
    for one, other in zip(made, expected, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    assert vlm.vision is not None
    _, (own, _) = vlm.vision.spans(ids[0], shots[0])
    assert [one.cached_tokens for one in made] == [0] + [own] * 7


async def test_a_next_turn_asks_where_its_own_tokens_stand_not_where_the_history_does(
    vlm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, engine, asked = ChatRenderer(vlm), TransformersInferenceEngine(vlm), []
    positions = LoadedModel.positions

    def spied(self: LoadedModel, ids: Any, images: Any) -> Any:
        asked.append((len(ids), len(images)))
        return positions(self, ids, images)

    monkeypatch.setattr(LoadedModel, "positions", spied)
    ids, _, cached = await play(engine, chat, 0)
    (first, _), *later = asked
    assert later
    assert [images for _, images in asked] == [1] * len(cached)
    fed = [tokens for tokens, _ in later]
    assert first + sum(fed) <= len(ids)


async def test_a_changed_picture_is_not_served_from_the_cache(vlm: LoadedModel) -> None:
    chat = ChatRenderer(vlm)
    engine = TransformersInferenceEngine(vlm)
    ids = chat.whole([Message("user", "press", (picture(1),))])
    request = GenerationRequest(tuple(ids), (picture(1),), SamplingParams(max_tokens=4, seed=1), "s")
    first = await engine.generate(request)
    again = GenerationRequest((*ids, *first.token_ids, *ids), (picture(2), picture(3)), request.sampling, "s")
    kept = await engine.generate(again)
    fresh = await engine.generate(replace(again, session_id=None))
    assert kept.token_ids == fresh.token_ids
    assert kept.cached_tokens < ids.index(vlm.vision.image_token_id) + 1


async def test_an_update_drops_the_cache_and_counts_the_version(lm: LoadedModel) -> None:
    trained, fresh = tiny_model("uirl/tiny-lm", init_seed=5), tiny_model("uirl/tiny-lm")
    engine = TransformersInferenceEngine(fresh)
    request = GenerationRequest((10, 11, 12, 13), (), SamplingParams(max_tokens=6, seed=3), "s")
    before = await engine.generate(request)
    await engine.update_weights(trained.model.named_parameters(), version=1)
    longer = replace(request, prompt_ids=(*request.prompt_ids, *before.token_ids, 14))
    after = await engine.generate(longer)
    assert after.policy_version == 1
    assert after.cached_tokens == 0
    expected = await TransformersInferenceEngine(trained).generate(longer)
    assert after.token_ids == expected.token_ids
    with pytest.raises(ContractError, match="does not have"):
        await engine.update_weights([("nonsense.weight", torch.zeros(1))], version=2)
    with pytest.raises(ContractError, match="got shape"):
        await engine.update_weights([("model.norm.weight", torch.zeros(3))], version=2)
    with pytest.raises(ContractError, match="shared"):
        await engine.update_weights(None, version=2)


async def test_what_cannot_be_answered_is_a_typed_failure(lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm, max_context=16)
    with pytest.raises(EngineFailure, match="max_context"):
        await engine.generate(GenerationRequest(tuple(range(10, 27))))
    cut = await engine.generate(GenerationRequest((10,) * 12, (), SamplingParams(max_tokens=50, seed=0)))
    assert len(cut.token_ids) <= 4
    await engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        await engine.generate(GenerationRequest((10,)))


async def test_a_broken_forward_reaches_every_caller(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersInferenceEngine(lm)

    def explode(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._runner, "_forward", explode)
    requests = [engine.generate(GenerationRequest((10, 11), (), SamplingParams(seed=i))) for i in range(3)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(r) for r in results] == [EngineFailure] * 3
    assert "out of memory" in str(results[0])
    monkeypatch.undo()
    assert (await engine.generate(GenerationRequest((10, 11), (), SamplingParams(max_tokens=2)))).token_ids


async def test_a_cancelled_call_frees_its_row(lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm, max_batch_size=1)
    endless = SamplingParams(max_tokens=4000, seed=1, temperature=100.0)
    slow = asyncio.ensure_future(engine.generate(GenerationRequest((10, 11), (), endless)))
    await asyncio.sleep(0.05)
    slow.cancel()
    quick = await asyncio.wait_for(
        engine.generate(GenerationRequest((10,), (), SamplingParams(max_tokens=1))), PATIENCE
    )
    assert len(quick.token_ids) == 1


async def test_greedy_takes_the_likeliest_token(lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm)
    made = await engine.generate(GenerationRequest((20, 21, 22), (), SamplingParams(max_tokens=5, temperature=0.0)))
    ids, positions = pad_sequences(lm, [[20, 21, 22, *made.token_ids]], [()])
    with torch.no_grad():
        best = project(lm, hidden_states(lm, ids, positions, ())).argmax(-1)[0, 2:-1].tolist()
    assert list(made.token_ids) == best


async def test_placeholders_are_never_sampled(vlm: LoadedModel) -> None:
    words = ["<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    assert set(vlm.banned_ids) == set(vlm.tokenizer.convert_tokens_to_ids(words))
    assert not set(vlm.banned_ids) & set(vlm.end_ids)
    engine = TransformersInferenceEngine(vlm)
    # at temperature 100 all of about 480 tokens are nearly equally likely
    wild = [SamplingParams(max_tokens=64, temperature=100.0, seed=i) for i in range(64)]
    made = await asyncio.gather(*[engine.generate(GenerationRequest((20, 21), (), params)) for params in wild])
    sampled = {token for generation in made for token in generation.token_ids}
    assert len(sampled) > 400
    assert not sampled & set(vlm.banned_ids)


async def test_what_a_reply_may_take_costs_nothing_before_it_takes_it(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatRenderer(lm)
    ids = tuple(chat.whole([Message("user", "count")]))

    async def talk(engine: TransformersInferenceEngine, most: int) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        made = await asyncio.gather(
            *[engine.generate(GenerationRequest(ids, (), SamplingParams(most, seed=n), f"e{n}")) for n in range(3)]
        )
        more = GenerationRequest(ids + made[0].token_ids, (), SamplingParams(most, seed=9), "e0")
        made.append(await engine.generate(more))
        await engine.close()
        return [(one.token_ids, one.log_probs) for one in made]

    # a billion tokens at once would be terabytes; beside it, the cache starts with room for a few tokens and grows
    expected = await talk(TransformersInferenceEngine(lm, max_context=200), 150)
    assert max(len(tokens) for tokens, _ in expected) > 50
    bounded = await talk(TransformersInferenceEngine(lm, max_context=200), 10**9)
    assert [tokens[:150] for tokens, _ in bounded[:3]] == [tokens for tokens, _ in expected[:3]]
    monkeypatch.setattr(scheduler, "AHEAD", 4)
    assert await talk(TransformersInferenceEngine(lm, max_context=200), 150) == expected


async def answers(engine: TransformersInferenceEngine, requests: list[GenerationRequest]) -> list:
    return await asyncio.gather(*[engine.generate(request) for request in requests])


@pytest.fixture
def group(vlm: LoadedModel) -> list[GenerationRequest]:
    """Sixteen members with one prompt and one picture, each with a seed and sampling parameters of its own."""
    shot = picture(1, (112, 84))
    ids = tuple(ChatRenderer(vlm).whole([Message("user", "press the red button", (shot,))]))
    return [
        GenerationRequest(
            ids, (shot,), SamplingParams(3 + n % 5, temperature=0.5 + n / 8, top_k=n, seed=n), f"member-{n}"
        )
        for n in range(16)
    ]


def expect_alike(made: list, alone: list) -> None:
    for one, other in zip(made, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


async def test_a_group_feeds_its_prompt_and_its_picture_once(
    vlm: LoadedModel, group: list[GenerationRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = await answers(TransformersInferenceEngine(vlm, kv_cache=False), group)
    engine = TransformersInferenceEngine(vlm)
    fed = []
    forward = engine._runner._forward

    def counted(ids, positions, masks, images):
        fed.extend(images)
        return forward(ids, positions, masks, images)

    monkeypatch.setattr(engine._runner, "_forward", counted)
    made = await answers(engine, group)
    assert (len(fed), engine.stats()["prefill_tokens"]) == (1, len(group[0].prompt_ids))
    assert sorted(one.cached_tokens for one in made) == [0, *[len(group[0].prompt_ids)] * 15]
    expect_alike(made, alone)


async def test_a_group_whose_members_come_late_is_answered_alike(
    vlm: LoadedModel, group: list[GenerationRequest]
) -> None:
    alone = await answers(TransformersInferenceEngine(vlm, kv_cache=False), group)
    engine = TransformersInferenceEngine(vlm)
    tasks = []
    for number, request in enumerate(group):
        tasks.append(asyncio.ensure_future(engine.generate(request)))
        for _ in range(number % 3):
            await asyncio.sleep(0)
    made = await asyncio.gather(*tasks)
    expect_alike(made, alone)
    assert engine.stats()["prefill_tokens"] < 2 * len(group[0].prompt_ids) + 16
    second = [
        replace(request, prompt_ids=(*request.prompt_ids, *one.token_ids, 30, 31, 32))
        for request, one in zip(group, made, strict=True)
    ]
    expect_alike(await answers(engine, second), await answers(TransformersInferenceEngine(vlm, kv_cache=False), second))


@pytest.mark.parametrize("waits", [True, False])
async def test_members_do_not_need_the_one_that_fed_their_prompt(
    vlm: LoadedModel, group: list[GenerationRequest], waits: bool
) -> None:
    alone = await answers(TransformersInferenceEngine(vlm, kv_cache=False), group)
    engine = TransformersInferenceEngine(vlm)
    endless = replace(group[0], session_id=None, sampling=SamplingParams(500, temperature=100.0, seed=99))
    first = asyncio.ensure_future(engine.generate(endless))
    while not (engine._scheduler.waiting if waits else engine._scheduler.running):
        await asyncio.sleep(0)
    members = [asyncio.ensure_future(engine.generate(request)) for request in group]
    while not (waits or len(engine._scheduler.running) > 1):
        await asyncio.sleep(0)
    first.cancel()
    expect_alike(await asyncio.gather(*members), alone)


@pytest.mark.parametrize("keep_cache", [False, True])
async def test_no_prompt_is_shared_across_weights(
    vlm: LoadedModel, group: list[GenerationRequest], keep_cache: bool
) -> None:
    trained = tiny_model(init_seed=5)
    engine = TransformersInferenceEngine(tiny_model(), keep_cache=keep_cache)
    early = asyncio.ensure_future(
        engine.generate(replace(group[0], sampling=SamplingParams(40, seed=1, temperature=50.0)))
    )
    await answers(engine, group[1:4])
    await engine.update_weights(trained.model.named_parameters(), version=1)
    late = await answers(engine, group[4:])
    await early
    expect_alike(late, await answers(TransformersInferenceEngine(trained, kv_cache=False), group[4:]))
