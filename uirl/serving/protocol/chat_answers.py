"""Answers as OpenAI writes them: one body, or the pieces of a stream."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from uirl.inference.models.token_bytes import TokenBytes
from uirl.serving.protocol.chat_requests import CallOptions
from uirl.serving.replies import Answer, Reply
from uirl.types import ToolCall

_PIECES = re.compile(r"\S+\s*|\s+")


class AnswerModel(BaseModel):
    """One object of an answer. It writes the fields that were set: a null and an absent field differ for clients.

    Built with plain calls: pydantic checks and builds in Rust, while `model_construct` is three times slower.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    def write(self) -> dict[str, Any]:
        """Return the JSON form."""
        return self.model_dump(exclude_unset=True)


class FunctionOut(AnswerModel):
    """What is called; a later piece of a stream has the arguments alone."""

    name: str = ""
    arguments: str


class ToolCallOut(AnswerModel):
    """A call of a reply; a stream numbers them."""

    index: int = 0
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionOut


class MessageOut(AnswerModel):
    """A message, or what a piece of a stream adds to it."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallOut] = []


class TokenOut(AnswerModel):
    """One sampled token with its log-prob."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Any]


class LogProbsOut(AnswerModel):
    """The sampled tokens, the end token included: the first two fields in chats, the others in completions."""

    content: list[TokenOut] = []
    refusal: str | None = None
    tokens: list[str] = []
    token_logprobs: list[float] = []
    top_logprobs: list[dict[str, float]] = []
    text_offset: list[int] = []


class ChoiceOut(AnswerModel):
    """One reply, or a piece of it: `message`, `delta` or `text`."""

    index: int
    finish_reason: str | None
    logprobs: LogProbsOut | None
    message: MessageOut | None = None
    delta: MessageOut | None = None
    text: str = ""
    token_ids: list[int] = []
    given_token_ids: list[int] = []


class CachedOut(AnswerModel):
    """Where the tokens of a prompt came from."""

    cached_tokens: int


class UsageOut(AnswerModel):
    """Token counts. The prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedOut


class AnswerOut(AnswerModel):
    """A whole answer, or a piece of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChoiceOut]
    usage: UsageOut | None = None
    prompt_token_ids: list[int] = []


class Writer:
    """Writes the answer to one call."""

    def __init__(
        self, token_bytes: TokenBytes, model: str, options: CallOptions, answer: Answer, *, chat: bool
    ) -> None:
        self._token_bytes, self._options, self._answer, self._chat = token_bytes, options, answer, chat
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"policy-{answer.version}",
        }

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return self._options.stream

    def body(self) -> AnswerOut:
        """Return the whole answer."""
        choices = []
        for index, reply in enumerate(self._answer.replies):
            content = {"message": _message(reply)} if self._chat else {"text": reply.content}
            choices.append(ChoiceOut(index=index, **content, **self._end(reply)))
        return AnswerOut(**self._head, choices=choices, usage=self._usage(), **self._prompt_ids())

    def events(self) -> Iterator[str]:
        """Yield the answer as server-sent events. It is complete before the first: engines answer at once."""
        head = self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
        # a client that asked for the usage finds the key in every chunk
        rest: dict[str, Any] = {"usage": None} if self._options.include_usage else {}
        prompt = self._prompt_ids()  # once: a long prompt in every piece of a long reply would be gigabytes
        for index, reply in enumerate(self._answer.replies):
            for piece in self._pieces(reply):
                choice = ChoiceOut(index=index, **piece)
                yield _event(AnswerOut(**head, choices=[choice], **rest, **prompt))
                prompt = {}
        if self._options.include_usage:
            yield _event(AnswerOut(**head, choices=[], usage=self._usage()))
        yield "data: [DONE]\n\n"

    def _pieces(self, reply: Reply) -> Iterator[dict[str, Any]]:
        """Yield the fields of the choices of a stream; the last has the log-probs."""
        going: dict[str, Any] = {"finish_reason": None, "logprobs": None}
        if not self._chat:
            for piece in pieces_of(reply.content):
                yield {"text": piece, **going}
            yield {"text": "", **self._end(reply)}
            return
        for delta in _deltas(reply):
            yield {"delta": delta, **going}
        yield {"delta": MessageOut(), **self._end(reply)}

    def _end(self, reply: Reply) -> dict[str, Any]:
        """Return the fields of a reply that are known when it ends."""
        ids: dict[str, Any] = {}
        if self._options.token_ids:
            ids = {"token_ids": list(reply.generation.token_ids)}
            ids |= {"given_token_ids": list(reply.opening_ids)} if reply.opening_ids else {}
        return {"finish_reason": reply.finish_reason, "logprobs": self._log_probs(reply), **ids}

    def _usage(self) -> UsageOut:
        generations = [reply.generation for reply in self._answer.replies]
        prompt, sampled = len(self._answer.prompt_ids), sum(len(g.token_ids) for g in generations)
        return UsageOut(
            prompt_tokens=prompt,
            completion_tokens=sampled,
            total_tokens=prompt + sampled,
            prompt_tokens_details=CachedOut(cached_tokens=max(g.cached_tokens for g in generations)),
        )

    def _log_probs(self, reply: Reply) -> LogProbsOut | None:
        """Return one entry per sampled token; None: not asked for."""
        if not self._options.log_probs:
            return None
        entries = token_entries(self._token_bytes, reply)
        if self._chat:
            return LogProbsOut(content=entries, refusal=None)
        words, values = [entry.token for entry in entries], [entry.logprob for entry in entries]
        return LogProbsOut(
            tokens=words,
            token_logprobs=values,
            top_logprobs=[{word: value} for word, value in zip(words, values, strict=True)],
            text_offset=list(accumulate(map(len, words), initial=0))[:-1],
        )

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._answer.prompt_ids)} if self._options.token_ids else {}


def _message(reply: Reply) -> MessageOut:
    if not reply.calls:
        return MessageOut(role="assistant", content=reply.content, refusal=None)
    calls = [
        ToolCallOut(
            id=call.id, type="function", function=FunctionOut(name=call.name, arguments=written_arguments(call))
        )
        for call in reply.calls
    ]
    return MessageOut(role="assistant", content=reply.content or None, refusal=None, tool_calls=calls)


def _deltas(reply: Reply) -> Iterator[MessageOut]:
    """Yield what the pieces of a stream add: the role, the text word by word, the calls with their arguments."""
    yield MessageOut(role="assistant", content=None if reply.calls else "")
    for piece in pieces_of(reply.content):
        yield MessageOut(content=piece)
    for index, call in enumerate(reply.calls):
        opening = FunctionOut(name=call.name, arguments="")
        begun = ToolCallOut(index=index, id=call.id, type="function", function=opening)
        yield MessageOut(tool_calls=[begun])
        for piece in pieces_of(written_arguments(call)):
            part = ToolCallOut(index=index, function=FunctionOut(arguments=piece))
            yield MessageOut(tool_calls=[part])


def token_entries(token_bytes: TokenBytes, reply: Reply) -> list[TokenOut]:
    """Return every sampled token with its log-prob, the end token included."""
    generation = reply.generation
    return [
        TokenOut(token=part.decode(errors="replace"), logprob=value, bytes=list(part), top_logprobs=[])
        for part, value in zip(map(token_bytes.of, generation.token_ids), generation.log_probs or (), strict=True)
    ]


def pieces_of(text: str) -> list[str]:
    """Split a text into what a stream sends at a time: words."""
    return _PIECES.findall(text)


def written_arguments(call: ToolCall) -> str:
    """Write the arguments of a call as JSON."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _event(piece: AnswerOut) -> str:
    return f"data: {piece.model_dump_json(exclude_unset=True)}\n\n"
