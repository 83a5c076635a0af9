"""What is read of the answers of OpenAI-compatible servers. Servers add fields of their own, which are passed over."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from uirl.runtime.wire import Items, Plain, Text, WireAnswer

FinishReason = Literal["stop", "tool_calls", "function_call", "length", "content_filter", "abort"]


_Tokens = Annotated[int, Field(ge=0, le=2**48)]
"""Of a request: they are added up, and budgets of them are kept in a database."""


class _PromptDetails(WireAnswer):
    cached_tokens: Annotated[_Tokens, Field(strict=False)] = 0


class Usage(WireAnswer):
    """Token counts; a server may leave out all of them."""

    prompt_tokens: _Tokens | None = None
    total_tokens: _Tokens | None = None
    prompt_tokens_details: _PromptDetails = Field(default_factory=_PromptDetails)


class _Choice(WireAnswer):
    finish_reason: FinishReason


class _LogProbs(WireAnswer):
    token_logprobs: Items[float]


class TokenChoice(_Choice):
    """A reply in token ids."""

    token_ids: Items[int]
    logprobs: _LogProbs
    text: Text = ""
    prompt_token_ids: Items[int] | None = None
    """The prompt as the server had it; None: it does not say."""

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.token_ids) != len(self.logprobs.token_logprobs):
            raise ValueError(
                f"has {len(self.token_ids)} token ids and {len(self.logprobs.token_logprobs)} log-probs; expected "
                "token ids with as many log-probs"
            )
        return self


class TextChoice(_Choice):
    """A reply as text."""

    text: Text


class _Function(WireAnswer):
    name: Text
    arguments: Plain = None
    """A text, or an object as some servers write it."""


class _ToolCall(WireAnswer):
    function: _Function


def _joined(content: Any) -> Any:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content


class ReplyMessage(WireAnswer):
    """The message of a chat answer."""

    content: Annotated[Text, BeforeValidator(_joined)] = ""
    """A text, or the texts of a list of parts."""
    refusal: Text = ""
    tool_calls: Items[_ToolCall] = Field(default_factory=list)
    function_call: _Function | None = None
    """What `tool_calls` once was."""

    @property
    def functions(self) -> list[_Function]:
        """All calls."""
        calls = [call.function for call in self.tool_calls]
        return calls if self.function_call is None else [*calls, self.function_call]


class ChatChoice(_Choice):
    """A reply as a message."""

    message: ReplyMessage


C = TypeVar("C", bound=_Choice)


class _Answer(WireAnswer, Generic[C]):
    choices: Annotated[Items[C], Field(min_length=1)]
    usage: Usage = Field(default_factory=Usage)

    @property
    def choice(self) -> C:
        """The only one that was wanted."""
        return self.choices[0]


class TokenAnswer(_Answer[TokenChoice]):
    """Of the completions API, where ids and log-probs were asked for."""

    prompt_token_ids: Items[int] | None = None

    @property
    def prompt_ids(self) -> list[int] | None:
        """The prompt as the server had it; None: it does not say."""
        of_choice = self.choice.prompt_token_ids
        return self.prompt_token_ids if of_choice is None else of_choice


class TextAnswer(_Answer[TextChoice]):
    """Of the completions API."""


class ChatAnswer(_Answer[ChatChoice]):
    """Of the chat API."""


class _Model(WireAnswer):
    id: Text


class ModelList(WireAnswer):
    """The answer to `GET /models`."""

    data: Items[_Model] = Field(default_factory=list)
