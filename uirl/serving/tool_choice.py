"""`tool_choice` and `parallel_tool_calls`: what a client wants of the calls in a reply, and how it gets it.

Nothing constrains the sampler: log-probs would be those of another distribution than the learner's. A reply that is not
as it is wanted is sampled again, once; where a call is missing, the second reply is given its beginning (the opening of
a call, as far as the format lets it stand before the arguments), which is context and not learned. Both replies are
recorded: what was sampled is what is learned. Where the second is not as wanted either, the client gets it as it is,
and the record says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from uirl.parsers.base import ActionParser
from uirl.runtime.limits import shown
from uirl.serving.replies import Reply
from uirl.types import Action, ToolCall

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
