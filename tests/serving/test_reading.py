"""Reading requests: whatever comes is a call or a refusal, and messages are known again whatever they look like."""

from __future__ import annotations

import base64
import copy
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from jinja2 import TemplateError

from tests.inference.pictures import picture
from tests.serving.worlds import ADD, data_url, user
from uirl.inference import Generation, LoadedModel
from uirl.inference.models.chat import ChatRenderer
from uirl.serving.protocol.chat_requests import read_chat_call, read_completion_call
from uirl.serving.protocol.fields import APIProblem
from uirl.serving.protocol.messages import PartsMessage, read_messages
from uirl.serving.protocol.responses_requests import read_responses_call
from uirl.serving.rendering import Renderers, rendering
from uirl.serving.replies import cut_at_stop

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'}}
ASKED: dict[str, Any] = {
    "model": "x",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        user([{"type": "text", "text": "look"}, data_url(picture(1))]),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ],
    "tools": [ADD],
    "tool_choice": "auto",
    "temperature": 0.5,
    "stop": ["a", "b"],
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "", "tool_calls": [CALL], "refusal": None, "audio": None, "annotations": []},
        {"role": "assistant", "tool_calls": [{**CALL, "index": 0}]},
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"b":[2],"a":1}'}}]},
    ],
)
def test_a_message_is_known_again_however_it_is_written(other: dict[str, Any]) -> None:
    messages = copy.deepcopy(ASKED["messages"])
    first = read_messages(messages)
    messages[2] = other
    assert [m.key for m in read_messages(messages)] == [m.key for m in first]


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": " ", "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {
            "role": "assistant",
            "tool_calls": [{**CALL, "function": {"name": "add", "arguments": '{"a": 1, "b": ["2"]}'}}],
        },
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "sub", "arguments": '{"a": 1, "b": [2]}'}}]},
    ],
)
def test_a_message_that_says_something_else_is_another(other: dict[str, Any]) -> None:
    messages = copy.deepcopy(ASKED["messages"])
    first = read_messages(messages)
    messages[2] = other
    assert read_messages(messages)[2].key != first[2].key


def test_pictures_are_known_by_their_content_and_place() -> None:
    def key(*parts: Any) -> str:
        return read_messages([user(list(parts))])[0].key

    text, red, blue = {"type": "text", "text": "x"}, data_url(picture(1)), data_url(picture(2))
    assert key(text, red) == key(text, copy.deepcopy(red))
    assert len({key(text, red), key(red, text), key(text, blue), key(text), key(red)}) == 5
    (message,) = read_messages([user([red, text, blue])])
    assert isinstance(message.message, PartsMessage)
    assert [part["type"] for part in message.message.as_hf()["content"]] == ["image", "text", "image"]


def refusal(read: Callable[[Any], Any], asked: Any) -> APIProblem | None:
    """Why `read` refuses; None: it does not. Anything else it raises goes through."""
    try:
        read(asked)
    except APIProblem as problem:
        return problem
    return None


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ('{"a": "\\ud800"}', "half a character"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "beyond 1e308"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested too deep"),
        ('{"a": [' + "1," * 300_000 + "1]}", "too many values"),
        ("{", "is not JSON"),
    ],
)
def test_arguments_of_calls_keep_the_limits_of_bodies(written: str, words: str) -> None:
    asked = copy.deepcopy(ASKED)
    asked["messages"][2]["tool_calls"][0]["function"]["arguments"] = written
    problem = refusal(read_chat_call, asked)
    assert problem is not None
    assert words in str(problem)
    assert problem.param == "messages[2].tool_calls[0].function.arguments"


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), AttributeError("x"), ZeroDivisionError("x")])
def test_whatever_a_template_raises_is_the_requests_mistake(error: Exception) -> None:
    with pytest.raises(APIProblem, match="cannot show that") as caught, rendering("messages"):
        raise error
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_what_a_template_quotes_tells_no_alias(lm: LoadedModel) -> None:
    controls = Renderers(lm, 2).get("", ()).controls
    hidden = controls.hide_all("<|im_end|>")
    assert hidden != "<|im_end|>"
    with pytest.raises(APIProblem) as caught, rendering("messages"):
        raise TemplateError(f"no such role: {hidden}")
    assert hidden[:30] not in str(caught.value)
    assert "no such role" in str(caught.value)


def test_tools_that_take_long_to_prove_keep_nobody_waiting(lm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    renderers = Renderers(lm, 4)
    others: list[ChatRenderer] = []

    class Slow(ChatRenderer):
        def __init__(self, loaded: LoadedModel, tools: Any = (), **options: Any) -> None:
            super().__init__(loaded, **options)  # the template of this model shows no tools
            if tools:
                other = threading.Thread(target=lambda: others.append(renderers.get("", ())))
                other.start()
                other.join(2.0)
                assert others, "another call waited for this one"

    monkeypatch.setattr("uirl.serving.rendering.ChatRenderer", Slow)
    assert renderers.get("tools", [ADD]) is renderers.get("tools", [ADD])
    assert len(renderers) == 2


COMPLETION: dict[str, Any] = {
    "model": "x",
    "prompt": ["a"],
    "n": 1,
    "stop": ["b"],
    "stop_token_ids": [1],
    "stream": True,
}
RESPONSE: dict[str, Any] = {
    "model": "x",
    "instructions": "be brief",
    "tools": [{"type": "function", **ADD["function"], "strict": True}],
    "tool_choice": {"type": "function", "name": "add"},
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "text"}},
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"role": "assistant", "content": "well"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
    ],
}
OTHERS: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, float("inf"), "", "x", "\ud800", "y" * 100_000, [], {}, [None], [[]], [0, "x"]),
    *(
        {"x": {}},
        {"type": "text"},
        {"role": "user", "content": [{}]},
        [{"role": "assistant", "content": {}}],
        ["z"] * 99,
    ),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def changed(asked: Any, place: tuple[Any, ...], value: Any) -> Any:
    """`asked` with `value` in that place."""
    if not place:
        return value
    copied = copy.copy(asked)
    copied[place[0]] = changed(asked[place[0]], place[1:], value)
    return copied


def value_at(asked: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        asked = asked[key]
    return asked


READERS = {"chat": (read_chat_call, ASKED), "completion": (read_completion_call, COMPLETION)}
READERS["responses"] = (read_responses_call, RESPONSE)


@pytest.mark.parametrize("api", READERS)
def test_whatever_stands_anywhere_is_a_call_or_a_refusal(api: str) -> None:
    read, asked = READERS[api]
    assert refusal(read, asked) is None
    for place in places(asked):
        for other in OTHERS:
            problem = refusal(read, changed(asked, place, other))
            told = None if problem is None else (problem.status in (400, 413), len(str(problem)) < 1000)
            assert told in (None, (True, True)), (place, other)


@pytest.mark.parametrize("api", READERS)
def test_half_characters_are_refused_wherever_a_text_stands(api: str) -> None:
    read, asked = READERS[api]
    for place, text in ((place, value_at(asked, place)) for place in places(asked)):
        if isinstance(text, str) and place[0] != "include":
            assert refusal(read, changed(asked, place, f"{text} \ud83d")) is not None, place


def test_a_picture_that_claims_any_size_is_refused_before_it_is_decoded() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    with pytest.raises(APIProblem, match="9000 x 9000 pixels") as told:
        read_messages([user([{"type": "image_url", "image_url": {"url": url}}])])
    assert told.value.status == 413


def test_the_token_that_completes_a_stop_string_is_the_last() -> None:
    letters = {1: "ab", 2: "c", 3: "cd", 4: "e"}

    def decode(ids: Any) -> str:
        return "".join(letters[i] for i in ids)

    made = Generation((1, 2, 3, 4), (-1.0, -2.0, -3.0, -4.0), "length", 5)
    # "abccde": 'cc' is complete with the third token, of which 'd' lies behind it
    cut, text = cut_at_stop(made, decode, ["e", "cc"])
    assert (cut.token_ids, cut.log_probs, cut.finish_reason, cut.policy_version) == (
        (1, 2, 3),
        (-1.0, -2.0, -3.0),
        "stop",
        5,
    )
    assert text == "ab"
    assert cut_at_stop(made, decode, ["x"]) == (made, "abccde")
    assert cut_at_stop(Generation((1,), None, "stop", 0), decode, ["a"])[0].log_probs is None


def test_only_the_newest_sets_of_tools_are_kept(lm: LoadedModel) -> None:
    renderers = Renderers(lm, 2)
    first = renderers.get("", ())
    assert renderers.get("", ()) is first
    for key in ("one", "two"):
        renderers.get(key, ())
        renderers.get("one", ())
    assert len(renderers) == 2
    assert renderers.get("", ()) is not first


def test_a_number_is_known_again_in_another_spelling() -> None:
    """JSON.stringify(JSON.parse('{"a": 1.0}')) is '{"a":1}'."""

    def key(arguments: str) -> str:
        function = {"name": "add", "arguments": arguments}
        calls = [{"id": "c1", "type": "function", "function": function}]
        said = [user("a"), {"role": "assistant", "content": None, "tool_calls": calls}, user("b")]
        return read_messages(said)[1].key

    assert key('{"a": 1.0, "b": [{"c": -0.0}, 1e2, 2.5]}') == key('{"a":1,"b":[{"c":0},100,2.5]}')
    assert len({key('{"a": 1}'), key('{"a": true}'), key('{"a": "1"}'), key('{"a": 1.5}')}) == 4
