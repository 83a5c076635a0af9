"""Conversations and structured calls as the chat API writes them, there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inference.openai.world import ADD, TALK, asked_of
from tests.inference.pictures import picture
from uirl.images import ImageStore, data_url
from uirl.inference import ChatRenderer, LoadedModel, Message
from uirl.inference.openai.answers import ReplyMessage
from uirl.inference.openai.wire import reply_text, wire_messages
from uirl.parsers import create_parser
from uirl.runtime.wire import WireError
from uirl.types import ToolCall


async def test_structured_calls_become_text_that_the_parser_reads_and_go_back_structured(
    make: Any, lm: LoadedModel
) -> None:
    engine, server = make(lm, "chat")
    engine.tools = [ADD]
    chat = ChatRenderer(lm)
    calls = [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": "é}{"}'}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": ""}},
    ]
    server.scripted += [({"role": "assistant", "content": "Two sums.", "tool_calls": calls}, "tool_calls")]
    made = await engine.generate(asked_of(lm))
    assert server.seen[-1].body["tools"] == [ADD]
    assert made.finish_reason == "stop"
    said = chat.decode(made.token_ids)
    action = create_parser("qwen").parse(said)
    assert [(c.name, dict(c.arguments)) for c in action.tool_calls] == [("add", {"a": 1, "b": "é}{"}), ("add", {})]
    server.scripted += [({"role": "assistant", "content": "3"}, "stop")]
    talk = (*TALK, Message("assistant", said), Message("tool", "3", name="add"), Message("tool", "0", name="add"))
    await engine.generate(asked_of(lm, talk))  # the stand-in refuses what OpenAI would refuse
    sent = server.seen[-1].body["messages"]
    assert sent[2]["content"] == "Two sums."
    assert [c["function"]["arguments"] for c in sent[2]["tool_calls"]] == ['{"a": 1, "b": "é}{"}', "{}"]
    ids = [c["id"] for c in sent[2]["tool_calls"]]
    assert sent[3:] == [
        {"role": "tool", "tool_call_id": ids[0], "content": "3"},
        {"role": "tool", "tool_call_id": ids[1], "content": "0"},
    ]


def test_what_cannot_be_structured_stays_text() -> None:
    broken = reply_text(
        ReplyMessage.read({"content": None, "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1'}}]})
    )
    assert create_parser("qwen").parse(broken).parse_error is not None
    talk = [Message("assistant", broken), Message("tool", "no JSON", name="add")]
    assert wire_messages(talk) == [
        {"role": "assistant", "content": broken},
        {"role": "user", "content": "<tool_response>\nno JSON\n</tool_response>"},
    ]


def test_calls_of_others_keep_their_ids() -> None:
    calls = (ToolCall("add", {"a": 1}, id="x"), ToolCall("add", {"a": 2}, id="y"))
    talk = [
        Message("assistant", tool_calls=calls),
        Message("tool", "2", name="add", call_id="y"),
        Message("tool", "1", name="add", call_id="x"),
        Message("tool", "nobody asked", name="add"),
    ]
    sent = wire_messages(talk)
    assert sent[0]["content"] is None
    assert [c["id"] for c in sent[0]["tool_calls"]] == ["x", "y"]
    assert [m.get("tool_call_id") for m in sent[1:]] == ["y", "x", None]
    assert sent[3]["role"] == "user"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "plain"}, "plain"),
        ({"content": None}, ""),
        (
            {"function_call": {"name": "add", "arguments": {"a": 1}}},
            '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        ),
    ],
)
def test_the_text_of_a_message(message: dict[str, Any], text: str) -> None:
    assert reply_text(ReplyMessage.read(message)) == text


def test_calls_in_a_text_that_nothing_answers_stay_text() -> None:
    act = '<thinking>tap</thinking>\n<tool_call>\n{"name": "mobile_use", "arguments": {"action": "wait"}}\n</tool_call>'
    seen = [Message("user", "go"), Message("assistant", act), Message("user", "a picture")]
    assert wire_messages(seen)[1] == {"role": "assistant", "content": act}
    answered = wire_messages([*seen[:2], Message("tool", "done"), seen[2]])
    assert [call["function"]["name"] for call in answered[1]["tool_calls"]] == ["mobile_use"]
    assert answered[2]["role"] == "tool"


@pytest.mark.parametrize(
    "message",
    [
        *(None, "text", {"tool_calls": [{"id": "x"}]}, {"tool_calls": ["add"]}, {"tool_calls": 5}),
        *({"content": 5}, {"content": {"text": "x"}}, {"content": True}),
    ],
)
def test_a_misshapen_message_is_a_failure(message: Any) -> None:
    with pytest.raises(WireError, match=r"expected (an object|a string|a list)|is missing"):
        ReplyMessage.read(message, "message")


async def test_half_a_character_that_a_model_wrote_does_not_end_the_run(make: Any, lm: LoadedModel) -> None:
    engine, server = make(lm, "chat")
    asked = asked_of(lm)
    await engine.generate(asked)
    call = {"id": "x", "function": {"name": "say", "arguments": {"word": "\ud83d"}}}
    server.scripted += [({"content": "no \ud83d"}, "stop"), ({"content": None, "tool_calls": [call]}, "stop")]
    for _ in range(2):
        made = await engine.generate(asked)
        assert made.finish_reason == "stop"
        assert len(made.token_ids) > 1
    assert reply_text(ReplyMessage.read({"content": "\ud83d\ude00 and \ud83d"})) == "\U0001f600 and \ufffd"


# -- trouble ---------------------------------------------------------------------------------------------------


def test_what_goes_out_is_json(lm: LoadedModel) -> None:
    talk = [Message("user", "half a pair \ud83d", (picture(1),))]
    assert "\\ud83d" in json.dumps(wire_messages(talk))


def test_what_users_say_may_be_parts() -> None:
    shot = ImageStore().put(picture(1))
    talk = [Message("system", "s"), Message("user", "u"), Message("user", "", (shot,)), Message("assistant", "a")]
    sent = wire_messages([*talk, Message("user", "")], text_parts=True)
    url = data_url(shot.data)
    assert [message["content"] for message in sent] == [
        "s",
        [{"type": "text", "text": "u"}],
        [{"type": "image_url", "image_url": {"url": url}}],
        "a",
        [{"type": "text", "text": ""}],
    ]
