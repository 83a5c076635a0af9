"""The calls of chat completions and of completions, and tools, read from their JSON.

What cannot be honoured is refused by name, not passed over.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from uirl.inference.base import SamplingParams
from uirl.runtime.wire import WireAnswer, WireModel
from uirl.serving.protocol.fields import (
    MAX_NOTED,
    Ignored,
    Name,
    Text,
    bad_request,
    only,
    parse,
    refused,
    shown,
    whole_text,
)
from uirl.serving.protocol.messages import WireMessage, read_messages
from uirl.serving.replies import AS_IT_LIKES, ToolChoice

MAX_TOOLS = 1024


class _Parameters(WireAnswer):
    """A JSON schema: whatever it says, the template shows it."""


class _Function(WireModel):
    name: Name
    description: Text = ""
    parameters: _Parameters | None = None
    strict: bool = False
    """Not enforced: arguments are what the policy writes, as the guide says."""


class _Tool(WireModel):
    """As chat completions write it."""

    type: Annotated[Any, only("function", why="only functions can be called")] = None
    function: _Function


class _FlatTool(_Function):
    """As responses write it."""

    type: Annotated[Any, only("function", why="only functions can be called")] = None


class _NamedFunction(WireModel):
    name: Text


class _NamedChoice(WireModel):
    """Chat completions put the name into an object of its own, responses do not."""

    type: str
    function: _NamedFunction | None = None
    name: Text | None = None


def read_tools(values: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Read the tools of a chat completion, as they were written. Raises a 400 that names the place."""
    _check_count(values)
    for i, value in enumerate(values):
        parse(_Tool, value, f"tools[{i}]")
    return tuple(values)


def read_flat_tools(values: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Read the tools of a response as chat completions write them, which is how templates show them."""
    _check_count(values)
    tools: list[Mapping[str, Any]] = []
    for i, value in enumerate(values):
        parse(_FlatTool, value, f"tools[{i}]")
        function = {name: value[name] for name in ("name", "description", "parameters") if value.get(name) is not None}
        tools.append({"type": "function", "function": function})
    return tuple(tools)


def tools_key(tools: Sequence[Any]) -> str:
    """Equal for the same tools in the same words."""
    return whole_text(json.dumps(tools, ensure_ascii=False) if tools else "", "tools")


def read_tool_choice(value: Any, parallel: bool, tools: Collection[str]) -> ToolChoice:
    """Read the choice in the JSON of a request, whose tools have the names `tools`. Raises a 400 for one that cannot
    be."""
    if value in (None, "auto", "none"):
        return ToolChoice(value or "auto", (), parallel)
    if value == "required":
        if not tools:
            raise bad_request("'required' is only allowed with tools", "tool_choice")
        return ToolChoice("required", tuple(tools), parallel)
    if not isinstance(value, dict) or value.get("type") != "function":
        raise bad_request(
            f"expected 'auto', 'none', 'required' or one function, got {shown(value)}",
            "tool_choice",
            "unsupported_value",
        )
    choice = parse(_NamedChoice, value, "tool_choice")
    at = "tool_choice.name" if choice.function is None else "tool_choice.function.name"
    name = choice.name if choice.function is None else choice.function.name
    if name is None:
        raise bad_request("is missing", at, "missing_required_parameter")
    if name not in tools:
        raise bad_request(f"there is no tool {shown(name)} in tools", at)
    return ToolChoice(name, (name,), parallel)


def _check_count(values: list[Any]) -> None:
    if len(values) > MAX_TOOLS:
        raise bad_request(f"expected at most {MAX_TOOLS} tools, got {len(values)}", "tools")


MAX_CHOICES = 32
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
"""Characters of a stop string."""
MAX_STOP_IDS = 1024
MAX_TOP_K, MAX_SEED = 2**31 - 1, 2**63 - 1
"""What every engine and its wire can hold."""
_OTHER_DISTRIBUTION = "it would make the log-probs those of another distribution than the learner's"
_SAMPLED_ALONE = "engines return the log-prob of the sampled token alone"
_Zero = Annotated[Any, only(0, why=_OTHER_DISTRIBUTION)]
_One = Annotated[Any, only(1, why=_OTHER_DISTRIBUTION)]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a call asks for beside its prompt."""

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The fields of `SamplingParams` that the client set."""
    stop: tuple[str, ...] = ()
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    log_probs: bool = False
    token_ids: bool = False
    """The ids of prompt and reply are wanted too."""

    def sampling(self, defaults: SamplingParams, fixed: SamplingParams | None) -> SamplingParams:
        """How to sample: what was asked, else `defaults`. Where `fixed` is given, it rules; a client may only ask for
        fewer tokens."""
        if fixed is None:
            return replace(defaults, **self.fields)
        max_tokens = min(self.fields.get("max_tokens", fixed.max_tokens), fixed.max_tokens)
        stops = (*fixed.stop_token_ids, *self.fields.get("stop_token_ids", ()))
        return replace(fixed, max_tokens=max_tokens, seed=self.fields.get("seed", fixed.seed), stop_token_ids=stops)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call of /v1/chat/completions or /v1/responses."""

    options: CallOptions
    messages: tuple[WireMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tools_key: str = ""
    """Equal for the same tools in the same words: the template writes them as they stand."""
    ignored: tuple[str, ...] = ()
    """Fields of replies that were sent back which were passed over (`WireMessage.ignored`)."""
    choice: ToolChoice = AS_IT_LIKES
    echo: Mapping[str, Any] | None = None
    """What an answer of /v1/responses repeats of the request; None: it is not asked for by that API."""


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A call of /v1/completions."""

    options: CallOptions
    prompt: str | tuple[int, ...]


def _stop(value: Any) -> tuple[str, ...]:
    words = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise refused(f"expected a string or a list of strings, none of them empty, got {shown(value)}")
    if len(words) > MAX_STOPS:
        raise refused(f"expected at most {MAX_STOPS} strings, got {len(words)}")
    longest = max(map(len, words), default=0)
    if longest > MAX_STOP_LENGTH:
        raise refused(f"expected at most {MAX_STOP_LENGTH} characters in a string, got {longest}")
    return tuple(words)


def _stop_ids(values: list[Any]) -> tuple[int, ...]:
    if not all(type(token) is int and token >= 0 for token in values):
        raise refused(f"expected a list of token ids, got {shown(values)}")
    if len(values) > MAX_STOP_IDS:
        raise refused(f"expected at most {MAX_STOP_IDS} token ids, got {len(values)}")
    return tuple(values)


def _choices(count: int) -> int:
    if not 1 <= count <= MAX_CHOICES:
        raise refused(f"expected 1 to {MAX_CHOICES}, got {count}")
    return count


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return whole_text(value, "prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        return _prompt(value[0])
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise refused(
        f"expected one prompt, a string or a list of token ids, got {shown(value)}; several prompts are several calls"
    )


def _one_log_prob(value: Any) -> Any:
    if isinstance(value, bool) or value not in (0, 1):
        raise refused(f"expected 0 or 1, got {shown(value)}: {_SAMPLED_ALONE}")
    return value


class _StreamOptions(WireModel):
    include_usage: bool = False
    include_obfuscation: Ignored = None


class CallRequest(WireModel):
    """What all kinds of calls may ask for."""

    model: Text
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1: no limit."""
    seed: int | None = None
    stop: Annotated[Any, AfterValidator(_stop)] = ()
    stop_token_ids: Annotated[list[Any], AfterValidator(_stop_ids)] | None = None
    """The tokens that end a reply, as vLLM names them."""
    stream: bool = False
    stream_options: _StreamOptions | None = None
    return_token_ids: bool = False
    # allowed, because they change nothing; in the words of OpenAI, vLLM, SGLang and llama.cpp
    presence_penalty: _Zero = None
    frequency_penalty: _Zero = None
    repetition_penalty: _One = None
    repeat_penalty: _One = None
    min_p: _Zero = None
    typical_p: _One = None
    logit_bias: Annotated[Any, only({}, why=_OTHER_DISTRIBUTION)] = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None

    def options(self, max_tokens: int | None, *, log_probs: bool, choices: int = 1) -> CallOptions:
        """Return the options; each kind of call has its own words for those that are given here. Raises a 400."""
        if self.stream_options is not None and not self.stream:
            raise bad_request("is only allowed with stream=true", "stream_options")
        for word in self.stop:
            whole_text(word, "stop")
        return CallOptions(
            model=self.model,
            fields=self._sampling(max_tokens),
            stop=self.stop,
            choices=choices,
            stream=self.stream,
            include_usage=self.stream_options is not None and self.stream_options.include_usage,
            log_probs=log_probs,
            token_ids=self.return_token_ids,
        )

    def _sampling(self, max_tokens: int | None) -> dict[str, Any]:
        """Return the sampling fields that are there, each proved to be one that `SamplingParams` takes."""
        names = ("temperature", "top_p", "top_k", "seed", "stop_token_ids")
        values: dict[str, Any] = {name: getattr(self, name) for name in names} | {"max_tokens": max_tokens}
        fields = {name: value for name, value in values.items() if value is not None}
        for name, value in fields.items():
            try:
                SamplingParams(**{name: value})
            except ValueError as error:
                raise bad_request(str(error).removeprefix(f"SamplingParams.{name} "), name) from error
        for name, limit in (("top_k", MAX_TOP_K), ("seed", MAX_SEED)):
            if abs(fields.get(name, 0)) > limit:
                raise bad_request(f"expected at most {limit}, got {fields[name]}", name)
        if fields.get("top_k", 0) < -1:
            raise bad_request(f"must be at least 0 (0 or -1: no limit), got {fields['top_k']}", "top_k")
        return fields | ({"top_k": 0} if fields.get("top_k") == -1 else {})


class ChatRequest(CallRequest):
    """The JSON of /v1/chat/completions."""

    messages: list[Any]
    tools: list[Any] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Annotated[int, AfterValidator(_choices)] = 1
    logprobs: bool = False
    top_logprobs: Annotated[Any, only(0, why=_SAMPLED_ALONE)] = None
    response_format: Annotated[Any, only({"type": "text"}, why="replies are not constrained")] = None
    modalities: Annotated[Any, only(["text"], why="replies are text")] = None
    functions: Annotated[Any, only([], why="use tools")] = None
    function_call: Annotated[Any, only("none", why="use tool_choice")] = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None


class CompletionRequest(CallRequest):
    """The JSON of /v1/completions."""

    prompt: Annotated[Any, AfterValidator(_prompt)]
    max_tokens: int | None = None
    n: Annotated[int, AfterValidator(_choices)] = 1
    logprobs: Annotated[Any, AfterValidator(_one_log_prob)] = None
    echo: Annotated[Any, only(False, why="the prompt is not repeated")] = None
    suffix: Annotated[Any, only("", why="nothing is filled in between")] = None
    best_of: Annotated[Any, only(1, why="every reply is returned; use n")] = None


def read_chat_call(value: Any) -> ChatCall:
    """Read the call in the JSON of a request. Raises a 400 that names the field."""
    request = parse(ChatRequest, value)
    messages = read_messages(request.messages)
    tools = read_tools(request.tools)
    names = [tool["function"]["name"] for tool in tools]
    choice = read_tool_choice(request.tool_choice, request.parallel_tool_calls, names)
    max_tokens = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    if request.max_tokens not in (None, max_tokens):
        raise bad_request(
            f"says {max_tokens} and max_tokens says {request.max_tokens}; give one of them", "max_completion_tokens"
        )
    options = request.options(max_tokens, log_probs=request.logprobs, choices=request.n)
    return ChatCall(options, messages, tools, tools_key(tools), notes_of(messages), choice)


def notes_of(messages: Iterable[WireMessage]) -> tuple[str, ...]:
    """Return the fields of replies that were passed over, each once."""
    return tuple(dict.fromkeys(name for message in messages for name in message.ignored))[:MAX_NOTED]


def read_completion_call(value: Any) -> CompletionCall:
    """Read the call in the JSON of a request. Raises a 400 that names the field."""
    request = parse(CompletionRequest, value)
    options = request.options(request.max_tokens, log_probs=request.logprobs is not None, choices=request.n)
    return CompletionCall(options, request.prompt)
