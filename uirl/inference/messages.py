"""What a conversation is made of, before it is tokens. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from uirl.images import Screenshot
from uirl.types import ToolCall

CALL_BEGIN, CALL_END = "<tool_call>\n", "\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str
    """'system', 'user', 'assistant' or 'tool'."""
    text: str = ""
    images: tuple[Screenshot, ...] = ()
    name: str = ""
    """Of the tool that answers, where the role is 'tool'."""
    call_id: str = ""
    """Of the call that is answered, where the policy gave one."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of an assistant that are not part of `text`, by somebody else. The policy's own replies are text."""

    def as_hf(self) -> dict[str, Any]:
        """Return the message as chat templates read it: the pictures, then the text, so that the text can look at
        them."""
        content: Any = self.text
        if self.images:
            parts: list[dict[str, Any]] = [{"type": "image"} for _ in self.images]
            content = parts + ([{"type": "text", "text": self.text}] if self.text else [])
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.name:
            message["name"] = self.name
        if self.call_id:
            message["tool_call_id"] = self.call_id
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
                | ({"id": call.id} if call.id else {})
                for call in self.tool_calls
            ]
        return message


def write_call(name: str, arguments: Any) -> str:
    """Return a call as a block of text, as Qwen and Hermes write it. `arguments`: a mapping, or their JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    call = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text.strip() or "{}"}}}'
    return f"{CALL_BEGIN}{call}{CALL_END}"
