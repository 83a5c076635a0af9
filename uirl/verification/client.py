"""The judge's server: any that speaks OpenAI's chat API. Every way in which it gives no answer is a `JudgeFailure`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from uirl.errors import JudgeFailure, is_round
from uirl.http.client import ErrorStatus, HTTPClient, NoResponse, RequestFailure, checked_url, count_tries
from uirl.images import data_url
from uirl.inference.openai.answers import ChatAnswer
from uirl.runtime.limits import InputError, Limits, clip, read_json
from uirl.runtime.wire import WireAnswer, WireError
from uirl.verification.memory import JudgeMemory
from uirl.verification.prompts import Prompt, WouldNotJudge, read_answer

_LOG = logging.getLogger(__name__)
_LIMITS = Limits(size=2**22)
OPENAI = "https://api.openai.com/v1"
URL_VARIABLE, KEY_VARIABLE = "UIRL_LLM_BASE_URL", "UIRL_LLM_API_KEY"
"""Environment variables with the address and the key of the model that judges, where nothing else names them."""
BUDGET = "budget"
"""Cause of a failure that comes of what a person allows to spend."""
MAX_TOKENS = 2000
"""Of one answer."""

A = TypeVar("A", bound=WireAnswer)


def judge_failure(cause: str, message: str) -> JudgeFailure:
    """Return a failure whose message begins with its cause, by which failures are counted: 'timeout', 'rate limit',
    'server', 'refused request', 'connection', 'junk', 'refusal', 'budget', 'no pictures', 'not asked',
    'uncorrected'."""
    return JudgeFailure(f"judge {cause}: {message}")


def cause_of(message: str) -> str:
    """Return the cause in the message of a failure that `judge_failure` made; 'other' for another."""
    head, _, rest = message.partition(": ")
    return head.removeprefix("judge ") if rest and head.startswith("judge ") else "other"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What calls may take."""

    timeout: float = 60.0
    """Seconds of one try."""
    retries: int = 2
    """Further tries after a lost connection, a 408 or 429 and a 5xx."""
    concurrent: int = 8
    """Calls at the same time, of one event loop."""
    max_calls: int | None = None
    """Of one budget; None: no limit."""
    max_tokens: int | None = None
    """Of one budget, prompt and answer, as the server counts them; None: no limit."""


@dataclass(slots=True)
class _Dialect:
    """What of a request the server takes; narrowed where it refuses something."""

    format: str | None = "json_schema"
    limit: str = "max_tokens"
    sampling: bool = True

    def narrowed(self, told: str) -> bool:
        """Leave out what a refusal names; False: it is not about what can be left out."""
        if "max_completion_tokens" in told and self.limit == "max_tokens":
            self.limit = "max_completion_tokens"
        elif self.sampling and ("temperature" in told or "seed" in told):
            self.sampling = False
        elif self.format is not None:
            self.format = "json_object" if self.format == "json_schema" else None
        else:
            return False
        return True


@dataclass(slots=True)
class JudgeClient:
    """Asks one model. Answers are kept by the content of the whole request."""

    model: str
    url: str
    """With the version: 'http://host:8000/v1'."""
    api_key_env: str = KEY_VARIABLE
    """Environment variable with the server's key, which is in no config, no file and no message."""
    limits: CallLimits = field(default_factory=CallLimits)
    memory: JudgeMemory = field(default_factory=JudgeMemory)
    budget: str = "judge"
    """Name of the run: under it is booked what was spent and what was said where somebody else spoke too. It outlives
    the process where the memory is a file."""
    counts: Counter[str] = field(default_factory=Counter)
    """'calls' that were made, 'kept' answers instead of calls, 'tokens', and failures by cause."""
    _dialect: _Dialect = field(default_factory=_Dialect)
    """In which a request was taken."""
    _taken: set[str] = field(default_factory=set)
    """Forms of answers that were asked for in it and given."""
    _http: HTTPClient = field(init=False)
    _slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = field(default_factory=WeakKeyDictionary)
    _asking: dict[tuple[int, str], asyncio.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = checked_url(self.url, f"the environment variable {self.api_key_env}")
        if urlsplit(self.url).path in ("", "/"):
            self.url += "/v1"
        self._http = HTTPClient(self.api_key_env, retries=self.limits.retries)

    async def ask(
        self,
        answer: type[A],
        prompt: Prompt,
        pictures: Sequence[bytes] = (),
        *,
        about: str = "",
        vote: int = 0,
        temperature: float = 0.0,
        fresh: bool = False,
    ) -> A:
        """Return the answer of the model, a kept one where the very same was asked before.

        Args:
            answer: The form it must have.
            prompt: The question.
            pictures: Encoded, shown before the question.
            about: Digest of all that is judged: what differs anywhere is never taken for the same, even where the
                request does not show the difference.
            vote: Number of the vote, which is its seed.
            temperature: Of the sampling.
            fresh: Ask in any case, and keep nothing: whether the server answers is the question.

        Raises:
            JudgeFailure: The server gave none, or junk, or refused; the budget is used up.
        """
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures
        ]
        content.append({"type": "text", "text": prompt.user})
        messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": content}]
        key = self._key(answer, messages, uuid.uuid4().hex if fresh else about, vote, temperature)
        lock = self._asking.setdefault((id(asyncio.get_running_loop()), key), asyncio.Lock())
        try:
            async with lock:  # the same question twice at once is one call
                kept = self.memory.answer(key)
                if kept is not None:
                    self.counts["kept"] += 1
                    return read_answer(answer, kept)
                async with self._slot():
                    text = await self._call(answer, messages, vote, temperature)
                found = self._read(answer, text)
                if not fresh:
                    self.memory.keep(key, text)
                return found
        except JudgeFailure as failure:
            self._count(cause_of(str(failure)), failure)
            raise
        finally:
            if not lock.locked():
                self._asking.pop((id(asyncio.get_running_loop()), key), None)

    async def close(self) -> None:
        """Close all connections and the memory. Calling it twice is fine."""
        await self._http.close()
        self.memory.close()

    # -- parts of it -------------------------------------------------------------------------------------------

    def _key(self, answer: type[A], messages: list[Any], about: str, vote: int, temperature: float) -> str:
        import hashlib

        whole = [self.url, self.model, answer.__name__, messages, about, vote, temperature]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def _slot(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._slots:
            self._slots[loop] = asyncio.Semaphore(self.limits.concurrent)
        return self._slots[loop]

    async def _call(self, answer: type[A], messages: list[Any], vote: int, temperature: float) -> str:
        """Return the text of an answer. A refusal of something that can do without is asked again without it; later
        requests go without it only if that was the reason: a single episode may be refused for its length."""
        dialect = replace(self._dialect)
        while True:
            body = self._body(answer, messages, vote, temperature, dialect)
            if not self.memory.take(self.budget, self.limits.max_calls, self.limits.max_tokens):
                calls, tokens = self.memory.spent(self.budget)
                raise judge_failure(
                    BUDGET,
                    f"{calls} calls and {tokens} tokens are spent of {self.limits.max_calls} calls and "
                    f"{self.limits.max_tokens} tokens (verification.max_calls, verification.max_tokens)",
                )
            self.counts["calls"] += 1
            try:
                answered = await self._http.send(
                    "POST", f"{self.url}/chat/completions", json=body, timeout=self.limits.timeout
                )
            except ErrorStatus as error:
                told = error.response.text[:4000]
                known = answer.__name__ in self._taken
                if error.response.status in (400, 422) and not known and dialect.narrowed(told):
                    said = self._http.shown(told)
                    _LOG.info("%s refuses a field of the request; asked again without: %.200s", self.url, said)
                    continue
                raise self._failure(error) from None
            except RequestFailure as error:
                raise self._failure(error) from None
            self._dialect = dialect
            self._taken.add(answer.__name__)
            return self._text(answered.content)

    def _body(
        self, answer: type[A], messages: list[Any], vote: int, temperature: float, dialect: _Dialect
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": messages, dialect.limit: MAX_TOKENS}
        if dialect.sampling:
            body |= {"temperature": temperature, "seed": vote}
        if dialect.format == "json_schema":
            schema = {"name": answer.__name__, "schema": answer.model_json_schema()}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif dialect.format is not None:
            body["response_format"] = {"type": dialect.format}
        return body

    def _text(self, content: bytes) -> str:
        try:
            answer = ChatAnswer.read(read_json(content, _LIMITS, "the answer"), "the answer")
        except (InputError, WireError) as error:
            raise judge_failure("junk", f"{self.url} gave no answer of the chat API: {clip(str(error), 200)}") from None
        spent = answer.usage.total_tokens or answer.usage.prompt_tokens or 0
        self.memory.book_tokens(self.budget, spent)
        self.counts["tokens"] += spent
        choice = answer.choice
        if choice.message.refusal or choice.finish_reason == "content_filter":
            raise judge_failure("refusal", clip(choice.message.refusal or "a filter of the server cut it off", 200))
        return choice.message.content

    def _read(self, answer: type[A], text: str) -> A:
        try:
            return read_answer(answer, text)
        except WouldNotJudge as error:
            raise judge_failure("refusal", str(error)) from None
        except ValueError as error:
            raise judge_failure("junk", str(error)) from None

    def _failure(self, failure: RequestFailure) -> JudgeFailure:
        tries = f"{self.url} after {count_tries(failure.tries)}"
        if isinstance(failure, NoResponse):
            return judge_failure("timeout", f"{tries}: {failure}; raise verification.timeout or ask for less at once")
        if not isinstance(failure, ErrorStatus):
            return judge_failure("connection", f"{tries}: {clip(str(failure), 200)}; is verification.judge_url right?")
        status = failure.response.status
        told = f"{tries}: {status} {self._http.shown(failure.response.text)}"
        if status == 429:
            return judge_failure("rate limit", f"{told}; lower verification.concurrent or raise verification.retries")
        if status >= 500:
            return judge_failure("server", told)
        hint = f"; is the key in {self.api_key_env} right?" if status in (401, 403) else ""
        return judge_failure("refused request", f"{told}{hint}")

    def _count(self, cause: str, failure: JudgeFailure) -> None:
        self.counts[cause] += 1
        if is_round(self.counts[cause]):
            _LOG.warning("the judge gave no answer (%s, time %d): %.300s", cause, self.counts[cause], failure)


def default_url() -> str:
    """Return the address of the judge's server where the config names none: `UIRL_LLM_BASE_URL`, else OpenAI's."""
    return os.environ.get(URL_VARIABLE, "").strip() or OPENAI


def default_key_variable(url: str) -> str:
    """Return the variable of the key: a key of OpenAI is sent to OpenAI alone."""
    if not os.environ.get(KEY_VARIABLE) and urlsplit(url).hostname == urlsplit(OPENAI).hostname:
        return "OPENAI_API_KEY"
    return KEY_VARIABLE
