"""`tool_choice` 'required' or a named tool: sampled again, with the beginning of a call, all of it on the record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serving.worlds import ADD, CALLS_ADD, Watched, ask, client_of, fed, says, user, with_tools
from uirl import samples_of
from uirl.inference import LoadedModel, SamplingParams, TransformersInferenceEngine
from uirl.parsers import create_parser
from uirl.parsers.base import TextParser
from uirl.rollout.episode import EpisodeLimits
from uirl.serving import AgentSession, ModelEndpoint
from uirl.serving.replies import call_opening
from uirl.types import Action, Trajectory

OTHER = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
ADD_ITSELF = {"type": "function", "function": {"name": "add"}}
REST = ' {"a": 1, "b": 2}}\n</tool_call>'


@pytest.mark.parametrize("format", ["qwen", "hermes", "llama-3", "mistral", "json", "react"])
def test_an_opening_goes_on_as_a_call_in_every_format_that_can(format: str) -> None:
    parser = create_parser(format)
    one, several = call_opening(parser, ["add"]), call_opening(parser, ["add", "sub"])
    whole = {
        "json": ', "a": 1}', "react": ' {"a": 1}', "mistral": ' {"a": 1}}]', "llama-3": ' {"a": 1}}'
    }.get(format, ' {"a": 1}}</tool_call>')  # fmt: skip
    (call,) = parser.parse(one + whole).tool_calls
    assert (call.name, call.arguments) == ("add", {"a": 1})
    assert one.startswith(several)
    assert "add" not in several
    if format in ("qwen", "hermes"):
        assert (one, several) == ('<tool_call>\n{"name": "add", "arguments":', '<tool_call>\n{"name": "')


def test_a_format_without_names_before_arguments_has_no_opening() -> None:
    class ArgumentsFirst(TextParser):
        def render(self, action: Action) -> str:
            return f"{dict(action.tool_calls[0].arguments)} -> {action.tool_calls[0].name}"

    assert call_opening(TextParser(), ["add"]) == ""
    for names in (["add"], ["add", "sub"]):
        assert call_opening(ArgumentsFirst(), names) == ""


async def test_a_call_that_is_missing_is_given_its_beginning(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = Watched(says(loaded, "I would rather talk", REST, "it is 3"))
    async with ModelEndpoint(engine, loaded) as endpoint:
        session = endpoint.session(sampling_seed=5)
        client = client_of(session)
        choice = await ask(client, [user("1 + 2?")], tools=[ADD, OTHER], tool_choice=ADD_ITSELF, logprobs=True,
                           extra_body={"return_token_ids": True})  # fmt: skip
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "add")
        assert json.loads(call.function.arguments) == {"a": 1, "b": 2}
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        last = await ask(client, [user("1 + 2?"), choice.message, result], tools=[ADD, OTHER], tool_choice="auto")
        assert last.message.content == "it is 3"
        record = session.finish(1.0)
    first, second, third = record.turns
    # what the client never saw is a segment of its own, and the conversation goes on from what it saw
    assert [turn.starts_segment for turn in record.turns] == [True, True, False]
    assert fed(record) == [request.prompt_ids for request in engine.requests]
    assert (first.action.text, first.info["sent"]) == ("I would rather talk", False)
    assert "wants a call" in first.action.parse_error == first.info["missed"]
    opening = loaded.tokenizer('<tool_call>\n{"name": "add", "arguments":', add_special_tokens=False)["input_ids"]
    assert second.context_ids == (*first.context_ids, *opening)
    assert loaded.tokenizer.decode(second.response_ids, skip_special_tokens=True) == REST
    assert second.info["given"] == '<tool_call>\n{"name": "add", "arguments":'
    assert (second.info["tool_choice"], "sent" in second.info, second.action.parse_error) == ("add", False, None)
    assert "tool_choice" not in third.info
    # ids and log-probs are those of what was sampled; what was given is told apart
    assert (choice.token_ids, choice.given_token_ids) == (list(second.response_ids), opening)
    assert len(choice.logprobs.content) == len(second.response_ids)
    learned = [sum(sample.response_mask) for sample in samples_of(record)]
    assert learned == [len(first.response_ids), len(second.response_ids) + len(third.response_ids)]
    seeds = [request.sampling.seed for request in engine.requests]
    assert len(set(seeds)) == 3


async def play(loaded: LoadedModel, *said: str, **asked: Any) -> tuple[Any, Trajectory, Watched]:
    """(the choice, the record, the engine) of one call."""
    engine = Watched(says(loaded, *said))
    async with ModelEndpoint(engine, loaded) as endpoint:
        session = endpoint.session()
        choice = await ask(client_of(session), [user("1 + 2?")], **{"tools": [ADD, OTHER]} | asked)
        return choice, session.finish(0.0), engine


async def test_a_reply_that_is_as_wanted_is_sampled_once(lm: LoadedModel) -> None:
    for wanted in ("required", ADD_ITSELF):
        choice, record, engine = await play(with_tools(lm), CALLS_ADD, tool_choice=wanted)
        assert choice.message.tool_calls[0].function.name == "add"
        assert len(engine.requests) == len(record.turns) == 1
        assert "missed" not in record.turns[0].info


async def test_another_tool_than_the_named_one_is_not_what_was_wanted(lm: LoadedModel) -> None:
    other = '<tool_call>{"name": "other", "arguments": {}}</tool_call>'
    choice, record, _ = await play(with_tools(lm), other, REST, tool_choice=ADD_ITSELF)
    assert choice.message.tool_calls[0].function.name == "add"
    assert "got one of 'other'" in record.turns[0].info["missed"]


async def test_a_policy_that_will_not_is_heard_and_the_record_says_so(lm: LoadedModel) -> None:
    choice, record, engine = await play(with_tools(lm), "no", "never", tool_choice="required")
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content == '<tool_call>\n{"name": "never'
    assert [turn.info.get("sent", True) for turn in record.turns] == [False, True]
    assert all(turn.info["missed"] and turn.action.parse_error for turn in record.turns)
    assert len(engine.requests) == 2
    assert record.metrics["parse_errors"] == 2


async def test_several_calls_where_one_is_wanted(lm: LoadedModel) -> None:
    two = f"{CALLS_ADD}\n{CALLS_ADD}"
    choice, record, _ = await play(with_tools(lm), two, CALLS_ADD, parallel_tool_calls=False)
    assert len(choice.message.tool_calls) == 1
    assert "wants one call, got 2" in record.turns[0].info["missed"]
    assert "given" not in record.turns[1].info
    # a greedy policy would say the same again
    choice, record, engine = await play(with_tools(lm), two, CALLS_ADD, parallel_tool_calls=False, temperature=0)
    assert (len(choice.message.tool_calls), len(engine.requests)) == (2, 1)
    assert record.turns[0].info["missed"]


async def test_every_choice_gets_its_call_and_limits_count_calls_of_the_client(lm: LoadedModel) -> None:
    loaded = with_tools(lm)
    engine = TransformersInferenceEngine(loaded)
    async with ModelEndpoint(engine, loaded) as endpoint:
        session: AgentSession = endpoint.session(
            sampling_seed=1, sampling=SamplingParams(max_tokens=6), limits=EpisodeLimits(max_turns=3)
        )
        client = client_of(session)
        made = await client.chat.completions.create(
            model="x", messages=[user("add")], tools=[ADD], tool_choice="required", n=2
        )
        assert len(made.choices) == 2
        assert session.turns == 2
        await ask(client, [user("more")], max_tokens=2)
        record = session.finish(0.0)
    await engine.close()
    assert [turn.info.get("sent", True) for turn in record.turns] == [False, True, False, True, True]
    assert record.stop_reason == "terminated"
    for unsent, sent in (record.turns[:2], record.turns[2:4]):
        assert sent.context_ids[: len(unsent.context_ids)] == unsent.context_ids
        assert len(sent.context_ids) > len(unsent.context_ids)
