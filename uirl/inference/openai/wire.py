"""Conversations as the OpenAI chat API writes them, and its answers as the text that our parsers read.

A server that knows tools answers with structured calls instead of text. They become the blocks that Qwen and Hermes
write, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, after what the model said; the parser 'qwen' reads
them. On the way back, in the next turn, these blocks become structured calls again, with ids, and the results that
follow answer them in their order. Arguments stay the text they were: what is no JSON is the model's mistake, for the
parser to tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, cast

from uirl.images import data_url
from uirl.inference.messages import CALL_BEGIN, CALL_END, Message, write_call
from uirl.inference.openai.answers import ReplyMessage
from uirl.runtime.limits import MAX_CALLS, whole_characters

if TYPE_CHECKING:
    from openai.types.chat import (
        ChatCompletionAssistantMessageParam,
        ChatCompletionContentPartParam,
        ChatCompletionMessageParam,
    )

_CALL = re.compile(r'\{"name": ("(?:[^"\\]|\\.)*"), "arguments": (.*)\}', re.DOTALL)


def wire_messages(messages: Sequence[Message], *, text_parts: bool = False) -> list[ChatCompletionMessageParam]:
    """Write the conversation as the chat API takes it. `text_parts`: what users say is a list of parts, text alone too,
    as some agents send it.

    A tool result that answers no structured call becomes a user message between `<tool_response>` tags: servers refuse
    results of calls that they do not see.
    """
    out: list[ChatCompletionMessageParam] = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.role == "assistant":
            reply = _assistant(message, number)
            calls = list(reply.get("tool_calls", ()))
            if not message.tool_calls and _results_after(messages, number) < len(calls):
                # servers refuse calls that nobody answered: these stay the text they were, as formats such as MAI-UI's
                # want it
                plain: ChatCompletionAssistantMessageParam = {"role": "assistant", "content": message.text}
                reply, calls = plain, []
            waiting = [call["id"] for call in calls]
            out.append(reply)
        elif message.role == "tool" and waiting:
            id = message.call_id if message.call_id in waiting else waiting[0]
            waiting.remove(id)
            out.append({"role": "tool", "tool_call_id": id, "content": message.text})
        elif message.role == "tool":
            out.append({"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"})
        elif message.role == "user":
            out.append({"role": "user", "content": _content(message, text_parts)})
        else:
            # the API's own types know no pictures here, nor the roles of others; some servers do
            out.append(cast("Any", {"role": message.role, "content": _content(message, False)}))
    return out


def _results_after(messages: Sequence[Message], number: int) -> int:
    """How many tool results follow a message at once."""
    behind = range(number + 1, len(messages))
    return sum(1 for _ in takewhile(lambda at: messages[at].role == "tool", behind))


def reply_text(message: ReplyMessage) -> str:
    """Return what the message of an answer says, its structured calls as blocks, half characters in it as U+FFFD."""
    content = message.content or message.refusal
    blocks = [write_call(function.name, function.arguments) for function in message.functions]
    # a model can write half a character in the arguments of a call, and no tokenizer takes it back
    return whole_characters("\n".join([content, *blocks] if content else blocks))


def _assistant(message: Message, number: int) -> ChatCompletionAssistantMessageParam:
    """Write a reply with its calls structured: those that stand beside its text, else those that stand in it as
    blocks."""
    calls = [(call.id, call.name, json.dumps(dict(call.arguments), ensure_ascii=False)) for call in message.tool_calls]
    text = message.text
    if not calls:
        blocks, text = _split(text)
        calls = [("", *call) for call in blocks]
    if not calls:
        return {"role": "assistant", "content": text}
    return {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [
            {"id": id or f"call_{number}_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (id, name, arguments) in enumerate(calls)
        ],
    }


def _split(text: str) -> tuple[list[tuple[str, str]], str]:
    """Split a reply into the calls in its blocks and the text without them; no calls where one of them cannot be read,
    or where there are more than a parser takes. Linear in the text, whatever is opened and not closed in it."""
    calls: list[tuple[str, str]] = []
    around: list[str] = []
    at = 0
    while (begin := text.find(CALL_BEGIN, at)) >= 0 and (end := text.find(CALL_END, begin + len(CALL_BEGIN))) >= 0:
        call = _read_call(text[begin + len(CALL_BEGIN) : end])
        if call is None or len(calls) == MAX_CALLS:
            return [], text
        calls.append(call)
        around.append(text[at:begin].removesuffix("\n"))
        at = end + len(CALL_END)
    return calls, "".join([*around, text[at:]])


def _read_call(block: str) -> tuple[str, str] | None:
    """(name, arguments) of a block as `write_call` wrote it; None for any other, and for arguments that are no JSON:
    servers read them to render them."""
    match = _CALL.fullmatch(block)
    if match is None:
        return None
    try:
        json.loads(match[2])
        name = json.loads(match[1])
    except (ValueError, RecursionError):
        return None
    return name, match[2]


def _content(message: Message, as_parts: bool) -> str | list[ChatCompletionContentPartParam]:
    """Pictures first, as for chat templates; text alone is a string, which every server takes, unless `as_parts`."""
    if not message.images and not as_parts:
        return message.text
    parts: list[ChatCompletionContentPartParam] = []
    for image in message.images:
        parts.append({"type": "image_url", "image_url": {"url": data_url(image.plain())}})
    if message.text or not parts:
        parts.append({"type": "text", "text": message.text})
    return parts
