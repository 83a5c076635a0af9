"""Tools and calls in sessions: what goes out, what comes back, and when a reply is a call."""

from __future__ import annotations

import json
from typing import Any

from tests.serving.worlds import ADD, CALLS_ADD, ask, client_of, fed, says, user, with_tools
from uirl.inference import LoadedModel
from uirl.serving import ModelEndpoint


async def test_tools_there_and_back(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, f"I add\n{CALLS_ADD}", "it is 3")
    async with ModelEndpoint(engine, loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        messages: list[Any] = [{"role": "system", "content": "be brief"}, user("1 + 2?")]
        choice = await ask(client, messages, tools=[ADD])
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I add")
        assert (call.type, call.function.name, json.loads(call.function.arguments)) == (
            "function",
            "add",
            {"a": 1, "b": 2},
        )
        messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        choice = await ask(client, messages, tools=[ADD], tool_choice="auto")
        assert (choice.finish_reason, choice.message.content) == ("stop", "it is 3")
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    text = loaded.tokenizer.decode(engine.requests[1].prompt_ids)
    assert '"name": "add"' in text.partition("1 + 2?")[0]  # the schema, before the question
    assert text.count('<tool_call>\n{"name": "add"') == 1
    assert "<tool_response>\n3\n</tool_response>" in text
    first = record.turns[0]
    assert first.action.tool_calls[0].arguments == {"a": 1, "b": 2}
    assert first.action.thought == "I add"
    assert (first.tool_call.name, first.tool_call.result, first.tool_call.arguments) == ("add", "3", {"a": 1, "b": 2})
    assert record.turns[1].observation.tool_results[0].text == "3"


async def test_a_reply_in_a_rewritten_history_stands_as_the_policy_wrote_it(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    said = '<tool_call>{"arguments":{"b":2,"a":1},"name":"add"}</tool_call>'  # no template would write it so
    async with ModelEndpoint(says(loaded, said, "3"), loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("1 + 2?")], tools=[ADD])
        result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "3"}
        await ask(client, [user("in short: add"), choice.message, result], tools=[ADD])
        record = session.finish(1.0)
    assert record.turns[1].starts_segment
    assert said in loaded.tokenizer.decode(record.turns[1].context_ids)


async def test_two_calls_in_one_reply_have_two_ids(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    async with ModelEndpoint(says(loaded, f"{CALLS_ADD}\n{CALLS_ADD}", "3"), loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("twice")], tools=[ADD])
        first, second = choice.message.tool_calls
        assert choice.message.content is None
        assert first.id != second.id
        results = [{"role": "tool", "tool_call_id": c.id, "content": f"of {c.id}"} for c in (first, second)]
        # the other way a program may write the same message: a dict, arguments with other blanks
        told = choice.message.model_dump(exclude_none=True)
        told["tool_calls"][0]["function"]["arguments"] = '{"b":2,"a":1}'
        await ask(client, [user("twice"), told, *results], tools=[ADD])
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert [result.text for result in record.turns[0].tool_results] == [f"of {first.id}", f"of {second.id}"]


async def test_what_a_library_notes_on_a_reply_is_passed_over_and_recorded(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    async with ModelEndpoint(says(loaded, f"I add\n{CALLS_ADD}", "3"), loaded) as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("1 + 2?")], tools=[ADD])
        # litellm's Message, the openai client's parsed messages and Gemini's signatures, each with what it adds
        told = choice.message.model_dump(exclude_none=True) | {
            "provider_specific_fields": {"refusal": None}, "parsed": None, "annotations": [], "reasoning_content": "so",
            "content": [{"type": "text", "text": "I add", "cache_control": {"type": "ephemeral"}}],
        }  # fmt: skip
        told["tool_calls"][0] |= {"extra_content": {"signature": "x"}, "index": 0}
        told["tool_calls"][0]["function"] |= {"parsed_arguments": {"a": 1}}
        result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "3"}
        await ask(client, [user("1 + 2?"), told, result], tools=[ADD])
        record = session.finish(1.0)
    assert [turn.starts_segment for turn in record.turns] == [True, False]
    assert "ignored_fields" not in record.turns[0].info
    assert set(record.turns[1].info["ignored_fields"]) == {
        "provider_specific_fields", "reasoning_content", "content.cache_control", "tool_calls.extra_content",
        "tool_calls.function.parsed_arguments",
    }  # fmt: skip


async def test_a_call_that_cannot_be_read_is_text_and_so_is_one_that_is_not_wanted(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    async with ModelEndpoint(says(loaded, '<tool_call>{"name": "add", ', CALLS_ADD), loaded) as endpoint:
        session = endpoint.session()
        broken = await ask(client_of(session), [user("x")], tools=[ADD])
        unwanted = await ask(client_of(session), [user("x")], tools=[ADD], tool_choice="none")
        record = session.finish(0.0)
    assert (broken.finish_reason, broken.message.content) == ("stop", '<tool_call>{"name": "add", ')
    assert record.turns[0].action.parse_error
    assert (unwanted.message.tool_calls, unwanted.message.content) == (None, CALLS_ADD)
    assert record.metrics["parse_errors"] == 1


async def test_a_bare_call_is_one_where_the_client_has_a_tool_of_that_name(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, 'add{"a": 1, "b": 2}', 'set{"a": 1}')
    async with ModelEndpoint(engine, loaded, parser="mistral") as endpoint:
        client = client_of(endpoint.session())
        called = await ask(client, [user("x")], tools=[ADD])
        told = await ask(client, [user("x")], tools=[ADD])
    assert [c.function.name for c in called.message.tool_calls or []] == ["add"]
    assert (told.message.tool_calls, told.message.content) == (None, 'set{"a": 1}')


async def test_a_final_answer_that_is_written_as_a_call_is_text(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = says(loaded, "Thought: easy\nFinal Answer: 42", "fine")
    async with ModelEndpoint(engine, loaded, parser="react") as endpoint:
        session = endpoint.session()
        client = client_of(session)
        choice = await ask(client, [user("x")], tools=[ADD])
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == ("42", None, "stop")
        await ask(client, [user("x"), choice.message, user("sure?")], tools=[ADD])
        record = session.finish(1.0)
    # the client knows the answer alone; the history goes on with all that the policy wrote
    assert not record.turns[1].starts_segment
    assert "Thought: easy" in loaded.tokenizer.decode(engine.requests[1].prompt_ids)
