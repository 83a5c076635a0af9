"""The client of one model server: JSON over HTTP, retries, and failures that say what to change.

Sent again, after growing pauses: what got lost on the way (no connection, a connection that broke), a 408 or 429, and
any 5xx. Not sent again: other answers, which would be the same, and a request whose time is up. The key never appears
in a message, a log or a repr.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from uirl.errors import EngineFailure, PromptTooLong
from uirl.runtime.http import (
    ClientClosed,
    ConnectionLost,
    ErrorStatus,
    HTTPTransport,
    NoResponse,
    RequestFailure,
    RetryPolicy,
    checked_url,
    count_tries,
)

SHOWN = 300
"""Characters of an answer that stand in an error."""
_TOO_LONG = re.compile(
    r"context[_ ]length|context (window|size)|maximum (model|sequence|allowed) length|max_model_len"
    r"|prompt is too long|token count[^.]{0,20}exceeds|inputs?\W+tokens\W+\+\W+\W*max_new_tokens",
    re.IGNORECASE,
)
"""How servers say so: OpenAI and vLLM (`context_length_exceeded`, "maximum context length", "maximum model length"),
SGLang ("context length", "maximum allowed length"), llama.cpp ("context size"), TGI, Anthropic, Gemini."""


class ServerFailure(EngineFailure):
    """A server gave no usable answer."""

    status: int | None = None
    """HTTP status of the last answer; None: there was none."""


class ServerPromptTooLong(ServerFailure, PromptTooLong):
    """A server says that prompt and reply take more tokens than its model does."""


def says_too_long(text: str) -> bool:
    """Return whether the words of a server that refused a prompt say that it is too long for its model."""
    return _TOO_LONG.search(text[:4000]) is not None


class HTTPClient:
    """JSON over HTTP to one server, from any number of event loops; as many requests at once as are made.

    `base_url`: 'http://host:8000', with or without a path. `api_key_env`: environment variable with the server's key,
    read at every call and sent as a bearer token; None or an empty variable: no key. `timeout`: seconds that one try
    may take, all of it. `retries`: further tries after the first. `backoff`: seconds of the first pause, which doubles.
    Raises ConfigError for an address that is none or holds a secret, and where the package httpx is missing.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key_env: str | None = None,
        timeout: float = 120.0,
        retries: int = 3,
        backoff: float = 0.5,
    ) -> None:
        self.base_url = checked_url(base_url, "the environment variable that inference.api_key_env names")
        self.api_key_env = api_key_env
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self.transport = HTTPTransport("server")

    def __repr__(self) -> str:
        return f"HTTPClient({self.base_url!r})"

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        text: bool = False,
    ) -> Any:
        """Return the server's answer to `body` as JSON: see `request`. `retries=0` for what must not happen twice."""
        return await self.request("POST", path, body, timeout=timeout, retries=retries, text=text)

    async def get(
        self, path: str, *, timeout: float | None = None, retries: int | None = None, text: bool = False
    ) -> Any:
        """Return the server's answer as JSON: see `request`."""
        return await self.request("GET", path, None, timeout=timeout, retries=retries, text=text)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        text: bool = False,
    ) -> Any:
        """Return what the JSON of the answer says; with `text` the answer as it is. An empty answer is None.

        `timeout`, `retries`: for this call; None: those of the client. Raises ServerFailure with the address, what
        came back, the number of tries and a remedy.
        """
        limit = self.timeout if timeout is None else timeout
        policy = RetryPolicy(self.retries if retries is None else retries, self.backoff)
        headers = {"content-type": "application/json"} | self._authorization()
        # escaped to ASCII: half a surrogate pair, which a policy can well say, has no UTF-8
        content = None if body is None else json.dumps(body, allow_nan=False).encode()
        try:
            answer = await self.transport.send(
                method, self.base_url + path, policy, timeout=limit, headers=headers, content=content
            )
        except ClientClosed:
            raise EngineFailure(f"the client of {self.base_url} is closed; make a new engine") from None
        except RequestFailure as failure:
            raise self._failure(f"{method} {self.base_url}{path}", failure) from None
        if text:
            return answer.text
        if not answer.content.strip():
            return None
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError):
            no_json = RequestFailure(f"an answer that is no JSON: {self.shown(answer.text)}")
            raise self._failure(f"{method} {self.base_url}{path}", no_json, answer.status) from None

    async def close(self) -> None:
        """Close all connections. Calling it twice is fine; calls that come later fail."""
        await self.transport.close()

    # -- the key -----------------------------------------------------------------------------------------------

    def _key(self) -> str:
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def _authorization(self) -> dict[str, str]:
        key = self._key()
        if key and not (key.isascii() and key.isprintable()):
            raise EngineFailure(
                f"the environment variable {self.api_key_env} holds characters that no HTTP header may carry; expected "
                "a key of printable ASCII"
            )
        return {"authorization": f"Bearer {key}"} if key else {}

    def shown(self, text: str) -> str:
        """Return what came back, for an error: short, and without the key where the server repeats it."""
        key = self._key()
        clean = text.replace(key, "***") if key else text
        return repr(clean[:SHOWN]) + (f" (and {len(clean) - SHOWN} more characters)" if len(clean) > SHOWN else "")

    # -- failures ----------------------------------------------------------------------------------------------

    def _failure(self, request: str, failure: RequestFailure, status: int | None = None) -> ServerFailure:
        """Return the ServerFailure of a `request` ('POST http://...') that was given up."""
        what, too_long = str(failure), False
        if isinstance(failure, ErrorStatus):
            answer = failure.response
            status, what, remedy = answer.status, f"{failure}: {self.shown(answer.text)}", self._remedy(answer.status)
            too_long = status in (400, 413, 422) and says_too_long(answer.text)
        elif isinstance(failure, NoResponse):
            remedy = "Raise inference.request_timeout, or ask for less at once (rollout.parallel)."
        elif isinstance(failure, ConnectionLost):
            what = f"{type(failure.error).__name__}: {self.shown(str(failure.error))}"
            remedy = "Does the server run, and is inference.server_url its address?"
        else:
            remedy = "Is inference.server_url the address of such a server?"
        if too_long:
            remedy = "Set inference.max_context to what its model takes, or show less (rollout.token_budget)."
        message = f"{request} failed after {count_tries(failure.tries)}: {what}. {remedy}"
        typed = ServerPromptTooLong(message) if too_long else ServerFailure(message)
        typed.status = status
        return typed

    def _remedy(self, status: int) -> str:
        """Return what to do about an answer of this status."""
        if status in (401, 403):
            problem = "holds a key that it does not take" if self._key() else "is not set"
            variable = f"; the environment variable {self.api_key_env} {problem} (inference.api_key_env)"
            return f"The server wants a key{variable if self.api_key_env else ''}."
        if status == 404:
            return "Is inference.server_url right, and does the server know inference.server_model?"
        if status == 429:
            return "Ask for less at once (rollout.parallel), or try more often (inference.request_retries)."
        if status >= 500:
            return "The server's own log says more."
        if status < 400:
            return "The server points elsewhere; give inference.server_url the address that answers."
        return "The server does not take this request; its answer says why."
