"""The attention cache is there while an episode needs it, and not a moment longer."""

from __future__ import annotations

import pytest

from tests.conftest import tiny_model
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
    again = await engine.generate(request(chat, "a"))
    assert (again.token_ids, again.log_probs) == (first.token_ids, first.log_probs)
    assert engine.cache_bytes > 0
    await engine.close()


@pytest.mark.parametrize("keep_cache", [False, True])
async def test_new_weights_free_what_they_make_worthless(keep_cache: bool) -> None:
    loaded = tiny_model("uirl/tiny-lm")
    chat, engine = ChatRenderer(loaded), Engine(loaded, shared=True, keep_cache=keep_cache)
    await engine.generate(request(chat, "a"))
    await engine.update_weights(None, 1)
    assert (engine.cache_bytes > 0) == keep_cache
    await engine.close()


async def test_a_request_of_no_episode_leaves_nothing() -> None:
    loaded = tiny_model("uirl/tiny-lm")
    chat, engine = ChatRenderer(loaded), Engine(loaded, shared=True)
    await engine.generate(request(chat, None))
    assert engine._worker is not None
    await engine._worker
    assert engine.cache_bytes == 0
    await engine.close()
