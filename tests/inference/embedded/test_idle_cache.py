"""The attention cache is there while an episode needs it, and not a moment longer."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.conftest import tiny_model
from uirl.errors import PromptTooLong
from uirl.inference import ChatRenderer, Generation, GenerationRequest, Message, SamplingParams
from uirl.inference import TransformersInferenceEngine as Engine


def request(chat: ChatRenderer, session: str | None, text: str = "press the red button") -> GenerationRequest:
    return GenerationRequest(tuple(chat.whole([Message("user", text)])), (), SamplingParams(4, seed=1), session)


async def test_it_is_freed_with_the_last_episode() -> None:
    loaded = tiny_model("uirl/tiny-lm")
    chat, engine = ChatRenderer(loaded), Engine(loaded, shared=True)
    first: Generation = await engine.generate(request(chat, "a"))
    await engine.generate(request(chat, "b"))
    held = engine.cache_bytes
    assert held > 0
    engine.release("a")
    assert engine.cache_bytes == held  # the other episode goes on
    engine.release("b")
    assert engine.cache_bytes == 0
    again = await engine.generate(request(chat, None))
    assert (again.token_ids, again.log_probs) == (first.token_ids, first.log_probs)
    assert engine._worker is not None
    await engine._worker
    assert engine.cache_bytes == 0  # of no episode


async def test_it_never_takes_more_than_it_may_and_requests_wait() -> None:
    loaded = tiny_model("uirl/tiny-lm")
    chat = ChatRenderer(loaded)
    texts = ["press the red button " * (1 + 3 * (i % 4)) for i in range(12)]

    async def sampled(pool_bytes: int | None) -> tuple[list[Generation], int, int]:
        engine, held, running = Engine(loaded, shared=True, pool_bytes=pool_bytes), 0, 0
        step = engine._step

        def watched() -> None:
            nonlocal held, running
            step()
            held, running = max(held, engine.cache_bytes), max(running, len(engine._scheduler.running))

        engine._step = watched  # type: ignore[method-assign]
        replies = []
        for turn in (" ", " and again "):
            asked = [request(chat, f"s{i}", turn.join((text, text))) for i, text in enumerate(texts)]
            replies += await asyncio.gather(*[engine.generate(one) for one in asked])
        await engine.close()
        return replies, held, running

    free, most, all_run = await sampled(None)
    bound = most // 8
    replies, held, some_run = await sampled(bound)
    assert 0 < held <= bound
    assert 1 < some_run < all_run
    assert [one.token_ids for one in replies] == [one.token_ids for one in free]


async def test_a_prompt_that_the_whole_cache_cannot_hold_is_refused_with_the_key() -> None:
    loaded = tiny_model("uirl/tiny-lm")
    engine = Engine(loaded, shared=True, pool_bytes=10_000)
    with pytest.raises(PromptTooLong, match=r"cache of 10000 bytes holds, inference.kv_cache_gib"):
        await engine.generate(request(ChatRenderer(loaded), None))


@pytest.mark.parametrize("keep_cache", [False, True])
async def test_new_weights_free_what_they_make_worthless(keep_cache: bool) -> None:
    loaded = tiny_model("uirl/tiny-lm")
    chat, engine = ChatRenderer(loaded), Engine(loaded, shared=True, keep_cache=keep_cache)
    await engine.generate(request(chat, "a"))
    await engine.update_weights(None, 1)
    assert (engine.cache_bytes > 0) == keep_cache


def test_measuring_it_leaves_the_mode_of_every_module() -> None:
    model = tiny_model("uirl/tiny-lm")
    model.model.train()
    first = next(module for module in model.model.modules() if isinstance(module, torch.nn.Linear))
    first.eval()
    Engine(model, shared=True)
    modes = {module.training for module in model.model.modules() if module is not first}
    assert (modes, first.training) == ({True}, False)
