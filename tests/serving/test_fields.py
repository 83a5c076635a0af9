"""The fields of a request: what each means, what holds without it, and by which name it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inference.pictures import picture
from tests.serving.worlds import ADD, data_url, user
from uirl.inference import Generation, SamplingParams
from uirl.parsers import create_parser
from uirl.serving.protocol.chat_requests import CallOptions, read_chat_call, read_completion_call
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.protocol.messages import read_messages
from uirl.serving.replies import AS_IT_LIKES, ToolChoice, tool_reply

OTHER = {"type": "function", "function": {"name": "other"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def chat(**asked: Any) -> Any:
    return read_chat_call({"model": "m", "messages": [user("hello")], **asked})


def completion(**asked: Any) -> Any:
    return read_completion_call({"model": "m", "prompt": "hello", **asked})


def test_a_bare_call_asks_for_one_reply_and_nothing_else() -> None:
    assert chat().options == completion().options == CallOptions("m")
    assert (chat().tools, chat().choice, chat().tools_key) == ((), AS_IT_LIKES, "")
    for ids in ([1], [1, 2]):
        assert completion(prompt=ids).prompt == completion(prompt=[ids]).prompt == tuple(ids)
    assert completion(prompt=["hi"]).prompt == "hi"


def test_what_is_asked_for_arrives() -> None:
    every = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "seed": 4, "max_tokens": 5, "stop_token_ids": [6]}
    for call in (chat(**every, n=2, return_token_ids=True), completion(**every, n=2, return_token_ids=True)):
        assert call.options.fields == every | {"stop_token_ids": (6,)}
        assert (call.options.choices, call.options.token_ids) == (2, True)
    assert chat(max_completion_tokens=5).options.fields == {"max_tokens": 5}
    assert chat(max_completion_tokens=5, max_tokens=5).options.fields == {"max_tokens": 5}
    assert chat(stop="a").options.stop == completion(stop=["a"]).options.stop == ("a",)
    assert chat(logprobs=True).options.log_probs is completion(logprobs=0).options.log_probs is True
    assert chat(tools=[ADD], tool_choice="none").choice == ToolChoice("none")
    assert not ToolChoice("none").reads_calls
    named = {"type": "function", "function": {"name": "add"}}
    for said in ({"tool_choice": named}, {"tool_choice": named["function"] | {"type": "function"}}):
        assert chat(tools=[ADD, OTHER], **said).choice == ToolChoice("add", ("add",))
    assert chat(tools=[ADD, OTHER], tool_choice="required").choice == ToolChoice("required", ("add", "other"))
    assert chat(tools=[ADD], parallel_tool_calls=False).choice == ToolChoice(parallel=False)
    streamed = chat(stream=True, stream_options={"include_usage": True, "include_obfuscation": True})
    assert (streamed.options.stream, streamed.options.include_usage) == (True, True)
    assert chat(stream=True, stream_options={}).options.include_usage is False
    without_effect = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
    for name in (*without_effect, "reasoning_effort", "verbosity"):
        assert chat(**{name: {"any": "thing"}}).options == chat().options


@pytest.mark.parametrize(
    ("asked", "param", "why"),
    [
        ({"logprobs": True, "top_logprobs": 1}, "top_logprobs", "sampled token alone"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls", ""),
        ({"tool_choice": "required"}, "tool_choice", "only allowed with tools"),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice", ""),
        ({"tools": [ADD], "tool_choice": {"type": "web"}}, "tool_choice", ""),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.name", "missing"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
         "tool_choice.function.name", "there is no tool 'sub'"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}, "x": 1}}, "tool_choice.x",
         ""),
        ({"response_format": {"type": "json_object"}}, "response_format", "not constrained"),
        ({"modalities": ["audio"]}, "modalities", ""),
        ({"functions": [ADD]}, "functions", "use tools"),
        ({"function_call": "auto"}, "function_call", "use tool_choice"),
        ({"presence_penalty": 0.5}, "presence_penalty", "another distribution"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "another distribution"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "another distribution"),
        ({"min_p": 0.1}, "min_p", "another distribution"),
        ({"repetition_penalty": 1.1}, "repetition_penalty", "another distribution"),
        ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens", "give one"),
        ({"n": 0}, "n", "expected 1 to 32"),
        ({"n": 33}, "n", "expected 1 to 32"),
        ({"top_k": -2}, "top_k", ""),
        ({"top_k": 2**31}, "top_k", ""),
        ({"seed": 2**63}, "seed", ""),
        ({"seed": -(2**63)}, "seed", ""),
        ({"seed": True}, "seed", "whole number"),
        ({"top_p": 0.0}, "top_p", "must be in"),
        ({"temperature": -0.1}, "temperature", "must be in"),
        ({"temperature": 200}, "temperature", "must be in"),
        ({"temperature": True}, "temperature", ""),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "many"}, "max_tokens", "whole number"),
        ({"stream": 1}, "stream", ""),
        ({"stop": [""]}, "stop", "none of them empty"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": "x" * 257}, "stop", "at most 256"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", ""),
        ({"stop_token_ids": [True]}, "stop_token_ids", ""),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids", "at most 1024"),
        ({"stream_options": {"include_usage": True}}, "stream_options", ""),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", ""),
        ({"tools": [{**ADD, "x": 1}]}, "tools[0].x", ""),
        ({"tools": [{**ADD, "type": "web"}]}, "tools[0].type", "only functions"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", ""),
        ({"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, "tools[0].function.x", ""),
        ({"tools": [ADD] * 1025}, "tools", "at most 1024"),
        ({"temprature": 1}, "temprature", "is not known here"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [user("a")] * 16_385}, "messages", "at most 16384"),
        ({"messages": [user([{"type": "text", "text": "a", "x": 1}])]}, "messages[0].content[0].x", ""),
        ({"messages": [user([{"type": "image_url", "image_url": {"url": "http://x"}}])]},
         "messages[0].content[0].image_url.url", "nothing is fetched"),
        ({"messages": [user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])]},
         "messages[0].content[0].image_url.url", "is not a picture"),
        ({"messages": [user([data_url(picture(1)) | {"x": 1}])]}, "messages[0].content[0].x", ""),
        ({"messages": [{"role": "system", "content": [data_url(picture(1))]}]}, "messages[0].content[0].type", ""),
        ({"messages": [user("a") | {"x": 1}]}, "messages[0].x", ""),
        ({"messages": [{"role": "owner", "content": "a"}]}, "messages[0].role", "expected one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", ""),
        ({"messages": [user(3)]}, "messages[0].content", "a string or a list of parts"),
        ({"messages": [user("a"), {"role": "assistant"}, user("b")]}, "messages[1].content", "neither"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b"}]}, "messages[1]", "not continued"),
        ({"messages": [user("a"), {"role": "assistant", "content": "b", "refusal": "no"}, user("c")]},
         "messages[1].refusal", ""),
        ({"messages": [user("a"), {"role": "assistant", "tool_calls": [CALL | {"type": "web"}]}, user("b")]},
         "messages[1].tool_calls[0].type", ""),
        ({"messages": [user("a"), {"role": "assistant", "tool_calls": [CALL]},
                       {"role": "tool", "tool_call_id": "c1", "content": "b", "x": 1}]}, "messages[2].x", ""),
        ({"messages": [user("a"), {"role": "tool", "tool_call_id": "c9", "content": "b"}]}, "messages[1].tool_call_id",
         "earlier"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_its_name(asked: dict[str, Any], param: str, why: str) -> None:
    with pytest.raises(APIProblem, match=why or None) as told:
        chat(**asked)
    assert (told.value.status, told.value.param) == (400, param)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_completion_that_cannot_be_honoured_is_refused_by_its_name(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(APIProblem) as told:
        completion(**asked)
    assert (told.value.status, told.value.param) == (400, param)


def test_what_says_nothing_is_taken() -> None:
    silent = {"top_logprobs": 0, "parallel_tool_calls": True, "response_format": {"type": "text"}}
    silent |= {"modalities": ["text"], "functions": [], "function_call": "none", "tool_choice": None}
    silent |= {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    silent |= {"repetition_penalty": 1.0, "repeat_penalty": 1, "min_p": 0.0, "typical_p": 1.0}
    assert chat(top_k=-1).options.fields == {"top_k": 0}
    assert chat(**silent) == chat()
    assert completion(echo=False, suffix="", best_of=1, presence_penalty=0).options == completion().options


def test_sampling_that_is_fixed_lets_a_client_ask_for_fewer_tokens_alone() -> None:
    fixed = SamplingParams(max_tokens=8, temperature=0.5, stop_token_ids=(1,))
    asked = chat(temperature=2.0, max_tokens=9, stop_token_ids=[2]).options
    assert asked.sampling(SamplingParams(3), fixed) == SamplingParams(8, 0.5, stop_token_ids=(1, 2))
    assert chat(max_tokens=4, seed=7).options.sampling(SamplingParams(3), fixed).max_tokens == 4
    assert chat(seed=7).options.sampling(SamplingParams(3), fixed).seed == 7
    assert chat(temperature=2.0).options.sampling(SamplingParams(3), None) == SamplingParams(3, 2.0)


def test_tool_messages_carry_the_name_of_the_call_they_answer() -> None:
    told = [
        user("a"),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    message = read_messages(told)[2].message
    assert (message.role, message.name, message.call_id, message.text) == ("tool", "add", "c1", "3")


def test_the_notes_on_replies_are_named_a_few_and_fit_for_the_record() -> None:
    reply = {"role": "assistant", "content": "b"} | {f"note{i}": i for i in range(1000)}
    read = chat(messages=[user("a"), reply, reply, user("c")])
    assert read.ignored == tuple(f"note{i}" for i in range(20))
    long = chat(messages=[user("a"), {"role": "assistant", "content": "b", "\ud83d" + "n" * 10**6: 1}, user("c")])
    assert [len(name) for name in long.ignored] == [60]
    assert long.ignored[0].encode()


def test_calls_without_an_id_get_one_that_follows_from_the_tokens() -> None:
    def ids(prompt: list[int], *given: str) -> list[str]:
        calls = [{"name": "add", "arguments": {}} | ({"id": one} if one else {}) for one in given]
        text = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
        reply = tool_reply(
            Generation((5, 6), (0.0, 0.0), "stop", 0), text, True, create_parser("hermes"), {"add"}, prompt
        )
        assert reply.finish_reason == "tool_calls"
        return [call.id for call in reply.calls]

    first, second = ids([1, 2], "", "")
    assert ids([1, 2], "", "") == [first, second]
    assert len({first, second, *ids([1, 3], "", "")}) == 4
    for one in (first, second):
        assert len(one) == 9
        assert one.isascii()
        assert one.isalnum()
        assert one == one.lower()
