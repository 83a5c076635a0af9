"""Function calls in the words of the large families of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uirl.errors import ConfigError, did_you_mean
from uirl.parsers.base import ActionParser, Tools, tools_of
from uirl.parsers.llama import LLAMA_3
from uirl.parsers.mistral import MISTRAL
from uirl.parsers.qwen import QWEN, QWEN3_CODER
from uirl.parsers.reply import read_reply, write_reply
from uirl.types import Action

STYLES = {"qwen": QWEN, "hermes": QWEN, "qwen3-coder": QWEN3_CODER, "llama-3": LLAMA_3, "mistral": MISTRAL}


class FunctionCallingParser(ActionParser):
    """Reads the calls of a reply in one of the `STYLES`; what stands before the first is the thought.

    - `qwen`, `hermes`: `<tool_call>{"name": NAME, "arguments": {...}}</tool_call>`, any number of blocks.
    - `qwen3-coder`: `<tool_call><function=NAME><parameter=ARGUMENT>VALUE</parameter></function></tool_call>`; what a
      value is, the schema of the tool says (`for_tools`), else whether it is JSON. No ids.
    - `llama-3`: `{"name": NAME, "parameters": {...}}`, several separated by `;`, optionally after `<|python_tag|>`.
    - `mistral`: `[TOOL_CALLS] [{"name": NAME, "arguments": {...}}, ...]`, or `[TOOL_CALLS]NAME[ARGS]{...}`, repeated.

    `qwen`, `hermes` and `qwen3-coder` read each other's blocks. A call in JSON may have an `"id"`, and a string of JSON
    as its arguments. Markers that are special tokens may be missing, as they are from decoded replies. A reply without
    a call is plain text: no calls and no `parse_error`, and the environment decides what that means. Its `thought` is
    what stands before a `</think>`. A call that begins and cannot be read is a `parse_error`, and the calls beside it
    are not executed.
    """

    def __init__(self, style: str = "qwen") -> None:
        if style not in STYLES:
            raise ConfigError(f"unknown style of function calls {style!r}; {did_you_mean(style, STYLES)}")
        self.style = style
        self.tools: Tools = {}
        """What the policy may call; empty: not known."""
        self._format = STYLES[style]
        self.control_words = self._format.control_words

    def parse(self, text: str) -> Action:
        """Return the action in `text`, in linear time; never raises."""
        return read_reply(self._format, text, self.tools)

    def render(self, action: Action) -> str:
        r"""Return the thought, then the calls as models of this style write them; a marker in an argument is escaped.

        Without a call it is the text of the action. Raises TypeError or ValueError for arguments JSON cannot hold, and
        ValueError for a thought that would be read as a call.
        """
        return write_reply(self._format, action, self.tools)

    def describe(self) -> str:
        return self._format.description

    def for_tools(self, schemas: Sequence[Mapping[str, Any]]) -> FunctionCallingParser:
        """Return the parser of the same style that knows which tools there are."""
        parser = FunctionCallingParser(self.style)
        parser.tools = tools_of(schemas)
        return parser
