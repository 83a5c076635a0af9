"""The client of one model server: JSON over HTTP, and failures that say what to change.

Sent again, after growing pauses: what got lost on the way (no connection, a connection that broke), a 408 or 429, and
any 5xx. Not sent again: other answers, which would be the same, and a request whose time is up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from uirl.errors import EngineFailure, PromptTooLong
from uirl.http.client import (
    ClientClosed,
    ConnectionLost,
    ErrorStatus,
    HTTPClient,
    NoResponse,
    RequestFailure,
    checked_url,
    count_tries,
)

_TOO_LONG = re.compile(
    r"context[_ ]length|context (window|size)|maximum (model|sequence|allowed) length|max_model_len"
    r"|prompt is too long|token count[^.]{0,20}exceeds|inputs?\W+tokens\W+\+\W+\W*max_new_tokens",
    re.IGNORECASE,
)
"""How servers say so: OpenAI and vLLM (`context_length_exceeded`, "maximum context length", "maximum model length"),
SGLang ("context length", "maximum allowed length"), llama.cpp ("context size"), TGI, Anthropic, Gemini."""
_REMEDIES = {
    404: "Is inference.server_url right, and does the server know inference.server_model?",
    429: "Ask for less at once (rollout.parallel), or try more often (inference.request_retries).",
    3: "The server points elsewhere; give inference.server_url the address that answers.",
    4: "The server does not take this request; its answer says why.",
    5: "The server's own log says more.",
}
"""Status, or its hundreds -> what to do about it."""


class ServerFailure(EngineFailure):
    """A server gave no usable answer."""

    status: int | None = None
    """HTTP status of the last answer; None: there was none."""


class ServerPromptTooLong(ServerFailure, PromptTooLong):
    """A server says that prompt and reply take more tokens than its model does."""


def says_too_long(text: str) -> bool:
    """Return whether the words of a server that refused a prompt say that it is too long for its model."""
    return _TOO_LONG.search(text[:4000]) is not None


class ModelServerClient(HTTPClient):
    """JSON over HTTP to one server, from any number of event loops; as many requests at once as are made.

    `base_url`: 'http://host:8000', with or without a path. `api_key_env`: environment variable with the server's key.
    `timeout`: seconds that one try may take, all of it. Raises ConfigError for an address that is none or holds a
    secret.
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
        super().__init__(api_key_env, retries=retries, backoff=backoff)
        self.base_url = checked_url(base_url, "the environment variable that inference.api_key_env names")
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"ModelServerClient({self.base_url!r})"

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Return the server's answer to `body` as JSON: see `request`. `retries=0` for what must not happen twice."""
        return await self.request("POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Any:
        """Return the server's answer as JSON: see `request`."""
        return await self.request("GET", path, **options)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        retries: int | None = None,
        text: bool = False,
    ) -> Any:
        """Return what the JSON of the answer says; with `text` the answer as it is. An empty answer is None.

        `timeout`, `retries`: for this call; None: those of the client. Raises ServerFailure with the address, what
        came back, the number of tries and a remedy.
        """
        url, limit = self.base_url + path, self.timeout if timeout is None else timeout
        answer = await self.send(method, url, json=body, timeout=limit, retries=retries)
        if text:
            return answer.text
        try:
            return json.loads(answer.content) if answer.content.strip() else None
        except (ValueError, RecursionError):
            no_json = RequestFailure(f"an answer that is no JSON: {self.shown(answer.text)}")
            raise self.failure(f"{method} {url}", no_json, answer.status) from None

    def failure(self, request: str, failure: RequestFailure, status: int | None = None) -> EngineFailure:
        """Return the failure of a request that was given up. `status`: of an answer that was none of use."""
        if isinstance(failure, ClientClosed):
            return EngineFailure(f"the client of {self.base_url} is closed; make a new engine")
        what, too_long = str(failure), False
        remedy = "Is inference.server_url the address of such a server?"
        if isinstance(failure, ErrorStatus):
            answer = failure.response
            status, what, remedy = answer.status, f"{failure}: {self.shown(answer.text)}", self._remedy(answer.status)
            too_long = status in (400, 413, 422) and says_too_long(answer.text)
        elif isinstance(failure, NoResponse):
            remedy = "Raise inference.request_timeout, or ask for less at once (rollout.parallel)."
        elif isinstance(failure, ConnectionLost):
            remedy = "Does the server run, and is inference.server_url its address?"
        if too_long:
            remedy = "Set inference.max_context to what its model takes, or show less (rollout.token_budget)."
        message = f"{request} failed after {count_tries(failure.tries)}: {what}. {remedy}"
        typed = ServerPromptTooLong(message) if too_long else ServerFailure(message)
        typed.status = status
        return typed

    def _remedy(self, status: int) -> str:
        """Return what to do about an answer of this status."""
        if status in (401, 403):
            problem = "holds a key that it does not take" if self.key else "is not set"
            variable = f"; the environment variable {self.key_env} {problem} (inference.api_key_env)"
            return f"The server wants a key{variable if self.key_env else ''}."
        return _REMEDIES.get(status) or _REMEDIES[status // 100]
