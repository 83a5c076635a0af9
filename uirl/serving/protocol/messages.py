"""Messages as OpenAI clients send them -> messages of ours, each with a key by which it is known again."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uirl.images import Screenshot
from uirl.inference.messages import Message
from uirl.runtime.bounded_cache import BoundedCache
from uirl.runtime.limits import MAX_CALLS, LimitError
from uirl.serving.problems import APIProblem, bad_request
from uirl.serving.protocol.fields import Fields, read_json, shown, whole_text
from uirl.types import ToolCall

MAX_MESSAGES = 16_384
MAX_NEW_PIXELS = 300_000_000
"""Of the pictures of one request that were not seen before: a hundred screens of a phone."""
_SEEN: BoundedCache[tuple[int, int]] = BoundedCache(8 * 2**20)
"""Sizes of pictures that were proved to be whole. Clients send their whole history with every call."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


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
    """The messages of a chat request. Raises a 400 that names the place."""
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
    """Raises a 400 that names `where` for a conversation that ends with a reply, or holds no message at all."""
    if not messages:
        raise bad_request("expected at least one message, got none", where)
    if messages[-1].message.role == "assistant":
        raise bad_request(
            "the last message is the assistant's; expected one that can be answered (replies are not continued)",
            where,
            "unsupported_value",
        )


def assistant_key(content: str, calls: Sequence[ToolCall]) -> str:
    """The key of an assistant message: its text, and its calls by id, name and the value of the arguments."""
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
    fields = Fields(value, where)
    said = fields.take("role", str)
    role = _ROLES.get(said)
    if role is None:
        raise bad_request(f"expected one of {', '.join(_ROLES)}, got {shown(said)}", fields.at("role"))
    if role == "assistant":
        return _read_assistant(fields, names)
    content = fields.raw("content")
    if content is None:
        raise bad_request("is missing", fields.at("content"), "missing_required_parameter")
    if role == "tool":
        return _read_tool(fields, content, names)
    name = fields.take("name", str, "")
    fields.close()
    parts, shots = _read_content(content, fields.at("content"), pictures if role == "user" else None)
    return WireMessage(_message(role, parts, shots, name), _key(role, parts, [shot.hash for shot in shots], name))


def _read_tool(fields: Fields, content: Any, names: Mapping[str, str]) -> WireMessage:
    call_id = fields.take("tool_call_id", str)
    fields.take("name", str, "")
    fields.close()
    parts, _ = _read_content(content, fields.at("content"))
    return tool_message(call_id, _joined(parts), names, fields.at("tool_call_id"))


def tool_message(call_id: str, text: str, names: Mapping[str, str], where: str) -> WireMessage:
    """What a call came back with. Raises a 400 that names `where` for a call that nobody made."""
    if call_id not in names:
        raise bad_request(
            f"no earlier assistant message made a call {shown(call_id)}; a result follows its call", where
        )
    return WireMessage(Message("tool", text, name=names[call_id], call_id=call_id), _key("tool", text, call_id))


def _read_assistant(fields: Fields, names: dict[str, str]) -> WireMessage:
    """A reply as a client sends it back. What its library noted on it (litellm's provider_specific_fields, parsed
    arguments, thoughts it took out) is passed over; what says something that we cannot show is refused."""
    content = fields.raw("content")
    name = fields.take("name", str, "")
    values = fields.take("tool_calls", list, [])
    fields.ignore("annotations")
    for extra in ("refusal", "audio", "function_call"):
        fields.only(extra, "", why="a reply is its text and its tool calls")
    ignored = fields.rest()
    if len(values) > MAX_CALLS:
        raise bad_request(f"expected at most {MAX_CALLS} calls, got {len(values)}", fields.at("tool_calls"))
    calls = tuple(_read_call(value, f"{fields.at('tool_calls')}[{i}]", ignored) for i, value in enumerate(values))
    if content is None and not calls:
        raise bad_request("expected content or tool_calls, got neither", fields.at("content"))
    parts, _ = _read_content("" if content is None else content, fields.at("content"), ignored=ignored)
    return assistant_message(_joined(parts), calls, names, ignored, name)


def assistant_message(
    text: str, calls: tuple[ToolCall, ...], names: dict[str, str], ignored: Sequence[str], name: str = ""
) -> WireMessage:
    """A reply; `names` grows by its calls."""
    names.update((call.id, call.name) for call in calls)
    message = Message("assistant", text, name=name, tool_calls=calls)
    return WireMessage(message, assistant_key(text, calls), tuple(dict.fromkeys(ignored)))


def _read_call(value: Any, where: str, ignored: list[str]) -> ToolCall:
    """One call of a reply that is sent back; `ignored` grows by the fields that are passed over."""
    fields = Fields(value, where)
    identity = fields.take("id", str)
    fields.only("type", "function", why="only functions can be called")
    function = Fields(fields.take("function", dict), fields.at("function"))
    fields.ignore("index")
    name, written = function.take("name", str), function.take("arguments", str)
    ignored += [f"tool_calls.{rest}" for rest in fields.rest()]
    ignored += [f"tool_calls.function.{rest}" for rest in function.rest()]
    return ToolCall(name, read_arguments(written, function.at("arguments")), identity)


def read_arguments(written: str, where: str) -> dict[str, Any]:
    """The arguments of a call from their JSON. Raises a 400 that names `where`."""
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
    shots: list[Screenshot] = []
    for i, value in enumerate(content):
        fields = Fields(value, f"{where}[{i}]")
        kind = fields.take("type", str)
        if kind == "text":
            parts.append(fields.take("text", str))
        elif kind == "image_url" and pictures is not None:
            image = Fields(fields.take("image_url", dict), fields.at("image_url"))
            shots.append(pictures.read(image.take("url", str), image.at("url")))
            image.ignore("detail")
            image.close()
            parts.append(None)
        else:
            known = "'text'" if pictures is None else "'text' or 'image_url'"
            raise bad_request(f"expected {known}, got {shown(kind)}", fields.at("type"), "unsupported_value")
        if ignored is None:
            fields.close()
        else:
            ignored += [f"content.{rest}" for rest in fields.rest()]
    return parts, tuple(shots)


class Pictures:
    """The pictures of one request."""

    def __init__(self) -> None:
        self._pixels = 0

    def read(self, url: str, where: str) -> Screenshot:
        """The picture of a data URL, proved to be one: decoded once, however often it is sent."""
        head, comma, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64") or not comma:
            raise bad_request("expected a data URL (data:image/png;base64,...); nothing is fetched from the net", where)
        try:
            shot = Screenshot(base64.b64decode(data, validate=True))
            _SEEN.get(shot.hash, lambda: self._prove(shot), lambda size: 256)
        except LimitError as error:
            raise APIProblem(413, f"{where}: {error}", code="image_too_large", param=where) from error
        except (binascii.Error, ValueError) as error:
            raise bad_request(f"is not a picture: {error}", where) from error
        return shot

    def _prove(self, shot: Screenshot) -> tuple[int, int]:
        width, height = shot.read_size()
        self._pixels += width * height
        if self._pixels > MAX_NEW_PIXELS:
            raise LimitError(f"the pictures up to here have {self._pixels} pixels; expected at most {MAX_NEW_PIXELS}")
        shot.open()
        return width, height


def _message(role: str, parts: list[str | None], shots: tuple[Screenshot, ...], name: str) -> Message:
    if shots:
        return PartsMessage(role, _joined(parts), shots, name, parts=tuple(parts))
    return Message(role, _joined(parts), name=name)


def _joined(parts: Sequence[str | None]) -> str:
    return "\n".join(part for part in parts if part is not None)


def _key(*parts: Any) -> str:
    return json.dumps(parts, ensure_ascii=False, sort_keys=True)
