"""The two kinds of calls, read from their JSON. What cannot be honoured is refused by name, not passed over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from uirl.inference.base import SamplingParams
from uirl.serving.problems import bad_request
from uirl.serving.protocol.fields import MOST_NOTED, Fields, shown, whole_text
from uirl.serving.protocol.messages import WireMessage, read_messages
from uirl.serving.tool_choice import AS_IT_LIKES, ToolChoice, read_tool_choice

MAX_CHOICES = 32
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
"""Characters of a stop string."""
MAX_STOP_IDS = 1024
MAX_TOP_K, MAX_SEED = 2**31 - 1, 2**63 - 1
"""What every engine and its wire can hold."""
MAX_TOOLS = 1024
_NEUTRAL: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "repeat_penalty": 1,
    "min_p": 0,
    "typical_p": 1,
    "logit_bias": {},
}
"""What may be said, because it changes nothing; in the words of OpenAI, vLLM, SGLang and llama.cpp."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What a call asks for beside its prompt."""

    model: str
    asked: Mapping[str, Any] = field(default_factory=dict)
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
            return replace(defaults, **self.asked)
        most = min(self.asked.get("max_tokens", fixed.max_tokens), fixed.max_tokens)
        stops = (*fixed.stop_token_ids, *self.asked.get("stop_token_ids", ()))
        return replace(fixed, max_tokens=most, seed=self.asked.get("seed", fixed.seed), stop_token_ids=stops)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call of /v1/chat/completions."""

    options: CallOptions
    messages: tuple[WireMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tools_key: str = ""
    """Equal for the same tools in the same words: the template writes them as they stand."""
    ignored: tuple[str, ...] = ()
    """Fields of replies that were sent back which were passed over (`WireMessage.ignored`)."""
    choice: ToolChoice = AS_IT_LIKES


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A call of /v1/completions."""

    options: CallOptions
    prompt: str | tuple[int, ...]


def read_chat_call(value: Any) -> ChatCall:
    """The call in the JSON of a request. Raises a 400 that names the field."""
    fields = Fields(value)
    messages = read_messages(fields.take("messages", list))
    tools, key = _read_tools(fields.take("tools", list, []))
    parallel = fields.take("parallel_tool_calls", bool, True)
    names = [tool["function"]["name"] for tool in tools]
    choice = read_tool_choice(fields.raw("tool_choice"), parallel, names)
    log_probs = fields.take("logprobs", bool, False)
    fields.only("top_logprobs", 0, why="engines return the log-prob of the sampled token alone")
    fields.only("response_format", {"type": "text"}, why="replies are not constrained")
    fields.only("modalities", ["text"], why="replies are text")
    fields.only("functions", [], why="use tools")
    fields.only("function_call", "none", why="use tool_choice")
    fields.ignore("reasoning_effort", "verbosity")
    most = _agreeing(fields, "max_completion_tokens", "max_tokens")
    options = read_options(fields, most, log_probs)
    fields.close()
    return ChatCall(options, messages, tools, key, notes_of(messages), choice)


def notes_of(messages: Iterable[WireMessage]) -> tuple[str, ...]:
    """The fields of replies that were passed over, each once."""
    return tuple(dict.fromkeys(name for message in messages for name in message.ignored))[:MOST_NOTED]


def read_completion_call(value: Any) -> CompletionCall:
    """The call in the JSON of a request. Raises a 400 that names the field."""
    fields = Fields(value)
    prompt = _read_prompt(fields.raw("prompt"))
    log_probs = fields.raw("logprobs")
    if log_probs is not None and (isinstance(log_probs, bool) or log_probs not in (0, 1)):
        raise bad_request(
            f"expected 0 or 1, got {shown(log_probs)}: engines return the log-prob of the sampled token alone",
            "logprobs",
        )
    fields.only("echo", False, why="the prompt is not repeated")
    fields.only("suffix", "", why="nothing is filled in between")
    fields.only("best_of", 1, why="every reply is returned; use n")
    options = read_options(fields, fields.take("max_tokens", int, None), log_probs is not None)
    fields.close()
    return CompletionCall(options, prompt)


def read_options(fields: Fields, max_tokens: int | None, log_probs: bool) -> CallOptions:
    """What all kinds of calls may ask for; `max_tokens` and `log_probs` are said in different words."""
    for name, neutral in _NEUTRAL.items():
        fields.only(name, neutral, why="it would make the log-probs those of another distribution than the learner's")
    fields.ignore("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
    stream = fields.take("stream", bool, False)
    usage = _read_stream_options(fields, stream)
    choices = fields.take("n", int, 1)
    if not 1 <= choices <= MAX_CHOICES:
        raise bad_request(f"expected 1 to {MAX_CHOICES}, got {choices}", "n")
    return CallOptions(
        model=fields.take("model", str),
        asked=_read_sampling(fields, max_tokens),
        stop=_read_stop(fields.raw("stop")),
        choices=choices,
        stream=stream,
        include_usage=usage,
        log_probs=log_probs,
        token_ids=fields.take("return_token_ids", bool, False),
    )


def _read_sampling(fields: Fields, max_tokens: int | None) -> dict[str, Any]:
    """The sampling fields that are there, each proved to be one that `SamplingParams` takes."""
    read = {
        "temperature": fields.take("temperature", float, None),
        "top_p": fields.take("top_p", float, None),
        "top_k": fields.take("top_k", int, None),
        "seed": fields.take("seed", int, None),
        "max_tokens": max_tokens,
        "stop_token_ids": _read_stop_ids(fields.take("stop_token_ids", list, None)),
    }
    asked = {name: value for name, value in read.items() if value is not None}
    for name, value in asked.items():
        try:
            SamplingParams(**{name: value})
        except ValueError as error:
            raise bad_request(str(error).removeprefix(f"SamplingParams.{name} "), name) from error
    for name, most in (("top_k", MAX_TOP_K), ("seed", MAX_SEED)):
        if abs(asked.get(name, 0)) > most:
            raise bad_request(f"expected at most {most}, got {asked[name]}", name)
    if asked.get("top_k", 0) < -1:
        raise bad_request(f"must be at least 0 (0 or -1: no limit), got {asked['top_k']}", "top_k")
    return asked | ({"top_k": 0} if asked.get("top_k") == -1 else {})


def _read_stop_ids(values: list[Any] | None) -> tuple[int, ...] | None:
    """The tokens that end a reply, as vLLM names them; None: not asked for."""
    if values is not None and not all(type(token) is int and token >= 0 for token in values):
        raise bad_request(f"expected a list of token ids, got {shown(values)}", "stop_token_ids")
    if values is not None and len(values) > MAX_STOP_IDS:
        raise bad_request(f"expected at most {MAX_STOP_IDS} token ids, got {len(values)}", "stop_token_ids")
    return None if values is None else tuple(values)


def _agreeing(fields: Fields, name: str, older: str) -> int | None:
    """The value of a field that has two names."""
    value, other = fields.take(name, int, None), fields.take(older, int, None)
    if None not in (value, other) and value != other:
        raise bad_request(f"says {value} and {older} says {other}; give one of them", name)
    return other if value is None else value


def _read_stream_options(fields: Fields, stream: bool) -> bool:
    value = fields.raw("stream_options")
    if value is None:
        return False
    if not stream:
        raise bad_request("is only allowed with stream=true", "stream_options")
    options = Fields(value, "stream_options")
    usage = bool(options.take("include_usage", bool, False))
    options.ignore("include_obfuscation")
    options.close()
    return usage


def _read_stop(value: Any) -> tuple[str, ...]:
    words = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise bad_request(f"expected a string or a list of strings, none of them empty, got {shown(value)}", "stop")
    if len(words) > MAX_STOPS:
        raise bad_request(f"expected at most {MAX_STOPS} strings, got {len(words)}", "stop")
    longest = max(map(len, words), default=0)
    if longest > MAX_STOP_LENGTH:
        raise bad_request(f"expected at most {MAX_STOP_LENGTH} characters in a string, got {longest}", "stop")
    return tuple(whole_text(word, "stop") for word in words)


def _read_tools(values: list[Any]) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """The tools, and their key."""
    if len(values) > MAX_TOOLS:
        raise bad_request(f"expected at most {MAX_TOOLS} tools, got {len(values)}", "tools")
    for i, value in enumerate(values):
        tool = Fields(value, f"tools[{i}]")
        tool.only("type", "function", why="only functions can be called")
        function = Fields(tool.take("function", dict), tool.at("function"))
        tool.close()
        if not function.take("name", str):
            raise bad_request("is empty", function.at("name"))
        function.take("description", str, "")
        Fields(function.take("parameters", dict, {}), function.at("parameters"))
        function.take("strict", bool, False)  # not enforced: arguments are what the policy writes, as the guide says
        function.close()
    return tuple(values), tools_key(values)


def tools_key(tools: Sequence[Any]) -> str:
    """Equal for the same tools in the same words."""
    return whole_text(json.dumps(tools, ensure_ascii=False) if tools else "", "tools")


def _read_prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and value:
        return whole_text(value, "prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        return _read_prompt(value[0])
    if isinstance(value, list) and value and all(type(token) is int and token >= 0 for token in value):
        return tuple(value)
    raise bad_request(
        f"expected one prompt, a string or a list of token ids, got {shown(value)}; several prompts are several calls",
        "prompt",
    )
