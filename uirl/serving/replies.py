"""What the engine sampled as replies: text, tool calls with ids, where a stop string cut it, and what a client wants.

`tool_choice` and `parallel_tool_calls`: nothing constrains the sampler, for log-probs would be those of another
distribution than the learner's. A reply that is not as it is wanted is sampled again, once; where a call is missing,
the second reply is given its beginning (the opening of a call, as far as the format lets it stand before the
arguments), which is context and not learned. Both replies are recorded: what was sampled is what is learned. Where the
second is not as wanted either, the client gets it as it is, and the record says so.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from uirl.inference.base import Generation
from uirl.parsers.base import ANSWER, ActionParser
from uirl.runtime.limits import shown
from uirl.types import Action, ToolCall

_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9
"""Some chat templates take ids of exactly nine letters and digits."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply, as it is recorded and as it is sent."""

    generation: Generation
    """What was sampled, up to the stop string where one cut it."""
    ended: bool
    """The ids close with an end token of the model."""
    text: str
    """Of the ids, without special tokens and without the stop string."""
    action: Action
    content: str
    """What the client reads as text."""
    calls: tuple[ToolCall, ...] = ()
    """What the client reads as tool calls."""
    opening_ids: tuple[int, ...] = ()
    """Ids that the reply was given to begin with: context, not sampled. `text` begins with theirs."""

    @property
    def finish_reason(self) -> str:
        """As OpenAI says it: 'stop', 'length' or 'tool_calls'."""
        return "tool_calls" if self.calls else self.generation.finish_reason


@dataclass(frozen=True, slots=True)
class Answer:
    """What one call came to."""

    prompt_ids: tuple[int, ...]
    replies: tuple[Reply, ...]

    @property
    def version(self) -> int:
        """The oldest policy version that sampled a reply."""
        return min(reply.generation.policy_version for reply in self.replies)


def cut_at_stop(
    generation: Generation, decode: Callable[[Sequence[int]], str], stops: Sequence[str]
) -> tuple[Generation, str]:
    """Return (the generation up to the token that completes the first stop string, the text before that string).

    Stopping there is a rule about what was sampled so far, so ids and log-probs up to it are those of an engine that
    knows the rule; the tokens behind were sampled in vain.
    """
    text = decode(generation.token_ids)
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    if not found:
        return generation, text

    def complete(n: int) -> bool:
        part = decode(generation.token_ids[:n])
        return any(stop in part for stop in stops)

    n = bisect_left(range(1, len(generation.token_ids) + 1), True, key=complete) + 1
    log_probs = None if generation.log_probs is None else generation.log_probs[:n]
    cut = replace(generation, token_ids=generation.token_ids[:n], log_probs=log_probs, finish_reason="stop")
    return cut, text[: min(found)]


def text_reply(generation: Generation, text: str, ended: bool) -> Reply:
    """Build a reply in which no calls are looked for."""
    return Reply(generation, ended, text, Action(text=text), text)


def tool_reply(
    generation: Generation,
    text: str,
    ended: bool,
    parser: ActionParser,
    offered: Collection[str],
    prompt_ids: Sequence[int],
) -> Reply:
    """Build a reply with the calls that `parser` reads in it. `offered`: names of the tools the client has.

    A call that cannot be read is text, as it was written. A final answer of a format that writes answers as calls is
    text too, unless the client has a tool of that name.
    """
    action = parser.parse(text)
    only = action.call if len(action.tool_calls) == 1 else None
    if only is not None and only.name == ANSWER and ANSWER not in offered:
        answer = only.arguments.get("text", "")
        return Reply(generation, ended, text, action, answer if isinstance(answer, str) else json.dumps(answer))
    if not action.tool_calls:
        return Reply(generation, ended, text, action, text)
    calls = _with_ids(action.tool_calls, prompt_ids, generation.token_ids)
    return Reply(generation, ended, text, replace(action, tool_calls=calls), action.thought, calls)


def _with_ids(calls: Iterable[ToolCall], prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[ToolCall, ...]:
    """Return the calls with an id each: the policy's own, else one that follows from the tokens.

    A template may write ids into the next prompt, and a repeated run must give the same prompt.
    """
    seen: set[str] = set()
    named = []
    for number, call in enumerate(calls):
        call_id = call.id if call.id and call.id not in seen else _call_id(prompt_ids, ids, number)
        seen.add(call_id)
        named.append(replace(call, id=call_id))
    return tuple(named)


def _call_id(prompt_ids: Sequence[int], ids: Sequence[int], number: int) -> str:
    tokens = array("q", [len(prompt_ids), *prompt_ids, *ids, number]).tobytes()
    value = int.from_bytes(hashlib.blake2b(tokens, digest_size=8).digest(), "big")
    letters = []
    for _ in range(_ID_LENGTH):
        value, digit = divmod(value, len(_LETTERS))
        letters.append(_LETTERS[digit])
    return "".join(letters)


_NAME, _ARGUMENT = "probename", "probeargument"
"""Stand in a rendered call where its own name and first argument would."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a client wants of the calls in a reply."""

    mode: str = "auto"
    """'auto', 'none', 'required' or the name of the tool that is to be called."""
    names: tuple[str, ...] = ()
    """Tools of which one is to be called; empty: the policy decides."""
    parallel: bool = True
    """False: a reply may hold one call."""

    @property
    def reads_calls(self) -> bool:
        """False ('none'): the tools are shown all the same, so that the history stays what it was, and the reply is
        text."""
        return self.mode != "none"

    def missed(self, reply: Reply) -> str | None:
        """Return what `reply` lacks of what is wanted; None: nothing."""
        called = [call.name for call in reply.calls]
        if self.names and not called:
            return f"tool_choice {self.mode!r} wants a call, and there is none"
        others = [name for name in called if self.names and name not in self.names]
        if others:
            return f"tool_choice {self.mode!r} wants a call, got one of {shown(others[0])}"
        if not self.parallel and len(called) > 1:
            return f"parallel_tool_calls=false wants one call, got {len(called)}"
        return None

    def opening(self, reply: Reply, parser: ActionParser) -> str:
        """Return the beginning that the reply after `reply` is given; empty: it is sampled freely."""
        if not self.names or any(call.name in self.names for call in reply.calls):
            return ""
        return call_opening(parser, self.names)


AS_IT_LIKES = ToolChoice()
"""The policy decides."""


def call_opening(parser: ActionParser, names: Collection[str]) -> str:
    """How a reply in the format of `parser` begins that calls one of `names`: up to the arguments where there is one
    name, else up to the name. Empty where the format does not put the name before the arguments."""
    name = next(iter(names)) if len(names) == 1 else _NAME
    try:
        text = parser.render(Action(tool_calls=(ToolCall(name, {_ARGUMENT: 1}),)))
    except (TypeError, ValueError):  # a name that the format cannot hold
        return ""
    begin, _, arguments = text.partition(_ARGUMENT if len(names) == 1 else _NAME)
    if not arguments or name not in text.partition(_ARGUMENT)[0]:
        return ""
    # a token may hold the quote, the brace or the blank together with what follows: these are left to the policy
    return begin.removesuffix('"').rstrip(" \n{,") if len(names) == 1 else begin.rstrip(" \n")
