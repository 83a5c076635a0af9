"""Answers of /v1/responses: one body, or the events of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from uirl.inference.models.token_bytes import TokenBytes
from uirl.serving.protocol.chat_answers import TokenOut, pieces_of, token_entries, written_arguments
from uirl.serving.protocol.responses_requests import ResponsesCall
from uirl.serving.replies import Answer


class ResponseModel(BaseModel):
    """One object of a response. All its fields are written: the API has a null where there is nothing."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def write(self) -> dict[str, Any]:
        """Return the JSON form."""
        return self.model_dump()


class TextPart(ResponseModel):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[TokenOut] = []


class MessageItem(ResponseModel):
    """A message of the policy."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: str
    content: list[TextPart]


class CallItem(ResponseModel):
    """A call of a function."""

    id: str
    type: Literal["function_call"] = "function_call"
    status: str = "completed"
    call_id: str
    name: str
    arguments: str


class ResponseUsage(ResponseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int] = {"reasoning_tokens": 0}
    total_tokens: int


class ResponseBody(ResponseModel):
    """A whole response, or its beginning; beside these fields it repeats those of the request."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: str = "in_progress"
    output: list[MessageItem | CallItem] = []
    usage: ResponseUsage | None = None
    error: None = None
    incomplete_details: dict[str, str] | None = None
    metadata: dict[str, str] = {}
    previous_response_id: None = None
    reasoning: dict[str, None] = {"effort": None, "summary": None}
    store: bool = False
    text: dict[str, dict[str, str]] = {"format": {"type": "text"}}
    truncation: Literal["disabled"] = "disabled"


class Event(ResponseModel):
    """One event of a stream; beside these fields it has those of its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


_Fields = dict[str, Any]
"""The fields of an event."""


class ResponsesWriter:
    """Writes the answer to one call."""

    def __init__(self, token_bytes: TokenBytes, model: str, call: ResponsesCall, answer: Answer) -> None:
        self._token_bytes, self._call, self._answer = token_bytes, call, answer
        (self._reply,) = answer.replies
        self._ended = self._reply.finish_reason != "length"
        self._name = uuid.uuid4().hex
        self._begun = ResponseBody(id=f"resp_{self._name}", created_at=int(time.time()), model=model, **call.echo)

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self._call.chat.options.stream

    def body(self) -> ResponseBody:
        """Return the whole answer."""
        return self._whole(self._items())

    def events(self) -> Iterator[str]:
        """Write the answer as server-sent events. It is complete before the first of them: engines answer at once."""
        for number, fields in enumerate(self._events()):
            event = Event(sequence_number=number, **fields)
            yield f"event: {event.type}\ndata: {event.model_dump_json()}\n\n"

    def _events(self) -> Iterator[_Fields]:
        yield {"type": "response.created", "response": self._begun}
        yield {"type": "response.in_progress", "response": self._begun}
        items = self._items()
        for index, item in enumerate(items):
            at = {"output_index": index, "item_id": item.id}
            inside = self._message(item, at) if isinstance(item, MessageItem) else self._function_call(item, at)
            blank: _Fields = {"content": []} if isinstance(item, MessageItem) else {"arguments": ""}
            opened = item.model_copy(update={"status": "in_progress", **blank})
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            yield from inside
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        whole = self._whole(items)
        yield {"type": f"response.{whole.status}", "response": whole}

    def _message(self, item: MessageItem, at: _Fields) -> Iterator[_Fields]:
        (part,) = item.content
        at = at | {"content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": TextPart(text="")}
        for piece in pieces_of(part.text):
            yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
        # the type of this event has no bytes
        log_probs = [entry.model_dump(exclude={"bytes"}) for entry in part.logprobs]
        yield {"type": "response.output_text.done", **at, "text": part.text, "logprobs": log_probs}
        yield {"type": "response.content_part.done", **at, "part": part}

    def _function_call(self, item: CallItem, at: _Fields) -> Iterator[_Fields]:
        for piece in pieces_of(item.arguments):
            yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
        done = {"name": item.name, "arguments": item.arguments}
        yield {"type": "response.function_call_arguments.done", **at, **done}

    def _whole(self, items: list[MessageItem | CallItem]) -> ResponseBody:
        options, generation = self._call.chat.options, self._reply.generation
        ids: _Fields = {}
        if options.token_ids:
            ids = {"prompt_token_ids": list(self._answer.prompt_ids), "token_ids": list(generation.token_ids)}
            ids |= {"given_token_ids": list(self._reply.opening_ids)} if self._reply.opening_ids else {}
        prompt_tokens, response_tokens = len(self._answer.prompt_ids), len(generation.token_ids)
        usage = ResponseUsage(
            input_tokens=prompt_tokens,
            input_tokens_details={"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
            output_tokens=response_tokens,
            total_tokens=prompt_tokens + response_tokens,
        )
        why = None if self._ended else {"reason": "max_output_tokens"}
        status = "completed" if self._ended else "incomplete"
        ended = {"status": status, "incomplete_details": why, "output": items, "usage": usage}
        return self._begun.model_copy(update=ended | ids)

    def _items(self) -> list[MessageItem | CallItem]:
        """Return the message, where there is one, then the calls."""
        reply = self._reply
        items: list[MessageItem | CallItem] = []
        if reply.content or not reply.calls:
            wanted = self._call.chat.options.log_probs
            part = TextPart(text=reply.content, logprobs=token_entries(self._token_bytes, reply) if wanted else [])
            status = "completed" if self._ended else "incomplete"
            items.append(MessageItem(id=f"msg_{self._name}", status=status, content=[part]))
        for number, call in enumerate(reply.calls):
            arguments = written_arguments(call)
            items.append(CallItem(id=f"fc_{self._name}_{number}", call_id=call.id, name=call.name, arguments=arguments))
        return items
