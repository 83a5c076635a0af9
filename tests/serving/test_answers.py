"""What the endpoint writes, against the types of the `openai` package: strictly, and with no field that they lack."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from uirl.inference import LoadedModel
from uirl.inference.base import Generation
from uirl.inference.models.token_bytes import TokenBytes
from uirl.parsers import create_parser
from uirl.serving.protocol.answers import writer_of
from uirl.serving.protocol.chat_requests import CallOptions, ChatCall, CompletionCall
from uirl.serving.protocol.responses_requests import read_responses_call
from uirl.serving.replies import Answer, Reply, text_reply, tool_reply

BESIDE = {"token_ids", "prompt_token_ids", "given_token_ids", "store", "name"}
"""What vLLM and we add where a client asks for ids; `store` of a response and `name` of a call that is done, which
OpenAI sends and not every version of the package names."""
EVENTS = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
adapter = cache(TypeAdapter)
CALL = 'One sum.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é \\"x\\""}}\n</tool_call>'


def check(kind: Any, value: Any) -> None:
    """Assert that `value` is a `kind` of the package, with no field that it does not have."""
    read = adapter(kind).validate_python(value, strict=True)
    unknown = [(type(model), name) for model in models_in(read) for name in model.model_extra or {}]
    assert not [pair for pair in unknown if pair[1] not in BESIDE], unknown


def models_in(value: Any) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from models_in(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from models_in(item)


def answer_of(loaded: LoadedModel, *texts: str) -> Answer:
    replies = []
    for text in texts:
        ids = tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])
        sampled = Generation(ids, (-0.5,) * len(ids), "stop", 3, cached_tokens=2)
        called = "<tool_call>" in text
        parser = create_parser("qwen")
        reply: Reply = (
            tool_reply(sampled, text, True, parser, ["add"], [10, 11]) if called else text_reply(sampled, text, True)
        )
        replies.append(reply)
    return Answer((10, 11, 12), tuple(replies))


def pieces(events: Iterator[str]) -> list[dict[str, Any]]:
    lines = [line for event in events for line in event.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def said(choice: Any) -> list[Any]:
    calls = [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]
    log_probs = choice.logprobs and choice.logprobs.content
    return [choice.message.role, choice.message.content or "", calls, choice.finish_reason, log_probs]


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("texts", [("hello wörld",), (CALL,), ("",), ("two", CALL)])
def test_chat_answers_are_those_of_the_package(lm: LoadedModel, texts: tuple[str, ...], more: bool) -> None:
    options = CallOptions("m", stream=True, include_usage=more, log_probs=more, token_ids=more)
    writer = writer_of(TokenBytes(lm), "m", ChatCall(options, ()), answer_of(lm, *texts))
    check(ChatCompletion, writer.body())
    chunks = pieces(writer.events())
    state = ChatCompletionStreamState()
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    whole, streamed = ChatCompletion.model_validate(writer.body()), state.get_final_completion()
    assert [said(choice) for choice in streamed.choices] == [said(choice) for choice in whole.choices]
    assert whole.choices[0].message.content == ("One sum." if CALL in texts[0] else texts[0])
    assert streamed.usage == (whole.usage if more else None)
    assert [("usage" in chunk) for chunk in chunks] == [more] * len(chunks)
    assert [("prompt_token_ids" in chunk) for chunk in chunks] == [more] + [False] * (len(chunks) - 1)


@pytest.mark.parametrize("more", [False, True])
def test_completions_are_those_of_the_package(lm: LoadedModel, more: bool) -> None:
    options = CallOptions("m", stream=True, include_usage=more, log_probs=more, token_ids=more)
    writer = writer_of(TokenBytes(lm), "m", CompletionCall(options, "hi"), answer_of(lm, "a b", "c"))
    check(Completion, writer.body())
    chunks = pieces(writer.events())
    for chunk in chunks:
        # OpenAI sends null before the last piece, which the type of the package does not say
        choices = [choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]]
        check(Completion, chunk | {"choices": choices})
    assert "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == 0) == "a b"


@pytest.mark.parametrize("more", [{}, {"include": ["message.output_text.logprobs"], "return_token_ids": True}])
@pytest.mark.parametrize("text", ["hello wörld", CALL, CALL + CALL, ""])
def test_responses_are_those_of_the_package(lm: LoadedModel, text: str, more: dict[str, Any]) -> None:
    call = read_responses_call({"model": "m", "input": "hi", "stream": True, **more})
    writer = writer_of(TokenBytes(lm), "m", call, answer_of(lm, text))
    check(Response, whole := writer.body())
    events = pieces(writer.events())
    for event in events:
        check(EVENTS[event["type"]], event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[-1]["type"], events[-1]["response"]) == ("response.completed", whole)
    streamed: defaultdict[str, str] = defaultdict(str)
    for event in events:
        streamed[event.get("item_id", "")] += event.get("delta", "")
    for item in whole["output"]:
        assert streamed[item["id"]] == (item["content"][0]["text"] if "content" in item else item["arguments"])
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == whole["output"]
