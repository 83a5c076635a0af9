"""Any OpenAI-compatible server: somebody else's model, which can be evaluated and recorded, but not trained.

What is not said is the server's own (its settings, or the generation_config.json of its model), so every request says
how to sample in all fields that the server takes. What a server can do is found out by asking it
(`uirl.inference.openai.probe`), not by its name:

- Token ids in, token ids and log-probs out (vLLM, or `uirl serve-model`), with the tokens of our tokenizer: prompts are
  sent as ids and responses keep the engine contract. Where the server reports the plain model's log-probs (vLLM without
  --logprobs-mode processed_logprobs), they are not those of what was sampled once placeholder tokens are banned, or
  with another temperature, top-p or top-k: `log_probs` is None then.
- Anything else gets messages (or a text, where there is no chat API) and answers with text. The text is encoded with
  our tokenizer, for the record; in which tokens it was sampled nobody can tell, so `log_probs` is None, unfit for
  training. Log-probs beside token strings change nothing in that: equal strings are not equal tokens.

Requests with pictures always go as messages: the completions API has no place for them. Reasoning that a server keeps
apart from its answer (`reasoning_content`) is not part of the reply.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from uirl.errors import ContractError, EngineFailure
from uirl.inference.base import (
    Counters,
    Generation,
    GenerationRequest,
    InferenceEngine,
    SamplingParams,
    Weights,
    max_reply_tokens,
)
from uirl.inference.http import ModelServerClient
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.control_tokens import ControlTokens
from uirl.inference.models.loading import LoadedModel
from uirl.inference.openai.answers import ChatAnswer, FinishReason, TextAnswer, TokenAnswer
from uirl.inference.openai.probe import CHAT, COMPLETIONS, ServerProbe, TokenAbility
from uirl.inference.openai.wire import reply_text, wire_messages
from uirl.inference.servers import server_client
from uirl.runtime.limits import whole_characters
from uirl.runtime.wire import WireAnswer, WireError

if TYPE_CHECKING:
    from uirl.config import EngineSettings

A = TypeVar("A", bound=WireAnswer)

OPENAI = "https://api.openai.com/v1"
_FINISHED: dict[FinishReason, str] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "content_filter": "abort",
    "abort": "abort",
}


class OpenAIInferenceEngine(InferenceEngine):
    """Samples from the model behind `client`, whose address ends with the version ('.../v1').

    `loaded`: the tokenizer that the record is written with, and the proof that the server's tokens are the same.
    `model`: its name there; None: the only one it serves, or `loaded.name`. `tools`: JSON schemas of the functions that
    the chat API is told of; the structured calls it answers with become `<tool_call>` blocks of text. `text_parts`: see
    `wire_messages`.
    """

    takes_weights = False

    def __init__(
        self,
        loaded: LoadedModel,
        client: ModelServerClient,
        *,
        model: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        max_context: int | None = None,
        text_parts: bool = False,
    ) -> None:
        self.loaded = loaded
        self.tools = [dict(tool) for tool in tools]
        self._client, self._max_context = client, max_context
        self._server = ServerProbe(client, loaded, model)
        self._text_parts = text_parts
        self._renderer: ChatRenderer | None = None
        self._controls = ControlTokens(loaded)
        self._counters = Counters()

    @classmethod
    def from_config(cls, settings: EngineSettings, loaded: LoadedModel, *, shared: bool) -> OpenAIInferenceEngine:
        """Build the engine that `settings` describe; an address without a path gets the usual '/v1'."""
        inference = settings.inference
        url = inference.server_url or OPENAI
        if urlsplit(url).path in ("", "/"):
            url = url.rstrip("/") + "/v1"
        client = server_client(inference, url)
        return cls(loaded, client, model=inference.server_model, max_context=inference.max_context)

    # -- the contract ------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> Generation:
        ability = None if request.images else await self._server.tokens.get()
        started = time.perf_counter()
        if ability is not None:
            generation = await self._from_ids(request, ability)
        else:
            generation = await self._from_words(request)
        self._counters.add("generated_tokens", len(generation.token_ids))
        self._counters.add("prefill_tokens", len(request.prompt_ids) - generation.cached_tokens)
        self._counters.add("request_seconds", time.perf_counter() - started)
        return generation

    async def update_weights(
        self, weights: Weights | None, version: int, *, adapter: Mapping[str, Any] | None = None
    ) -> None:
        raise ContractError(
            "inference.backend=openai samples from somebody else's model, which cannot be trained: evaluate with it "
            "(uirl eval, RayPPOTrainer.evaluate), or train with inference.backend=transformers, vllm or sglang"
        )

    def stats(self) -> dict[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        await self._client.close()

    # -- token ids ---------------------------------------------------------------------------------------------

    async def _from_ids(self, request: GenerationRequest, ability: TokenAbility) -> Generation:
        """Generate a response in the server's own tokens."""
        sampling, ends = request.sampling, {*self.loaded.end_ids, *request.sampling.stop_token_ids}
        plain = sampling.temperature in (0.0, 1.0) and sampling.top_p == 1 and sampling.top_k == 0
        body = {
            "model": await self._server.model.get(),
            "prompt": list(request.prompt_ids),
            "max_tokens": self._max_tokens(request),
            "logprobs": 1,
            "return_token_ids": True,
            **await self._sampling(sampling, COMPLETIONS),
        }
        bans = ability.takes_bias and bool(self.loaded.banned_ids)
        if bans:
            body["logit_bias"] = {str(token): -100 for token in self.loaded.banned_ids}
        if ability.takes_stops:
            body["stop_token_ids"] = sorted(ends)
        elif sampling.stop_token_ids:
            raise ContractError(f"{self._client.base_url} takes no stop_token_ids; sample without")
        answer = await self._ask(TokenAnswer, COMPLETIONS, body)
        ids, reason = tuple(answer.choice.token_ids), _FINISHED[answer.choice.finish_reason]
        if not 1 <= len(ids) <= sampling.max_tokens:
            raise self._misshapen(f"1 to {sampling.max_tokens} token ids", answer)
        sent = list(request.prompt_ids)
        if answer.prompt_ids not in (None, sent) or answer.usage.prompt_tokens not in (None, len(sent)):
            raise self._misshapen(f"an answer to the {len(sent)} tokens that were sent", answer)
        if reason == "stop" and ids[-1] not in ends:
            raise self._misshapen(f"the end token at the end (one of {sorted(ends)})", answer)
        banned = sorted(set(ids) & set(self.loaded.banned_ids))
        if banned:
            raise EngineFailure(
                f"{self._client.base_url} sampled placeholder tokens {banned}, which are no part of a reply"
            )
        # what the plain model says is true of what was sampled only where nothing was left out or changed
        as_sampled = ability.processed or (plain and not bans)
        log_probs = tuple(answer.choice.logprobs.token_logprobs) if as_sampled else None
        cached = answer.usage.prompt_tokens_details.cached_tokens
        return Generation(ids, log_probs, reason, self.policy_version, cached)

    # -- words -------------------------------------------------------------------------------------------------

    async def _from_words(self, request: GenerationRequest) -> Generation:
        """Generate a response as text, and encode it for the record."""
        limit = await self._server.chat.get() if request.messages else None
        if limit is not None:
            chat = (await self._ask(ChatAnswer, CHAT, await self._chat_body(request, limit))).choice
            text, reason = reply_text(chat.message), _FINISHED[chat.finish_reason]
        elif not request.images and await self._server.text.get():
            choice = (await self._ask(TextAnswer, COMPLETIONS, await self._text_body(request))).choice
            text, reason = whole_characters(choice.text), _FINISHED[choice.finish_reason]
        else:
            missing = "no messages were given" if not request.messages else "it answers no messages of this model"
            raise EngineFailure(
                f"{self._client.base_url} takes no prompt of this kind: {missing}, and it continues no text"
                f"{' with pictures' if request.images else ''}. Is inference.server_model a chat model?"
            )
        ids = self._encoded(text, ended=reason == "stop")
        return Generation(tuple(ids), None, reason, self.policy_version, 0)

    async def _chat_body(self, request: GenerationRequest, limit: str) -> dict[str, Any]:
        body = {
            "model": await self._server.model.get(),
            "messages": wire_messages(request.messages, text_parts=self._text_parts),
            limit: self._max_tokens(request),
            **await self._sampling(request.sampling, CHAT),
            **self._stop_words(request.sampling),
        }
        return body | ({"tools": self.tools} if self.tools else {})

    async def _text_body(self, request: GenerationRequest) -> dict[str, Any]:
        return {
            "model": await self._server.model.get(),
            "prompt": self._as_text(request.prompt_ids),
            "max_tokens": self._max_tokens(request),
            **await self._sampling(request.sampling, COMPLETIONS),
            **self._stop_words(request.sampling),
        }

    def _as_text(self, ids: Sequence[int]) -> str:
        """Decode a prompt to text. Raises EngineFailure where content spells a control token: in a text that the server
        encodes, nothing tells it from one."""
        text: str = self.loaded.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        again = self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self._controls.among(again) != self._controls.among(ids):
            raise EngineFailure(
                f"{self._client.base_url} takes prompts as text alone, and content of this one spells a control token "
                f"({', '.join(self._controls.found_in(text)[:5])}), which would count there; use a server that takes "
                "messages or token ids"
            )
        return text

    def _encoded(self, text: str, *, ended: bool) -> list[int]:
        """Encode the text in our tokens, with the end token that the chat template wants where the reply is
        complete."""
        tokenizer = self.loaded.tokenizer
        if ended and tokenizer.chat_template:
            self._renderer = self._renderer or ChatRenderer(self.loaded)
            return self._renderer.demonstration(text)
        ids = self._controls.encode(self._controls.hide_reply(text))
        return [*ids, self.loaded.end_ids[0]] if ended else ids

    # -- parts of both -----------------------------------------------------------------------------------------

    async def _sampling(self, params: SamplingParams, path: str) -> dict[str, Any]:
        """Return the fields that say how to sample: all that the server takes, because it has defaults of its own."""
        fields: dict[str, Any] = {"temperature": params.temperature, "top_p": params.top_p}
        fields |= await self._server.neutral[path].get()
        if params.top_k > 0:
            fields["top_k"] = params.top_k
        return fields | ({} if params.seed is None else {"seed": params.seed})

    def _stop_words(self, params: SamplingParams) -> dict[str, Any]:
        """Return the stop tokens as words; the model's own ends are the server's business."""
        extra = [token for token in params.stop_token_ids if token not in self.loaded.end_ids]
        return {"stop": [self.loaded.tokenizer.decode([token]) for token in extra]} if extra else {}

    def _max_tokens(self, request: GenerationRequest) -> int:
        wanted = request.sampling.max_tokens
        if self._max_context is None:
            return wanted
        return min(wanted, max_reply_tokens(request.prompt_ids, self._max_context, "inference.max_context"))

    async def _ask(self, model: type[A], path: str, body: Mapping[str, Any]) -> A:
        """Return the server's answer. Raises EngineFailure for one of another shape."""
        try:
            return model.read(await self._client.post(path, body), "the answer")
        except WireError as error:
            problem = self._client.shown(str(error))
            raise EngineFailure(
                f"{self._client.base_url}{path} gave an answer that cannot be used: {problem}"
            ) from None

    def _misshapen(self, expected: str, got: TokenAnswer) -> EngineFailure:
        return EngineFailure(
            f"{self._client.base_url}: expected {expected}, got {self._client.shown(str(got.write()))}"
        )
