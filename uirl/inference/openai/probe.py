"""What a server that calls itself OpenAI-compatible really does, found out by asking it a few tokens."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from uirl.errors import ConfigError, did_you_mean
from uirl.inference.http import ModelServerClient, ServerFailure
from uirl.inference.models.loading import LoadedModel
from uirl.inference.openai.answers import ModelList, TokenAnswer
from uirl.runtime.once import Once
from uirl.runtime.wire import WireError

_LOG = logging.getLogger(__name__)
COMPLETIONS, CHAT = "/completions", "/chat/completions"
_LIMIT = "max_tokens"

NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "repetition_penalty": (1.0,),
    "repeat_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
}
"""Fields with which servers shape what they sample, and the values with which they do not (servers disagree on which
means 'no limit'). What is not said is the server's own: its settings, or the generation_config.json of its model."""
_SILENT = frozenset({401, 403, 408, 429})
"""Statuses that say nothing about what a server can do: a key is missing, or it is busy."""
_SURE = 1e-3
"""A log-prob nearer to 0 than this does not tell a filtered distribution from a plain one."""


@dataclass(frozen=True, slots=True)
class TokenAbility:
    """How a server answers token ids with token ids."""

    takes_bias: bool
    """`logit_bias` does what it says: placeholder tokens can be banned."""
    takes_stops: bool
    """`stop_token_ids` is taken."""
    processed: bool
    """Log-probs are those after bias, temperature and filters (vLLM: --logprobs-mode processed_logprobs); else those of
    the plain model, true only where none of these changes anything."""


class ServerProbe:
    """What one server can do; each question is asked when its answer is first needed, and once."""

    def __init__(self, client: ModelServerClient, loaded: LoadedModel, model: str | None) -> None:
        """`model`: its name there; None: the only one that the server names, or `loaded.name`."""
        self._client, self._loaded, self._named_model = client, loaded, model
        self.model = Once(self._choose_model)
        self.tokens = Once(self._probe_tokens)
        """How it answers token ids; None: it does not, or its tokens are not those of `loaded`."""
        self.text = Once(self._continues_text)
        """Whether it continues a text."""
        self.chat = Once(self._chat_limit)
        """Name of the field that limits an answer of the chat API; None: there is no chat API for this model."""
        self.neutral = {path: Once(partial(self._probe_neutral, path)) for path in (COMPLETIONS, CHAT)}
        """Path -> the fields of `NEUTRAL` that it takes there, with the values it takes."""

    async def _choose_model(self) -> str:
        if self._named_model:
            return self._named_model
        default = self._loaded.name
        try:
            answer = await self._client.get("/models")
        except ServerFailure as error:
            if not _says_no(error):
                raise
            return default
        try:
            names = [model.id for model in ModelList.read(answer).data]
        except WireError:
            names = []
        if len(names) == 1 or not names:
            return names[0] if names else default
        if default not in names:
            raise ConfigError(
                f"{self._client.base_url} serves {len(names)} models, and model.model_name {default!r} is none of "
                f"them; set inference.server_model ({did_you_mean(default, names)[:300]})"
            )
        return default

    async def _probe_neutral(self, path: str) -> dict[str, float]:
        body = await (self._text_body() if path == COMPLETIONS else self._chat_body(await self.chat.get() or _LIMIT))
        usual = {name: values[0] for name, values in NEUTRAL.items()}
        if await self._accepted(path, {**body, **usual}) is not None:
            return usual
        if await self._accepted(path, body) is None:
            return {}
        taken: dict[str, float] = {}
        for name, values in NEUTRAL.items():
            for value in values:
                if await self._accepted(path, {**body, name: value}) is not None:
                    taken[name] = value
                    break
        if taken and (others := [name for name in NEUTRAL if name not in taken]):
            _LOG.info("%s%s takes no %s: its own hold, if it has any", self._client.base_url, path, ", ".join(others))
        return taken

    async def _probe_tokens(self) -> TokenAbility | None:
        neutral = await self.neutral[COMPLETIONS].get()
        ability = await self._token_ability(neutral)
        how = ability or "text only: replies have no log-probs"
        _LOG.info("%s serves %s: %s", self._client.base_url, await self.model.get(), how)
        return ability

    async def _token_ability(self, neutral: Mapping[str, float]) -> TokenAbility | None:
        tokenizer = self._loaded.tokenizer
        prompt = list(tokenizer("The quick brown fox", add_special_tokens=False)["input_ids"])
        base = {"model": await self.model.get(), "prompt": prompt, "logprobs": 1, "return_token_ids": True}
        base |= {"max_tokens": 1, **neutral}

        async def ask(**fields: Any) -> TokenAnswer | None:
            try:
                answer = TokenAnswer.read(await self._accepted(COMPLETIONS, base | fields))
            except WireError:
                return None
            return answer if answer.choice.token_ids else None

        first = await ask(temperature=0.0, max_tokens=4)
        if first is None or first.prompt_ids not in (None, prompt):
            return None
        ids = first.choice.token_ids
        if first.choice.text not in [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (True, False)]:
            return None
        likeliest, plain = ids[0], _first_log_prob(first)
        filtered = await ask(temperature=1.0, top_p=1e-6)
        # the lowest temperature that vLLM takes as it is
        cold = await ask(temperature=0.01)
        biased = await ask(temperature=1.0, top_p=1e-6, logit_bias={str(likeliest): -100})
        stops = await ask(temperature=0.0, stop_token_ids=sorted(self._loaded.end_ids))
        takes_bias = biased is not None and biased.choice.token_ids != [likeliest]
        # one token is left of the distribution: its log-prob is 0, unless it is told as the plain model has it
        one_left = [filtered, biased] if takes_bias else [filtered]
        processed = plain < -_SURE and all(one is not None and _first_log_prob(one) > -_SURE for one in one_left)
        scaled = (
            cold is not None
            and cold.choice.token_ids == [likeliest]
            and abs(_first_log_prob(cold) - plain) > _SURE / 10
        )
        return TokenAbility(takes_bias, stops is not None, processed and scaled)

    async def _continues_text(self) -> bool:
        return await self._accepted(COMPLETIONS, await self._text_body()) is not None

    async def _chat_limit(self) -> str | None:
        try:
            await self._client.post(CHAT, await self._chat_body(_LIMIT))
        except ServerFailure as error:
            if not _says_no(error):
                raise
            if "max_completion_tokens" not in str(error):
                return None
            await self._client.post(CHAT, await self._chat_body("max_completion_tokens"))
            return "max_completion_tokens"
        return _LIMIT

    async def _text_body(self) -> dict[str, Any]:
        """Build a request for one token after a text."""
        return {"model": await self.model.get(), "prompt": "The quick brown fox", "max_tokens": 1}

    async def _chat_body(self, limit: str) -> dict[str, Any]:
        """Build a request for one token of an answer; `limit`: the field that says so."""
        messages = [{"role": "user", "content": "Say ok."}]
        return {"model": await self.model.get(), "messages": messages, limit: 1}

    async def _accepted(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer; None where the server does not know the path, the model there, or a field."""
        try:
            return await self._client.post(path, body)
        except ServerFailure as error:
            if not _says_no(error):
                raise
            return None


def _first_log_prob(answer: TokenAnswer) -> float:
    return answer.choice.logprobs.token_logprobs[0]


def _says_no(error: ServerFailure) -> bool:
    """Whether the answer was that this cannot be done. Some servers say it with a 500, again and again."""
    status = error.status or 0
    return (400 <= status < 500 and status not in _SILENT) or status in (500, 501)
