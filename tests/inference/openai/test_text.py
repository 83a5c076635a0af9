"""Servers that answer with text: messages go out, and the words are recorded in our tokens."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.inference.openai.world import asked_of
from tests.inference.pictures import picture
from uirl.errors import EngineFailure
from uirl.inference import ChatRenderer, LoadedModel, Message


@pytest.mark.parametrize("limit_field", ["max_tokens", "max_completion_tokens"])
async def test_a_chat_server_gets_messages_and_its_words_are_recorded(
    make: Any, vlm: LoadedModel, limit_field: str
) -> None:
    engine, server = make(vlm, "chat", limit_field=limit_field)
    chat = ChatRenderer(vlm)
    talk = (Message("system", "be brief"), Message("user", "press", (picture(1), picture(2, (84, 56)))))
    asked = asked_of(vlm, talk, temperature=0.7, top_p=0.9)
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
    made = [await engine.generate(asked_of(lm)) for _ in range(5)]
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
    asked = asked_of(lm)
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
        await engine.generate(replace(asked_of(lm), messages=()))


async def test_pictures_go_as_messages_also_to_a_server_that_talks_in_ids(make: Any, vlm: LoadedModel) -> None:
    engine, server = make(vlm, "ids")
    assert (await engine.generate(asked_of(vlm))).log_probs is not None
    made = await engine.generate(asked_of(vlm, (Message("user", "press", (picture(1),)),)))
    assert made.log_probs is None
    assert server.seen[-1].path == "/v1/chat/completions"


async def test_extra_stop_tokens_become_stop_words(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "chat")
    await engine.generate(asked_of(lm, stop_token_ids=(40, *lm.end_ids)))
    assert server.seen[-1].body["stop"] == [lm.tokenizer.decode([40])]
