"""/v1/responses through the real openai client: the same policy, the same record, other words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.serving.worlds import ADD, CALLS_ADD, ask, client_of, data_url, fed, says, user, with_tools
from uirl import samples_of
from uirl.inference import LoadedModel, TransformersInferenceEngine
from uirl.serving import ModelEndpoint
from uirl.serving.protocol.chat_requests import read_chat_call
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.protocol.responses_requests import read_responses_call

FLAT_ADD = {"type": "function", **ADD["function"], "strict": True}  # type: ignore[dict-item]
OTHER = {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("streams", [False, True])
async def test_a_conversation_with_tools_there_and_back(lm: LoadedModel, streams: bool) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, f"I add\n{CALLS_ADD}", "it is 3")

    async def respond(**asked: Any) -> Any:
        asked |= {"model": "x", "tools": [FLAT_ADD], "instructions": "be brief"}
        if not streams:
            return await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            events = [event async for event in stream]
            assert [event.sequence_number for event in events] == sorted({e.sequence_number for e in events})
            return await stream.get_final_response()

    async with ModelEndpoint(engine, loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        items: list[Any] = [user("1 + 2?")]
        first = await respond(input=items)
        _, call = first.output
        assert (first.status, first.output_text) == ("completed", "I add")
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1, "b": 2})
        # as openai-agents sends them back, with the notes of the client on them
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
        second = await respond(input=items)
        assert second.output_text == "it is 3"
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    assert sum(samples_of(record)[0].response_mask) == sum(len(turn.response_ids) for turn in record.turns)
    assert (record.turns[0].tool_call.name, record.turns[0].tool_call.result) == ("add", "3")
    assert second.usage.input_tokens == len(engine.requests[1].prompt_ids)
    assert second.usage.output_tokens == len(record.turns[1].response_ids)


async def test_what_is_cut_off_is_incomplete_and_what_is_asked_for_holds(lm: LoadedModel) -> None:
    engine = TransformersInferenceEngine(lm)
    async with ModelEndpoint(engine, lm, any_model=True) as endpoint:
        client = client_of(endpoint)
        extra = {"seed": 3, "top_k": 5, "return_token_ids": True}
        asked: dict[str, Any] = {"model": "x", "input": "hi", "temperature": 0.5, "extra_body": extra}
        made = await client.responses.create(**asked, max_output_tokens=4)
        assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (made.max_output_tokens, made.temperature, made.usage.output_tokens) == (4, 0.5, 4)
        stream = await client.responses.create(**asked, max_output_tokens=4, stream=True)
        kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.incomplete"
        chat = await ask(client, [user("hi")], temperature=0.5, max_tokens=4, extra_body=extra)
        assert chat.token_ids == made.token_ids
    await engine.close()


def test_items_are_the_messages_of_the_chat_api() -> None:
    """So a conversation may go on in the other API, and what stands in both is done alike."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    shot = data_url(picture(1))
    chat = read_chat_call(
        {
            "model": "x",
            "tools": [ADD],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            "messages": [
                {"role": "system", "content": "be brief"},
                user([{"type": "text", "text": "look"}, shot]),
                {"role": "assistant", "content": "well", "tool_calls": [call, {**call, "id": "c2"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "1"},
                {"role": "tool", "tool_call_id": "c2", "content": "2"},
                {"role": "assistant", "tool_calls": [{**call, "id": "c3"}]},
                {"role": "tool", "tool_call_id": "c3", "content": "3"},
                {"role": "developer", "content": "go on"},
            ],
        }
    )
    said = {"type": "function_call", "name": "add", "arguments": '{"a": 1}'}
    items = read_responses_call(
        {
            "model": "x",
            "tools": [{key: value for key, value in FLAT_ADD.items() if key != "strict"}],
            "tool_choice": {"type": "function", "name": "add"},
            "instructions": "be brief",
            "input": [
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "detail": "low", "image_url": shot["image_url"]["url"]},
                ]},
                {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                    {"type": "output_text", "text": "well", "annotations": [], "logprobs": []}
                ]},
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {**said, "call_id": "c1", "id": "fc_1", "status": "completed"},
                {**said, "call_id": "c2"},
                {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
                {"type": "function_call_output", "call_id": "c2", "output": "2"},
                {**said, "call_id": "c3"},
                {"type": "function_call_output", "call_id": "c3", "output": "3"},
                {"role": "developer", "content": "go on"},
            ],
        }
    )  # fmt: skip
    assert [message.key for message in items.messages] == [message.key for message in chat.messages]
    assert [message.message.as_hf() for message in items.messages] == [m.message.as_hf() for m in chat.messages]
    assert (items.tools_key, items.choice, items.ignored) == (chat.tools_key, chat.choice, ("reasoning",))


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ({"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]},
         "input[0].content[0].image_url.url"),
        ({"input": [user("a"), {"role": "assistant", "content": "b"}]}, "input[1]"),
        ({"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "add", "arguments": "{"}]},
         "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "3"}]}, "input[0].call_id"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"x": 1}}, "text.x"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{**FLAT_ADD, "x": 1}]}, "tools[0].x"),
        ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_its_name(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(APIProblem) as told:
        read_responses_call({"model": "x", "input": "hi", **asked})
    assert (told.value.status, told.value.param) == (400, param)
