"""Requests that cost much: refused before the work, done beside the event loop, and not remembered."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.serving.worlds import ask, client_of, data_url, says, user
from uirl.images import Screenshot
from uirl.inference import LoadedModel
from uirl.serving import ModelEndpoint, rendering
from uirl.serving.protocol import messages as wire_messages
from uirl.serving.protocol.chat_requests import read_chat_call, read_completion_call
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.rendering import LengthCheck


class Counting:
    """A tokenizer that tells how much it encoded, and where."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.characters = 0
        self.threads: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __call__(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        self.threads.add(threading.get_ident())
        return self._inner(text, **options)


def counted(loaded: LoadedModel) -> tuple[LoadedModel, Counting]:
    tokenizer = Counting(loaded.tokenizer)
    return replace(loaded, tokenizer=tokenizer), tokenizer


def chat_call(*messages: Any, **fields: Any) -> Any:
    return read_chat_call({"model": "m", "messages": list(messages), **fields})


@pytest.mark.parametrize("text", ["press the button ", "x", "<|im_end|>", "é", "\n", "1"])
async def test_a_prompt_of_megabytes_is_refused_before_it_is_encoded(lm: LoadedModel, text: str) -> None:
    loaded, tokenizer = counted(lm)
    service = ModelEndpoint(says(lm, "yes"), loaded).service
    await service.answer(chat_call(user("hello")), None)
    before = tokenizer.characters
    hostile = text * (2_000_000 // len(text))
    for call in (chat_call(user(hostile)), chat_call(user("a"), tools=[tool(hostile)])):
        with pytest.raises(APIProblem, match=r"has more than \d+ tokens; this model takes 4096") as caught:
            await service.answer(call, None)
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(APIProblem, match="this model takes 4096"):
        await service.answer(read_completion_call({"model": "m", "prompt": hostile}), None)
    with pytest.raises(APIProblem, match="200000 tokens; this model takes 4096"):
        await service.answer(read_completion_call({"model": "m", "prompt": [5] * 200_000}), None)
    assert tokenizer.characters - before < 3 * 200_000
    (kept,) = service.renderers._kept.values()
    assert kept.controls._encoded.held < 100_000


def tool(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": description}}


def test_a_text_that_fits_is_never_refused(lm: LoadedModel) -> None:
    # of the words that this tokenizer packs densest
    word = max((t for t in lm.tokenizer.get_vocab() if t.isascii() and t.isalpha()), key=len)
    dense = f"{word} " * 4000
    tokens = len(lm.tokenizer(dense, add_special_tokens=False)["input_ids"])
    LengthCheck(lm.tokenizer, tokens).check([dense], "messages")
    LengthCheck(lm.tokenizer, tokens // 2 + 100).check([dense], "messages")  # too long, and told so when it is encoded
    with pytest.raises(APIProblem):
        LengthCheck(lm.tokenizer, tokens // 4).check([dense], "messages")
    LengthCheck(lm.tokenizer, 4096).check(["a" * 4096 * 8], "messages")


async def test_long_texts_are_encoded_beside_the_event_loop(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "SMALL", 400)
    loaded, tokenizer = counted(lm)
    service = ModelEndpoint(says(lm, "yes"), loaded).service
    await service.answer(chat_call(user("hello")), None)
    assert tokenizer.threads == {threading.get_ident()}
    tokenizer.threads.clear()
    await service.answer(chat_call(user("button " * 100)), None)
    assert tokenizer.threads
    assert threading.get_ident() not in tokenizer.threads


async def test_pictures_are_decoded_beside_the_event_loop_and_once(
    vlm: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    read = Screenshot.open

    def watched(shot: Screenshot) -> Any:
        threads.append(threading.get_ident())
        return read(shot)

    monkeypatch.setattr(Screenshot, "open", watched)
    monkeypatch.setattr(rendering, "SMALL", 100)
    async with ModelEndpoint(says(vlm, "yes"), vlm, any_model=True) as endpoint:
        client = client_of(endpoint)
        for _ in range(3):
            await ask(client, [{"role": "system", "content": "look"}, user([data_url(picture(91))])])
    assert len(threads) == 2  # once to prove it, once for the model
    assert threading.get_ident() not in threads


def test_the_pixels_of_a_request_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_messages, "MAX_NEW_PIXELS", 2 * 56 * 56)
    monkeypatch.setattr(wire_messages, "_SEEN", type(wire_messages._SEEN)(2**20))
    shots = [data_url(picture(n)) for n in (101, 102, 103)]
    chat_call(user(shots[:2]))
    chat_call(user(shots))  # two of them are known
    with pytest.raises(APIProblem, match="9408 pixels; expected at most 6272") as caught:
        chat_call(user([data_url(picture(n)) for n in (104, 105, 106)]))
    assert (caught.value.status, caught.value.param) == (413, "messages[0].content[2].image_url.url")
