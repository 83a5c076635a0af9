"""Calls of /v1/responses, the newer of OpenAI's two chat APIs, as the chat calls that they are.

Nothing is kept between calls here: a client sends all items of its conversation, as it does without `store`. The items
of one reply (its message and its calls) are one message of the assistant, so a conversation is the same to the policy
and to the record whichever API it goes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uirl.runtime.limits import MAX_CALLS
from uirl.serving.problems import bad_request
from uirl.serving.protocol.chat_requests import MAX_TOOLS, ChatCall, notes_of, read_options, tools_key
from uirl.serving.protocol.fields import Fields, shown, whole_text
from uirl.serving.protocol.messages import (
    MAX_MESSAGES,
    Pictures,
    WireMessage,
    assistant_message,
    check_answerable,
    read_arguments,
    read_message,
    tool_message,
)
from uirl.serving.tool_choice import read_tool_choice
from uirl.types import ToolCall

_KINDS = ("message", "function_call", "function_call_output", "reasoning")
_LOG_PROBS = "message.output_text.logprobs"
_STATEFUL = ("previous_response_id", "conversation", "prompt")


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A call of /v1/responses."""

    chat: ChatCall
    echo: Mapping[str, Any] = field(default_factory=dict)
    """What the answer repeats of the request."""


def read_responses_call(value: Any) -> ResponsesCall:
    """The call in the JSON of a request. Raises a 400 that names the field."""
    fields = Fields(value)
    instructions = fields.take("instructions", str, "")
    messages = _read_input(fields.raw("input"), instructions)
    tools = _read_tools(fields.take("tools", list, []))
    parallel = fields.take("parallel_tool_calls", bool, True)
    said = fields.raw("tool_choice")
    choice = read_tool_choice(said, parallel, [tool["function"]["name"] for tool in tools])
    for name in _STATEFUL:
        fields.only(name, why="nothing is kept between calls; send all items as input")
    fields.only("background", False, why="answers are not fetched later")
    fields.only("truncation", "disabled", why="a prompt that is too long is refused, not shortened")
    fields.only("top_logprobs", 0, why="engines return the log-prob of the sampled token alone")
    fields.only("n", 1, why="a response is one reply")
    fields.ignore("reasoning", "max_tool_calls", "prompt_cache_retention", "prompt_cache_options")
    _read_text(fields.take("text", dict, {}))
    include = fields.take("include", list, [])
    most = fields.take("max_output_tokens", int, None)
    options = read_options(fields, most, _LOG_PROBS in include)
    fields.close()
    echo = {
        "instructions": instructions or None,
        "max_output_tokens": most,
        "parallel_tool_calls": parallel,
        "temperature": options.asked.get("temperature"),
        "tool_choice": "auto" if said is None else said,
        "tools": value.get("tools") or [],
        "top_p": options.asked.get("top_p"),
    }
    return ResponsesCall(ChatCall(options, messages, tools, tools_key(tools), notes_of(messages), choice), echo)


def _read_text(value: dict[str, Any]) -> None:
    text = Fields(value, "text")
    text.only("format", {"type": "text"}, why="replies are not constrained")
    text.ignore("verbosity")
    text.close()


def _read_tools(values: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools as the chat API writes them, which is how templates show them."""
    if len(values) > MAX_TOOLS:
        raise bad_request(f"expected at most {MAX_TOOLS} tools, got {len(values)}", "tools")
    tools: list[Mapping[str, Any]] = []
    for i, value in enumerate(values):
        tool = Fields(value, f"tools[{i}]")
        tool.only("type", "function", why="only functions can be called")
        name = tool.take("name", str)
        if not name:
            raise bad_request("is empty", tool.at("name"))
        function = {"name": name}
        for part, kind in (("description", str), ("parameters", dict)):
            said = tool.take(part, kind, None)
            function |= {} if said is None else {part: said}
        Fields(function.get("parameters", {}), tool.at("parameters"))
        tool.take("strict", bool, False)  # not enforced: arguments are what the policy writes, as the guide says
        tool.close()
        tools.append({"type": "function", "function": function})
    return tuple(tools)


def _read_input(value: Any, instructions: str) -> tuple[WireMessage, ...]:
    """The messages of a conversation: `instructions`, then the items in their order."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise bad_request(f"expected a text or a list of items, got {shown(value)}", "input")
    if len(items) > MAX_MESSAGES:
        raise bad_request(f"expected at most {MAX_MESSAGES} items, got {len(items)}", "input")
    reader = _Items()
    if instructions:
        reader.say({"role": "system", "content": instructions}, "instructions")
    for i, item in enumerate(items):
        reader.read(item, f"input[{i}]")
    return reader.finished(f"input[{len(items) - 1}]")


@dataclass(slots=True)
class _Items:
    """Items one by one -> messages."""

    messages: list[WireMessage] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    """Tool of each call id so far."""
    _pictures: Pictures = field(default_factory=Pictures)
    _text: str | None = None
    """Of the reply whose items are being read; None: it has no message."""
    _calls: list[ToolCall] = field(default_factory=list)
    _ignored: list[str] = field(default_factory=list)

    def read(self, value: Any, where: str) -> None:
        """Takes one item. Raises a 400 that names the place."""
        fields = Fields(value, where)
        kind = fields.take("type", str, "message")
        if kind not in _KINDS:
            raise bad_request(f"expected one of {', '.join(_KINDS)}, got {shown(kind)}", fields.at("type"))
        fields.ignore("id", "status")
        if kind == "reasoning":
            self._ignored.append("reasoning")
        elif kind == "function_call":
            self._call(fields)
        elif kind == "function_call_output":
            self._result(fields)
        elif fields.take("role", str) == "assistant":
            self._reply(fields)
        else:
            plain = {name: item for name, item in value.items() if name not in ("type", "id", "status")}
            self.say(plain | {"content": _content(value.get("content"))}, where)

    def say(self, value: Mapping[str, Any], where: str) -> None:
        """Takes a message that is not the assistant's."""
        self._close()
        self.messages.append(read_message(dict(value), where, self._names, self._pictures))

    def finished(self, where: str) -> tuple[WireMessage, ...]:
        """All messages. Raises a 400 for a conversation that ends with a reply."""
        self._close()
        check_answerable(self.messages, where)
        return tuple(self.messages)

    def _reply(self, fields: Fields) -> None:
        if self._text is not None or self._calls:
            self._close()
        content = fields.raw("content")
        texts = [whole_text(content, fields.at("content"))] if isinstance(content, str) else []
        for i, part in enumerate(content if isinstance(content, list) else []):
            inner = Fields(part, f"{fields.at('content')}[{i}]")
            inner.only("type", "output_text", "input_text", why="a reply is its text and its calls")
            texts.append(inner.take("text", str))
            inner.ignore("annotations", "logprobs")
            self._ignored += [f"content.{name}" for name in inner.rest()]
        if not isinstance(content, (str, list)):
            raise bad_request(f"expected a text or a list of parts, got {shown(content)}", fields.at("content"))
        self._text = "\n".join(texts)
        fields.ignore("phase")
        self._ignored += fields.rest()

    def _call(self, fields: Fields) -> None:
        identity, name = fields.take("call_id", str), fields.take("name", str)
        arguments = read_arguments(fields.take("arguments", str), fields.at("arguments"))
        self._ignored += [f"function_call.{rest}" for rest in fields.rest()]
        self._calls.append(ToolCall(name, arguments, identity))
        if len(self._calls) > MAX_CALLS:
            raise bad_request(f"expected at most {MAX_CALLS} calls in a reply", fields.at("call_id"))

    def _result(self, fields: Fields) -> None:
        self._close()
        identity, output = fields.take("call_id", str), fields.raw("output")
        fields.take("name", str, "")
        fields.close()
        said = read_message({"role": "system", "content": _content(output)}, fields.at("output"), {}, self._pictures)
        self.messages.append(tool_message(identity, said.message.text, self._names, fields.at("call_id")))

    def _close(self) -> None:
        """Ends the reply that is being read."""
        if self._text is not None or self._calls:
            reply = assistant_message(self._text or "", tuple(self._calls), self._names, self._ignored)
            self.messages.append(reply)
        self._text, self._calls, self._ignored = None, [], []


def _content(value: Any) -> Any:
    """Content with its parts named as the chat API names them; what is none is left to be refused."""
    return [_part(part) for part in value] if isinstance(value, list) else value


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") in ("input_text", "output_text"):
        return {**part, "type": "text"}
    if part.get("type") != "input_image":
        return part
    image = {"url": part.get("image_url"), "detail": part.get("detail")}
    rest = {name: item for name, item in part.items() if name not in ("type", "image_url", "detail")}
    return {**rest, "type": "image_url", "image_url": image}
