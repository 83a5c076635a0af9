"""Answers as OpenAI writes them, of both chat APIs and of completions: one body, or the events of a stream.

An answer is complete before its first event is sent: engines answer at once.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from uirl.inference.models.token_bytes import TokenBytes
from uirl.runtime.wire import dumps
from uirl.serving.protocol.chat_requests import CallOptions, ChatCall, CompletionCall
from uirl.serving.replies import Answer, Reply
from uirl.types import ToolCall

JSON = dict[str, Any]
_PIECES = re.compile(r"\S+\s*|\s+")
"""What a stream sends at a time: words."""


class Writer:
    """Writes the answer to a call of chat completions, or of completions. A null and an absent field differ for
    clients."""

    def __init__(self, token_bytes: TokenBytes, model: str, call: ChatCall | CompletionCall, answer: Answer) -> None:
        self._token_bytes, self._options, self._answer = token_bytes, call.options, answer
        self._chat = chat = isinstance(call, ChatCall)
        self._head: JSON = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"policy-{answer.version}",
        }

    def body(self) -> JSON:
        """Return the whole answer."""
        choices = []
        for index, reply in enumerate(self._answer.replies):
            content = {"message": _message(reply)} if self._chat else {"text": reply.content}
            choices.append({"index": index, **content, **self._end(reply)})
        return {**self._head, "choices": choices, "usage": self._usage(), **self._prompt_ids()}

    def events(self) -> Iterator[str]:
        """Yield the answer as server-sent events."""
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        # a client that asked for the usage finds the key in every chunk
        rest: JSON = {"usage": None} if self._options.include_usage else {}
        prompt = self._prompt_ids()  # once: a long prompt in every piece of a long reply would be gigabytes
        for index, reply in enumerate(self._answer.replies):
            for piece in self._pieces(reply):
                yield _event({**head, "choices": [{"index": index, **piece}], **rest, **prompt})
                prompt = {}
        if self._options.include_usage:
            yield _event({**head, "choices": [], "usage": self._usage()})
        yield "data: [DONE]\n\n"

    def _pieces(self, reply: Reply) -> Iterator[JSON]:
        """Yield the fields of the choices of a stream; the last has the log-probs."""
        going: JSON = {"finish_reason": None, "logprobs": None}
        if self._chat:
            for delta in _deltas(reply):
                yield {"delta": delta, **going}
        else:
            for piece in _PIECES.findall(reply.content):
                yield {"text": piece, **going}
        yield {**({"delta": {}} if self._chat else {"text": ""}), **self._end(reply)}

    def _end(self, reply: Reply) -> JSON:
        """Return the fields of a reply that are known when it ends."""
        return {
            "finish_reason": reply.finish_reason,
            "logprobs": self._log_probs(reply) if self._options.log_probs else None,
            **_ids(self._options, reply),
        }

    def _usage(self) -> JSON:
        """Return the token counts. The prompt counts once, however many choices it has."""
        generations = [reply.generation for reply in self._answer.replies]
        prompt, sampled = len(self._answer.prompt_ids), sum(len(g.token_ids) for g in generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": max(g.cached_tokens for g in generations)},
        }

    def _log_probs(self, reply: Reply) -> JSON:
        entries = _token_entries(self._token_bytes, reply)
        if self._chat:
            return {"content": entries, "refusal": None}
        words, values = [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]
        return {
            "tokens": words,
            "token_logprobs": values,
            "top_logprobs": [{word: value} for word, value in zip(words, values, strict=True)],
            "text_offset": list(accumulate(map(len, words), initial=0))[:-1],
        }

    def _prompt_ids(self) -> JSON:
        return {"prompt_token_ids": list(self._answer.prompt_ids)} if self._options.token_ids else {}


class ResponsesWriter:
    """Writes the answer to a call of responses, where all fields are written: that API has a null where there is
    nothing."""

    def __init__(self, token_bytes: TokenBytes, model: str, call: ChatCall, answer: Answer) -> None:
        self._token_bytes, self._options, self._answer = token_bytes, call.options, answer
        (self._reply,) = answer.replies
        self._name = uuid.uuid4().hex
        self._begun: JSON = {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            **(call.echo or {}),
        }

    def body(self) -> JSON:
        """Return the whole answer."""
        return self._whole(self._items())

    def events(self) -> Iterator[str]:
        """Yield the answer as server-sent events."""
        for number, (name, fields) in enumerate(self._events()):
            yield f"event: {name}\n" + _event({"type": name, "sequence_number": number, **fields})

    def _events(self) -> Iterator[tuple[str, JSON]]:
        """Yield (type, further fields) of every event."""
        yield "response.created", {"response": self._begun}
        yield "response.in_progress", {"response": self._begun}
        items = self._items()
        for index, item in enumerate(items):
            at = {"output_index": index, "item_id": item["id"]}
            said = item["type"] == "message"
            blank: JSON = {"content": []} if said else {"arguments": ""}
            opened = {**item, "status": "in_progress", **blank}
            yield "response.output_item.added", {"output_index": index, "item": opened}
            yield from self._message(item, at) if said else self._function_call(item, at)
            yield "response.output_item.done", {"output_index": index, "item": item}
        whole = self._whole(items)
        yield f"response.{whole['status']}", {"response": whole}

    def _message(self, item: JSON, at: JSON) -> Iterator[tuple[str, JSON]]:
        (part,) = item["content"]
        at = at | {"content_index": 0}
        yield "response.content_part.added", {**at, "part": {**part, "text": "", "logprobs": []}}
        for piece in _PIECES.findall(part["text"]):
            yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
        # the type of this event has no bytes
        log_probs = [{name: entry[name] for name in entry if name != "bytes"} for entry in part["logprobs"]]
        yield "response.output_text.done", {**at, "text": part["text"], "logprobs": log_probs}
        yield "response.content_part.done", {**at, "part": part}

    def _function_call(self, item: JSON, at: JSON) -> Iterator[tuple[str, JSON]]:
        for piece in _PIECES.findall(item["arguments"]):
            yield "response.function_call_arguments.delta", {**at, "delta": piece}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", {**at, **done}

    def _whole(self, items: list[JSON]) -> JSON:
        generation, prompt_ids = self._reply.generation, self._answer.prompt_ids
        usage = {
            "input_tokens": len(prompt_ids),
            "input_tokens_details": {"cached_tokens": generation.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": len(generation.token_ids),
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": len(prompt_ids) + len(generation.token_ids),
        }
        why = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        ids = _ids(self._options, self._reply)
        ids |= {"prompt_token_ids": list(prompt_ids)} if ids else {}
        ended = {"status": self._status, "incomplete_details": why, "output": items, "usage": usage}
        return {**self._begun, **ended, **ids}

    @property
    def _status(self) -> str:
        return "incomplete" if self._reply.finish_reason == "length" else "completed"

    def _items(self) -> list[JSON]:
        """Return the message, where there is one, then the calls."""
        reply = self._reply
        items: list[JSON] = []
        if reply.content or not reply.calls:
            entries = _token_entries(self._token_bytes, reply) if self._options.log_probs else []
            part = {"type": "output_text", "text": reply.content, "annotations": [], "logprobs": entries}
            message = {"type": "message", "role": "assistant", "status": self._status, "content": [part]}
            items.append({"id": f"msg_{self._name}", **message})
        for number, call in enumerate(reply.calls):
            called = {"call_id": call.id, "name": call.name, "arguments": _arguments(call)}
            items.append({"id": f"fc_{self._name}_{number}", "type": "function_call", "status": "completed", **called})
        return items


def writer_of(
    token_bytes: TokenBytes, model: str, call: ChatCall | CompletionCall, answer: Answer
) -> Writer | ResponsesWriter:
    """Return what writes the answer to a call, in the words of its API."""
    if isinstance(call, ChatCall) and call.echo is not None:
        return ResponsesWriter(token_bytes, model, call, answer)
    return Writer(token_bytes, model, call, answer)


def _message(reply: Reply) -> JSON:
    if not reply.calls:
        return {"role": "assistant", "content": reply.content, "refusal": None}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
        for call in reply.calls
    ]
    return {"role": "assistant", "content": reply.content or None, "refusal": None, "tool_calls": calls}


def _deltas(reply: Reply) -> Iterator[JSON]:
    """Yield what the pieces of a stream add: the role, the text word by word, the calls with their arguments."""
    yield {"role": "assistant", "content": None if reply.calls else ""}
    for piece in _PIECES.findall(reply.content):
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        opening = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": opening}]}
        for piece in _PIECES.findall(_arguments(call)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _token_entries(token_bytes: TokenBytes, reply: Reply) -> list[JSON]:
    """Return every sampled token with its log-prob, the end token included."""
    generation = reply.generation
    return [
        {"token": part.decode(errors="replace"), "logprob": value, "bytes": list(part), "top_logprobs": []}
        for part, value in zip(map(token_bytes.of, generation.token_ids), generation.log_probs or (), strict=True)
    ]


def _ids(options: CallOptions, reply: Reply) -> JSON:
    """Return the ids of a reply, where they are wanted."""
    if not options.token_ids:
        return {}
    given = {"given_token_ids": list(reply.opening_ids)} if reply.opening_ids else {}
    return {"token_ids": list(reply.generation.token_ids), **given}


def _arguments(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _event(piece: JSON) -> str:
    return f"data: {dumps(piece).decode()}\n\n"
