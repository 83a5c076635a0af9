"""Messages as OpenAI clients send them -> messages of ours, each with a key by which it is known again."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.runtime.bounded_cache import BoundedCache
from uirl.runtime.limits import MAX_CALLS, LimitError
from uirl.runtime.wire import WireModel
from uirl.serving.protocol.fields import (
    APIProblem,
    Ignored,
    NotedModel,
    Text,
    bad_request,
    only,
    parse,
    parse_one,
    read_json,
    shown,
    whole_text,
)
from uirl.types import ToolCall

MAX_MESSAGES = 16_384
MAX_NEW_PIXELS = 300_000_000
"""Of the pictures of one request that were not seen before: a hundred screens of a phone."""
_SEEN: BoundedCache[tuple[int, int]] = BoundedCache(8 * 2**20)
"""Sizes of pictures that were proved to be whole. Clients send their whole history with every call."""


class _TextPart(WireModel):
    type: Text
    text: Text


class _NotedTextPart(NotedModel):
    type: Text
    text: Text


class _PictureUrl(WireModel):
    url: Text
    detail: Ignored = None


class _PicturePart(WireModel):
    type: Text
    image_url: _PictureUrl


class _PlainMessage(WireModel):
    """Of the system, the developer or the user."""

    role: Text
    content: Any
    name: Text = ""


class _ToolResult(WireModel):
    role: Text
    content: Any
    tool_call_id: Text
    name: Text = ""


class _Function(NotedModel):
    name: Text
    arguments: Text


class _Call(NotedModel):
    id: Text
    type: Annotated[Any, only("function", why="only functions can be called")] = None
    function: _Function
    index: Ignored = None


_NotShown = Annotated[Any, only("", why="a reply is its text and its tool calls")]


class _Reply(NotedModel):
    """Of the assistant."""

    role: Text
    content: Any = None
    name: Text = ""
    tool_calls: list[Any] = Field(default_factory=list)
    annotations: Ignored = None
    refusal: _NotShown = None
    audio: _NotShown = None
    function_call: _NotShown = None


_MESSAGES: dict[str, type[WireModel]] = {
    "system": _PlainMessage,
    "developer": _PlainMessage,
    "user": _PlainMessage,
    "assistant": _Reply,
    "tool": _ToolResult,
}
_PARTS: dict[str, type[WireModel]] = {"text": _TextPart}
_PICTURE_PARTS: dict[str, type[WireModel]] = {"image_url": _PicturePart}
_NOTED_PARTS: dict[str, type[WireModel]] = {"text": _NotedTextPart}


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One message of a request."""

    message: Message
    key: str
    """Equal for two messages that say the same, however the client wrote them down."""
    ignored: tuple[str, ...] = ()
    """Fields of an assistant's message that nobody here knows: clients send replies back with notes of their own."""


@dataclass(frozen=True, slots=True)
class PartsMessage(Message):
    """A message whose pictures and texts stand in the order in which they were sent."""

    parts: tuple[str | None, ...] = ()
    """A text, or None for the next of `images`."""

    def as_hf(self) -> dict[str, Any]:
        # Message.as_hf, not super(): a dataclass with slots is another class than the one super() was compiled in
        content = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in self.parts]
        return Message.as_hf(self) | {"content": content}


def read_messages(values: Sequence[Any]) -> tuple[WireMessage, ...]:
    """Read the messages of a chat request. Raises a 400 that names the place."""
    if not values:
        raise bad_request("expected at least one message, got none", "messages")
    if len(values) > MAX_MESSAGES:
        raise bad_request(f"expected at most {MAX_MESSAGES} messages, got {len(values)}", "messages")
    names: dict[str, str] = {}
    pictures = Pictures()
    messages = [read_message(value, f"messages[{i}]", names, pictures) for i, value in enumerate(values)]
    check_answerable(messages, f"messages[{len(values) - 1}]")
    return tuple(messages)


def check_answerable(messages: Sequence[WireMessage], where: str) -> None:
    """Raise a 400 that names `where` for a conversation that ends with a reply, or holds no message at all."""
    if not messages:
        raise bad_request("expected at least one message, got none", where)
    if messages[-1].message.role == "assistant":
        raise bad_request(
            "the last message is the assistant's; expected one that can be answered (replies are not continued)",
            where,
            "unsupported_value",
        )


def assistant_key(content: str, calls: Sequence[ToolCall]) -> str:
    """Return the key of an assistant message: its text, and its calls by id, name and the value of the arguments."""
    return _key("assistant", content, [[call.id, call.name, _valued(dict(call.arguments))] for call in calls])


def _valued(value: Any) -> Any:
    """Arguments with whole numbers written in one way: a client that reads and writes them again may make 1 of 1.0, as
    every program in JavaScript does."""
    if isinstance(value, dict):
        return {name: _valued(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_valued(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_message(value: Any, where: str, names: dict[str, str], pictures: Pictures) -> WireMessage:
    """One message; `names` (tool of each call id so far) grows by the calls it holds."""
    message = parse_one(_MESSAGES, "role", value, where)
    if isinstance(message, _Reply):
        return _reply(message, where, names)
    if isinstance(message, _ToolResult):
        parts, _ = _read_content(message.content, f"{where}.content")
        return tool_message(message.tool_call_id, _joined(parts), names, f"{where}.tool_call_id")
    assert isinstance(message, _PlainMessage)
    role = "user" if message.role == "user" else "system"
    return plain_message(role, message.content, where, pictures, message.name)


def plain_message(role: str, content: Any, where: str, pictures: Pictures, name: str = "") -> WireMessage:
    """Read a message of the user or the system, of whom the user alone shows pictures."""
    parts, images = _read_content(content, f"{where}.content", pictures if role == "user" else None)
    return WireMessage(_message(role, parts, images, name), _key(role, parts, [image.hash for image in images], name))


def text_of(content: Any, where: str) -> str:
    """Return the text of content that may hold no picture. Raises a 400 that names the place."""
    return _joined(_read_content(content, where)[0])


def tool_message(call_id: str, text: str, names: Mapping[str, str], where: str) -> WireMessage:
    """Read what a call came back with. Raises a 400 that names `where` for a call that nobody made."""
    if call_id not in names:
        raise bad_request(
            f"no earlier assistant message made a call {shown(call_id)}; a result follows its call", where
        )
    return WireMessage(Message("tool", text, name=names[call_id], call_id=call_id), _key("tool", text, call_id))


def _reply(reply: _Reply, where: str, names: dict[str, str]) -> WireMessage:
    """Check a reply as a client sends it back. What its library noted on it (litellm's provider_specific_fields, parsed
    arguments, thoughts it took out) is passed over; what says something that we cannot show is refused."""
    ignored = list(reply.noted)
    if len(reply.tool_calls) > MAX_CALLS:
        raise bad_request(f"expected at most {MAX_CALLS} calls, got {len(reply.tool_calls)}", f"{where}.tool_calls")
    calls = tuple(_read_call(call, f"{where}.tool_calls[{i}]", ignored) for i, call in enumerate(reply.tool_calls))
    if reply.content is None and not calls:
        raise bad_request("expected content or tool_calls, got neither", f"{where}.content")
    parts, _ = _read_content("" if reply.content is None else reply.content, f"{where}.content", ignored=ignored)
    return assistant_message(_joined(parts), calls, names, ignored, reply.name)


def assistant_message(
    text: str, calls: tuple[ToolCall, ...], names: dict[str, str], ignored: Sequence[str], name: str = ""
) -> WireMessage:
    """Read a reply; `names` grows by its calls."""
    names.update((call.id, call.name) for call in calls)
    message = Message("assistant", text, name=name, tool_calls=calls)
    return WireMessage(message, assistant_key(text, calls), tuple(dict.fromkeys(ignored)))


def _read_call(value: Any, where: str, ignored: list[str]) -> ToolCall:
    """One call of a reply that is sent back; `ignored` grows by the fields that are passed over."""
    call = parse(_Call, value, where)
    ignored += [f"tool_calls.{name}" for name in call.noted]
    ignored += [f"tool_calls.function.{name}" for name in call.function.noted]
    return ToolCall(call.function.name, read_arguments(call.function.arguments, f"{where}.function.arguments"), call.id)


def read_arguments(written: str, where: str) -> dict[str, Any]:
    """Read the arguments of a call from their JSON. Raises a 400 that names `where`."""
    arguments = read_json(written, where)
    if not isinstance(arguments, dict):
        raise bad_request(f"expected a JSON object, got {shown(arguments)}", where)
    whole_text(json.dumps(arguments, ensure_ascii=False), where)
    return arguments


def _read_content(
    content: Any, where: str, pictures: Pictures | None = None, ignored: list[str] | None = None
) -> tuple[list[str | None], tuple[Screenshot, ...]]:
    """(texts, with None where a picture stands; the pictures). `pictures` None: none are taken. `ignored` grows by the
    fields that are passed over; None: none are."""
    if isinstance(content, str):
        return [whole_text(content, where)], ()
    if not isinstance(content, list):
        raise bad_request(f"expected a string or a list of parts, got {shown(content)}", where, "invalid_type")
    parts: list[str | None] = []
    images: list[Screenshot] = []
    models = _NOTED_PARTS if ignored is not None else _PARTS if pictures is None else _PARTS | _PICTURE_PARTS
    for i, value in enumerate(content):
        part = parse_one(models, "type", value, f"{where}[{i}]")
        if isinstance(part, _PicturePart):
            assert pictures is not None
            images.append(pictures.read(part.image_url.url, f"{where}[{i}].image_url.url"))
            parts.append(None)
        elif isinstance(part, (_TextPart, _NotedTextPart)):
            parts.append(part.text)
        if isinstance(part, _NotedTextPart) and ignored is not None:
            ignored += [f"content.{name}" for name in part.noted]
    return parts, tuple(images)


class Pictures:
    """The pictures of one request."""

    def __init__(self) -> None:
        self._pixels = 0

    def read(self, url: str, where: str) -> Screenshot:
        """Return the picture of a data URL, proved to be one: decoded once, however often it is sent."""
        head, comma, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64") or not comma:
            raise bad_request("expected a data URL (data:image/png;base64,...); nothing is fetched from the net", where)
        try:
            screenshot = Screenshot(base64.b64decode(data, validate=True))
            _SEEN.get(screenshot.hash, lambda: self._prove(screenshot), lambda size: 256)
        except LimitError as error:
            raise APIProblem(413, f"{where}: {error}", code="image_too_large", param=where) from error
        except (binascii.Error, ValueError) as error:
            raise bad_request(f"is not a picture: {error}", where) from error
        return screenshot

    def _prove(self, screenshot: Screenshot) -> tuple[int, int]:
        width, height = screenshot.read_size()
        self._pixels += width * height
        if self._pixels > MAX_NEW_PIXELS:
            raise LimitError(f"the pictures up to here have {self._pixels} pixels; expected at most {MAX_NEW_PIXELS}")
        screenshot.open()
        return width, height


def _message(role: str, parts: list[str | None], images: tuple[Screenshot, ...], name: str) -> Message:
    if images:
        return PartsMessage(role, _joined(parts), images, name, parts=tuple(parts))
    return Message(role, _joined(parts), name=name)


def _joined(parts: Sequence[str | None]) -> str:
    return "\n".join(part for part in parts if part is not None)


def _key(*parts: Any) -> str:
    return json.dumps(parts, ensure_ascii=False, sort_keys=True)
