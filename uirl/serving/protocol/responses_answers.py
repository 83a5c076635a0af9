"""Answers of /v1/responses: one body, or the events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from uirl.inference.models.token_bytes import TokenBytes
from uirl.serving.protocol.chat_answers import pieces_of, token_entries, written_arguments
from uirl.serving.protocol.responses_requests import ResponsesCall
from uirl.serving.replies import Answer

_Event = dict[str, Any]


class ResponsesWriter:
    """Writes the answer to one call."""

    def __init__(self, token_bytes: TokenBytes, model: str, call: ResponsesCall, answer: Answer) -> None:
        self._token_bytes, self._call, self._answer = token_bytes, call, answer
        (self._reply,) = answer.replies
        self._ended = self._reply.finish_reason != "length"
        self._head = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "metadata": {},
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            **call.echo,
        }

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self._call.chat.options.stream

    def body(self) -> dict[str, Any]:
        """Return the whole answer."""
        return self._whole(self._items())

    def events(self) -> Iterator[str]:
        """Write the answer as server-sent events. It is complete before the first of them: engines answer at once."""
        for number, event in enumerate(self._events()):
            event |= {"sequence_number": number}
            yield f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"

    def _events(self) -> Iterator[_Event]:
        begun = {**self._head, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        items = self._items()
        for index, item in enumerate(items):
            at = {"output_index": index, "item_id": item["id"]}
            inside = self._message(item, at) if item["type"] == "message" else self._function_call(item, at)
            blank: dict[str, Any] = {"content": []} if "content" in item else {"arguments": ""}
            opened = {**item, "status": "in_progress", **blank}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            yield from inside
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        whole = self._whole(items)
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _message(self, item: dict[str, Any], at: dict[str, Any]) -> Iterator[_Event]:
        (part,) = item["content"]
        at = at | {"content_index": 0}
        empty = {**part, "text": "", "logprobs": []}
        yield {"type": "response.content_part.added", **at, "part": empty}
        for piece in pieces_of(part["text"]):
            yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
        # the type of this event has no bytes
        log_probs = [{name: value for name, value in entry.items() if name != "bytes"} for entry in part["logprobs"]]
        done = {"text": part["text"], "logprobs": log_probs}
        yield {"type": "response.output_text.done", **at, **done}
        yield {"type": "response.content_part.done", **at, "part": part}

    def _function_call(self, item: dict[str, Any], at: dict[str, Any]) -> Iterator[_Event]:
        for piece in pieces_of(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", **at, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **at, **done}

    def _whole(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        options, generation = self._call.chat.options, self._reply.generation
        ids: dict[str, Any] = {}
        if options.token_ids:
            ids = {"prompt_token_ids": list(self._answer.prompt_ids), "token_ids": list(generation.token_ids)}
            ids |= {"given_token_ids": list(self._reply.opening_ids)} if self._reply.opening_ids else {}
        prompt_tokens, response_tokens = len(self._answer.prompt_ids), len(generation.token_ids)
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": response_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + response_tokens,
        }
        why = None if self._ended else {"reason": "max_output_tokens"}
        status = "completed" if self._ended else "incomplete"
        return {**self._head, "status": status, "incomplete_details": why, "output": items, "usage": usage, **ids}

    def _items(self) -> list[dict[str, Any]]:
        """Return the message, where there is one, then the calls."""
        reply, name = self._reply, self._head["id"].removeprefix("resp_")
        items: list[dict[str, Any]] = []
        if reply.content or not reply.calls:
            wanted = self._call.chat.options.log_probs
            entries = [one.write() for one in token_entries(self._token_bytes, reply)] if wanted else []
            part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": entries}
            status = "completed" if self._ended else "incomplete"
            items.append(
                {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": status, "content": [part]}
            )
        for number, call in enumerate(reply.calls):
            call_fields = {"call_id": call.id, "name": call.name, "arguments": written_arguments(call)}
            items.append({"id": f"fc_{name}_{number}", "type": "function_call", "status": "completed", **call_fields})
        return items
