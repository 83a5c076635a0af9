"""Calls of /v1/responses, the newer of OpenAI's two chat APIs, as the chat calls that they are.

Nothing is kept between calls here: a client sends all items of its conversation, as it does without `store`. The items
of one reply (its message and its calls) are one message of the assistant, so a conversation is the same to the policy
and to the record whichever API it goes through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from uirl.runtime.limits import MAX_CALLS
from uirl.runtime.wire import WireModel
from uirl.serving.protocol.chat_requests import (
    CallRequest,
    ChatCall,
    notes_of,
    read_flat_tools,
    read_tool_choice,
    tools_key,
)
from uirl.serving.protocol.fields import (
    Ignored,
    NotedModel,
    Text,
    bad_request,
    only,
    parse,
    parse_one,
    shown,
    whole_text,
)
from uirl.serving.protocol.messages import (
    MAX_MESSAGES,
    Pictures,
    WireMessage,
    assistant_message,
    check_answerable,
    plain_message,
    read_arguments,
    text_of,
    tool_message,
)
from uirl.types import ToolCall

_LOG_PROBS = "message.output_text.logprobs"
_Stateful = Annotated[Any, only(why="nothing is kept between calls; send all items as input")]


class _TextOptions(WireModel):
    format: Annotated[Any, only({"type": "text"}, why="replies are not constrained")] = None
    verbosity: Ignored = None


class ResponsesRequest(CallRequest):
    """The JSON of /v1/responses."""

    input: Any = None
    instructions: Text = ""
    tools: list[Any] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    include: list[Any] = Field(default_factory=list)
    text: _TextOptions | None = None
    previous_response_id: _Stateful = None
    conversation: _Stateful = None
    prompt: _Stateful = None
    background: Annotated[Any, only(False, why="answers are not fetched later")] = None
    truncation: Annotated[Any, only("disabled", why="a prompt that is too long is refused, not shortened")] = None
    top_logprobs: Annotated[Any, only(0, why="engines return the log-prob of the sampled token alone")] = None
    n: Annotated[Any, only(1, why="a response is one reply")] = None
    reasoning: Ignored = None
    max_tool_calls: Ignored = None
    prompt_cache_retention: Ignored = None
    prompt_cache_options: Ignored = None


class _Item(WireModel):
    """What all items may say and nothing here depends on."""

    type: Ignored = None
    id: Ignored = None
    status: Ignored = None


class _Message(_Item):
    """Of the system, the developer or the user."""

    role: Text
    content: Any
    name: Text = ""


class _Reply(_Item, NotedModel):
    """Of the assistant."""

    role: Text
    content: Any = None
    phase: Ignored = None


class _ReplyPart(NotedModel):
    type: Annotated[Any, only("output_text", "input_text", why="a reply is its text and its calls")] = None
    text: Text
    annotations: Ignored = None
    logprobs: Ignored = None


class _FunctionCall(_Item, NotedModel):
    call_id: Text
    name: Text
    arguments: Text


class _FunctionOutput(_Item):
    call_id: Text
    output: Any
    name: Text = ""


class _Reasoning(NotedModel):
    type: Ignored = None


_ITEMS: dict[str, type[WireModel]] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionOutput,
    "reasoning": _Reasoning,
}
_ROLES: dict[str, type[WireModel]] = {"system": _Message, "developer": _Message, "user": _Message, "assistant": _Reply}


def read_responses_call(value: Any) -> ChatCall:
    """Read the call in the JSON of a request. Raises a 400 that names the field."""
    request = parse(ResponsesRequest, value)
    messages = _read_input(request.input, request.instructions)
    tools = read_flat_tools(request.tools)
    names = [tool["function"]["name"] for tool in tools]
    choice = read_tool_choice(request.tool_choice, request.parallel_tool_calls, names)
    options = request.options(request.max_output_tokens, log_probs=_LOG_PROBS in request.include)
    echo = {
        "instructions": request.instructions or None,
        "max_output_tokens": request.max_output_tokens,
        "parallel_tool_calls": request.parallel_tool_calls,
        "temperature": request.temperature,
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": request.tools,
        "top_p": request.top_p,
    }
    return ChatCall(options, messages, tools, tools_key(tools), notes_of(messages), choice, echo)


def _read_input(value: Any, instructions: str) -> tuple[WireMessage, ...]:
    """Return the messages of a conversation: `instructions`, then the items in their order."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise bad_request(f"expected a text or a list of items, got {shown(value)}", "input")
    if len(items) > MAX_MESSAGES:
        raise bad_request(f"expected at most {MAX_MESSAGES} items, got {len(items)}", "input")
    reader = _ItemReader()
    if instructions:
        reader.say("system", instructions, "instructions")
    for i, item in enumerate(items):
        reader.read(item, f"input[{i}]")
    return reader.finished(f"input[{len(items) - 1}]")


@dataclass(slots=True)
class _ItemReader:
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
        """Take one item. Raises a 400 that names the place."""
        is_message = isinstance(value, dict) and value.get("type") in (None, "message")
        models, tag = (_ROLES, "role") if is_message else (_ITEMS, "type")
        item = parse_one(models, tag, value, where)
        if isinstance(item, _Reasoning):
            self._ignored.append("reasoning")
        elif isinstance(item, _FunctionCall):
            self._call(item, where)
        elif isinstance(item, _FunctionOutput):
            self._close()
            text = text_of(_content(item.output), f"{where}.output")
            self.messages.append(tool_message(item.call_id, text, self._names, f"{where}.call_id"))
        elif isinstance(item, _Reply):
            self._reply(item, where)
        elif isinstance(item, _Message):
            self.say("user" if item.role == "user" else "system", item.content, where, item.name)

    def say(self, role: str, content: Any, where: str, name: str = "") -> None:
        """Take a message that is not the assistant's."""
        self._close()
        self.messages.append(plain_message(role, _content(content), where, self._pictures, name))

    def finished(self, where: str) -> tuple[WireMessage, ...]:
        """All messages. Raises a 400 for a conversation that ends with a reply."""
        self._close()
        check_answerable(self.messages, where)
        return tuple(self.messages)

    def _reply(self, item: _Reply, where: str) -> None:
        if self._text is not None or self._calls:
            self._close()
        at = f"{where}.content"
        if not isinstance(item.content, (str, list)):
            raise bad_request(f"expected a text or a list of parts, got {shown(item.content)}", at)
        texts = [whole_text(item.content, at)] if isinstance(item.content, str) else []
        for i, value in enumerate(item.content if isinstance(item.content, list) else []):
            part = parse(_ReplyPart, value, f"{at}[{i}]")
            texts.append(part.text)
            self._ignored += [f"content.{name}" for name in part.noted]
        self._text = "\n".join(texts)
        self._ignored += item.noted

    def _call(self, item: _FunctionCall, where: str) -> None:
        arguments = read_arguments(item.arguments, f"{where}.arguments")
        self._ignored += [f"function_call.{name}" for name in item.noted]
        self._calls.append(ToolCall(item.name, arguments, item.call_id))
        if len(self._calls) > MAX_CALLS:
            raise bad_request(f"expected at most {MAX_CALLS} calls in a reply", f"{where}.call_id")

    def _close(self) -> None:
        """End the reply that is being read."""
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
