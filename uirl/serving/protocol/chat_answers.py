"""Answers as OpenAI writes them: one body, or the pieces of a stream."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from uirl.inference.models.token_bytes import TokenBytes
from uirl.serving.protocol.chat_requests import CallOptions
from uirl.serving.replies import Answer, Reply
from uirl.types import ToolCall

_PIECES = re.compile(r"\S+\s*|\s+")


class Writer:
    """Writes the answer to one call."""

    def __init__(
        self, token_bytes: TokenBytes, model: str, options: CallOptions, answer: Answer, *, chat: bool
    ) -> None:
        self._token_bytes, self._options, self._answer, self._chat = token_bytes, options, answer, chat
        kind = "chat.completion" if chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"policy-{answer.version}",
        }

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self._options.stream

    def body(self) -> dict[str, Any]:
        """The whole answer."""
        choices = []
        for index, reply in enumerate(self._answer.replies):
            choice: dict[str, Any] = {"index": index, "finish_reason": reply.finish_reason}
            choice["logprobs"] = self._log_probs(reply)
            if self._chat:
                choice["message"] = _message(reply)
            else:
                choice["text"] = reply.content
            choices.append(choice | self._token_ids(reply))
        return self._head | {"choices": choices, "usage": self._usage()} | self._prompt_ids()

    def events(self) -> Iterator[str]:
        """The answer as server-sent events. It is complete before the first of them: engines answer at once."""
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        # a client that asked for the usage finds the key in every chunk
        rest = {"usage": None} if self._options.include_usage else {}
        prompt = self._prompt_ids()  # once: a long prompt in every piece of a long reply would be gigabytes
        for index, reply in enumerate(self._answer.replies):
            for choice in self._pieces(reply):
                yield _event(head | {"choices": [{"index": index, **choice}]} | rest | prompt)
                prompt = {}
        if self._options.include_usage:
            yield _event(head | {"choices": [], "usage": self._usage()})
        yield "data: [DONE]\n\n"

    def _pieces(self, reply: Reply) -> Iterator[dict[str, Any]]:
        """The choices of a stream's chunks, without their index; the last has the log-probs."""
        last = {"logprobs": self._log_probs(reply), "finish_reason": reply.finish_reason, **self._token_ids(reply)}
        going = {"logprobs": None, "finish_reason": None}
        if not self._chat:
            for piece in pieces_of(reply.content):
                yield {"text": piece, **going}
            yield {"text": "", **last}
            return
        yield {"delta": {"role": "assistant", "content": "" if not reply.calls else None}, **going}
        for piece in pieces_of(reply.content):
            yield {"delta": {"content": piece}, **going}
        for number, call in enumerate(_calls(reply)):
            arguments = call["function"]["arguments"]
            opening = call | {"index": number, "function": {"name": call["function"]["name"], "arguments": ""}}
            yield {"delta": {"tool_calls": [opening]}, **going}
            for piece in pieces_of(arguments):
                yield {"delta": {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}, **going}
        yield {"delta": {}, **last}

    def _usage(self) -> dict[str, Any]:
        """Token counts. The prompt counts once, however many choices it has."""
        generations = [reply.generation for reply in self._answer.replies]
        prompt, made = len(self._answer.prompt_ids), sum(len(g.token_ids) for g in generations)
        cached = max(g.cached_tokens for g in generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _log_probs(self, reply: Reply) -> dict[str, Any] | None:
        """One entry per sampled token, the end token included; None: not asked for."""
        if not self._options.log_probs:
            return None
        entries = token_entries(self._token_bytes, reply)
        if not self._chat:
            words, values = [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]
            offsets = list(accumulate(map(len, words), initial=0))[:-1]
            alternatives = [{word: value} for word, value in zip(words, values, strict=True)]
            return {
                "tokens": words, "token_logprobs": values, "top_logprobs": alternatives, "text_offset": offsets
            }  # fmt: skip
        return {"content": entries, "refusal": None}

    def _token_ids(self, reply: Reply) -> dict[str, Any]:
        if not self._options.token_ids:
            return {}
        given = {"given_token_ids": list(reply.given)} if reply.given else {}
        return {"token_ids": list(reply.generation.token_ids)} | given

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._answer.prompt_ids)} if self._options.token_ids else {}


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.calls:
        message |= {"content": reply.content or None, "tool_calls": _calls(reply)}
    return message


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": written_arguments(call)},
        }
        for call in reply.calls
    ]


def token_entries(token_bytes: TokenBytes, reply: Reply) -> list[dict[str, Any]]:
    """Every sampled token with its log-prob, the end token included."""
    generation = reply.generation
    return [
        {"token": part.decode(errors="replace"), "logprob": value, "bytes": list(part), "top_logprobs": []}
        for part, value in zip(map(token_bytes.of, generation.token_ids), generation.log_probs or (), strict=True)
    ]


def pieces_of(text: str) -> list[str]:
    """What a stream sends at a time: words."""
    return _PIECES.findall(text)


def written_arguments(call: ToolCall) -> str:
    """The arguments of a call as JSON."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
