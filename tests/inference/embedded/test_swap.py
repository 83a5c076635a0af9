"""Weights that change while episodes are in flight: between tokens or turns, with the cache kept or dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from tests.conftest import tiny_model
from tests.inference.prompts import gap_of
from tests.patience import PATIENCE
from uirl.config import ConfigStore
from uirl.errors import EngineFailure
from uirl.inference import (
    ChatRenderer,
    GenerationRequest,
    LoadedModel,
    Message,
    SamplingParams,
    TransformersInferenceEngine,
    create_engine,
    recompute_with,
)
from uirl.inference.embedded import engine as engine_module
from uirl.inference.models.copying import copy_of
from uirl.rollout.conversation import ContextWindow, Conversation
from uirl.rollout.episode import EngineAgent

WILD = SamplingParams(max_tokens=20, seed=3, temperature=100.0)
"""Replies that no end token cuts short."""


def asked(session: str, *more: int, seed: int = 3) -> GenerationRequest:
    return GenerationRequest((10, 11, 12, *more), (), replace(WILD, seed=seed), session)


async def running(engine: TransformersInferenceEngine, tokens: int = 1) -> None:
    while not any(len(sequence.tokens) >= tokens for sequence in engine._scheduler.running):
        await asyncio.sleep(0)


def nudged(loaded: LoadedModel) -> list[tuple[str, torch.Tensor]]:
    """The weights of the model after a step as large as one of a run."""
    generator = torch.Generator().manual_seed(0)
    return [(n, p + 0.02 * torch.randn(p.shape, generator=generator)) for n, p in loaded.model.named_parameters()]


@pytest.mark.parametrize("keep_cache", [False, True])
async def test_what_the_next_turn_is_sampled_from(keep_cache: bool) -> None:
    loaded = tiny_model("uirl/tiny-lm")
    engine = TransformersInferenceEngine(loaded, keep_cache=keep_cache)
    first = await engine.generate(asked("s"))
    await engine.update_weights(nudged(loaded), 1)
    following = asked("s", *first.token_ids, 14)
    second = await engine.generate(following)
    assert (second.policy_version, second.cached_tokens > 0) == (1, keep_cache)
    gap = gap_of(loaded, following, second)
    # kept rows are those of the old weights: the reply is not what the new ones alone would say
    assert (gap > 1e-3) if keep_cache else (gap < 1e-4)


@pytest.mark.parametrize("keep_cache", [False, True])
async def test_a_reply_that_spans_an_update_leaves_its_row_or_not(keep_cache: bool, lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm, shared=True, keep_cache=keep_cache)
    turn = asyncio.ensure_future(engine.generate(asked("s")))
    await running(engine)
    await engine.update_weights(None, 1)
    spanning = await turn
    assert spanning.policy_version == 0
    following = await engine.generate(asked("s", *spanning.token_ids, 14))
    assert (following.cached_tokens > 0) is keep_cache


@pytest.mark.parametrize("swap", ["token", "turn"])
async def test_weights_come_in_between_tokens_or_between_turns(swap: str) -> None:
    loaded, trained = tiny_model("uirl/tiny-lm"), tiny_model("uirl/tiny-lm", init_seed=5)
    whole_old = await TransformersInferenceEngine(loaded).generate(asked("s"))
    whole_new = await TransformersInferenceEngine(trained).generate(asked("s"))
    engine = TransformersInferenceEngine(copy_of(loaded), swap=swap)
    turn = asyncio.ensure_future(engine.generate(asked("s")))
    await running(engine, tokens=5)
    update = asyncio.ensure_future(engine.update_weights(trained.model.named_parameters(), 1))
    await asyncio.sleep(0)
    late = asyncio.ensure_future(engine.generate(asked("late")))
    reply, after = await turn, await late
    await update
    assert (reply.policy_version, after.policy_version) == (0, 1)
    assert after.token_ids == whole_new.token_ids
    assert reply.log_probs[:5] == pytest.approx(whole_old.log_probs[:5], abs=1e-5)
    assert (reply.token_ids == whole_old.token_ids) is (swap == "turn")


async def test_updates_without_end_starve_no_request(lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm, shared=True, swap="turn", max_batch_size=2)
    ended = False

    async def learner() -> int:
        version = 0
        while not ended:
            version += 1
            await engine.update_weights(None, version)
            if not engine._scheduler.has_work:
                await asyncio.sleep(0)
        return version

    async def episode(number: int) -> list[int]:
        return [(await engine.generate(asked(f"e{number}", seed=turn))).policy_version for turn in range(3)]

    learning = asyncio.ensure_future(learner())
    async with asyncio.timeout(PATIENCE):
        versions = await asyncio.gather(*[episode(n) for n in range(6)])
    ended = True
    assert await learning > 3
    assert all(seen == sorted(seen) and len(set(seen)) > 1 for seen in versions)


async def test_a_reply_that_never_ends_holds_no_update(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "LONGEST_REPLY", 0.05)
    engine = TransformersInferenceEngine(lm, shared=True, swap="turn")
    endless = replace(asked("s"), sampling=replace(WILD, max_tokens=4000))
    turn = asyncio.ensure_future(engine.generate(endless))
    await running(engine)
    await engine.update_weights(None, 1)
    assert not turn.done()
    assert engine.stats()["early_swaps"] == 1
    assert "come in between their tokens" in caplog.text
    turn.cancel()


async def test_neither_a_failure_nor_a_close_nor_a_cancel_leaves_the_door_shut(
    lm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*args, **kwargs):
        raise RuntimeError("out of memory")

    engine = TransformersInferenceEngine(lm, shared=True, swap="turn")

    async def update_during_a_reply(version: int) -> tuple[asyncio.Task, asyncio.Task]:
        turn = asyncio.ensure_future(engine.generate(replace(asked("s"), sampling=replace(WILD, max_tokens=400))))
        await running(engine)
        update = asyncio.ensure_future(engine.update_weights(None, version))
        await asyncio.sleep(0)
        return turn, update

    turn, update = await update_during_a_reply(1)
    with monkeypatch.context() as patched:
        patched.setattr(engine._runner, "_forward", explode)
        with pytest.raises(EngineFailure, match="out of memory"):
            await turn
    await update
    assert engine.policy_version == 1
    turn, update = await update_during_a_reply(2)
    waiting = asyncio.ensure_future(engine.generate(asked("other")))
    update.cancel()
    assert (await waiting).policy_version == 1
    turn.cancel()
    turn, update = await update_during_a_reply(3)
    await engine.close()
    for lost in (turn, update):
        with pytest.raises(EngineFailure, match="closed"):
            await lost


def test_the_config_says_how(lm: LoadedModel) -> None:
    config = ConfigStore()
    usual = create_engine(config, lm)
    assert (usual.swap, usual.keep_cache) == ("token", False)
    config.actors.swap, config.actors.keep_cache = "turn", True
    engine = create_engine(config, lm)
    assert (engine.swap, engine.keep_cache) == ("turn", True)


async def gap_of_second(loaded: LoadedModel, second: Callable[[tuple[int, ...]], GenerationRequest], **options: Any):
    """Play a turn, train, play what `second` makes of its reply; return (the reply, how far it is from what the new
    weights alone say, in nats)."""
    engine = TransformersInferenceEngine(loaded, keep_cache=True, **options)
    first = await engine.generate(asked("s"))
    await engine.update_weights(nudged(loaded), 1)
    following = second(first.token_ids)
    reply = await engine.generate(following)
    await engine.close()
    return reply, gap_of(loaded, following, reply)


REWRITTEN = {
    "the oldest exchange is gone": lambda said: GenerationRequest((10, 11, 14, 15), (), WILD, "s"),
    "the reply is left out": lambda said: asked("s", 14, 15),
    "the last token of the reply is another": lambda said: asked("s", *said[:-1], (said[-1] + 1) % 20, 14),
    "a template wrote anew what it had written before": lambda said: replace(
        asked("s", *said, 14), starts_segment=True
    ),
    "another prompt altogether": lambda said: GenerationRequest((14, 15, 16), (), WILD, "s"),
    "a fork from the first prompt": lambda said: asked("another session"),
}
"""What begins a sample after an update, though its session, or another one, has rows of older weights."""


@pytest.mark.parametrize("case", REWRITTEN)
async def test_what_begins_a_sample_reads_nothing_of_older_weights(case: str) -> None:
    reply, gap = await gap_of_second(tiny_model("uirl/tiny-lm"), REWRITTEN[case])
    assert (reply.policy_version, reply.cached_tokens) == (1, 0)
    assert gap < 1e-4


async def test_a_request_that_waits_through_an_update_forgets_what_it_was_to_begin_with() -> None:
    loaded = tiny_model("uirl/tiny-lm")
    engine = TransformersInferenceEngine(loaded, keep_cache=True, max_batch_size=2)
    await engine.generate(asked("s"))
    endless = [replace(asked(f"e{i}"), sampling=replace(WILD, max_tokens=3000)) for i in range(2)]
    others = [asyncio.ensure_future(engine.generate(request)) for request in endless]
    await running(engine)
    late = asyncio.ensure_future(engine.generate(asked("s", 14, 15)))
    for _ in range(3):
        await asyncio.sleep(0)
    await engine.update_weights(nudged(loaded), 1)
    for other in others:
        other.cancel()
    reply = await late
    assert (reply.policy_version, reply.cached_tokens) == (1, 0)


async def test_an_episode_whose_window_drops_turns_counts_as_fresh_only_where_it_is() -> None:
    """With a window the second sample begins after an update: all that it says is what the new weights say."""
    loaded = tiny_model("uirl/tiny-lm")
    engine = TransformersInferenceEngine(loaded, keep_cache=True)
    chat = ChatRenderer(loaded)
    talk = Conversation(chat, ContextWindow(token_budget=40))
    agent = EngineAgent(engine, replace(WILD, max_tokens=8), "s")
    rewritten = 0
    for turn in range(6):
        talk.add(Message("user", "press the button"))
        context = talk.context()
        response = await agent.act(context, cast(Any, None), turn, 8)
        if context.starts_segment:
            ids = (*context.prompt_ids, *response.token_ids)
            scored = recompute_with(loaded)(ids, (), len(response.token_ids), WILD)
            assert response.log_probs == pytest.approx(scored, abs=1e-4)
            rewritten += turn > 0
        talk.reply(response.token_ids, loaded.tokenizer.decode(response.token_ids), ended=False)
        await engine.update_weights(nudged(loaded), turn + 1)
    assert rewritten > 1
