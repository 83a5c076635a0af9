"""HTTP to servers of environments: time limits, typed failures, and nothing done twice.

What may be repeated (a look, a heartbeat, a reset) is sent again after growing pauses where it got lost or the server
was busy. An act is sent again only where it never left this machine: one whose outcome is unknown is a failure of the
episode, because an action that is taken twice would be a lie in the record. A token never appears in a message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout, RolloutFailure
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.http import (
    CONNECT,
    ConnectionLost,
    ErrorStatus,
    HTTPTransport,
    NoResponse,
    RequestFailure,
    Response,
    RetryPolicy,
    count_tries,
)
from uirl.runtime.wire import WireError, dumps, loads

SHOWN = 300
"""Characters of an answer that stand in an error."""
_BUSY = (429, 502, 503)
_MAX_PAUSE = 10.0

T = TypeVar("T")


class ServerLost(EnvironmentFailure):
    """The server cannot be reached, or broke off: it is taken out of the pool for a while."""


class NoAnswer(EpisodeTimeout):
    """The server took a request and says nothing: it, too, is taken out for a while."""


class Refused(EnvironmentFailure):
    """The server answered, and the answer is no."""

    status = 0
    server_kind = ""
    """Of an error in the words of `uirl serve`: 'capacity', 'lease', 'environment', ...; empty: other servers."""
    retry_after: float | None = None


class EnvironmentClient:
    """Requests to any number of servers with one token.

    `token_env`: environment variable of the token, read at every call and sent as a bearer token; None: none.
    Raises ConfigError where the variable is empty and where the package httpx is missing.
    """

    def __init__(self, token_env: str | None = None, *, retries: int = 3, backoff: float = 0.25) -> None:
        self.token_env, self.retries, self.backoff = token_env, retries, backoff
        self.transport = HTTPTransport("client")
        self.headers()

    def headers(self) -> dict[str, str]:
        """Return what every request says about who asks."""
        if self.token_env is None:
            return {}
        token = os.environ.get(self.token_env, "").strip()
        if not (token and token.isascii() and token.isprintable()):
            raise ConfigError(
                f"the environment variable {self.token_env} holds no token; set it to the one that the servers know, "
                "or leave token_env out"
            )
        return {"authorization": f"Bearer {token}"}

    def hold(self) -> None:
        """Keep the connections of the running event loop open until `release` was called as often."""
        self.transport.hold()

    async def release(self) -> None:
        """Give up one `hold`; the last one closes the connections."""
        await self.transport.release()

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        timeout: float,
        again: bool,
        retries: int | None = None,
    ) -> Response:
        """Return the answer, where its status is below 300; call it between `hold` and `release`.

        `again`: it may happen twice. `timeout`: seconds of one try. `retries` None: the client's. Raises ServerLost,
        NoAnswer, Refused, EpisodeTimeout where the server says that its environment hung, or EnvironmentFailure for an
        answer of more than `MAX_BYTES`.
        """
        headers, content = self.headers(), None if json is None else dumps(json)
        if content is not None:
            headers["content-type"] = "application/json"
        retries = self.retries if retries is None else retries
        policy = RetryPolicy(retries, self.backoff, _MAX_PAUSE, _BUSY, again)
        try:
            return await self.transport.send(
                method, url, policy, timeout=timeout, headers=headers, params=params, content=content
            )
        except NoResponse as late:
            raise NoAnswer(f"{method} {url}: {late}") from None
        except ConnectionLost as lost:
            raise ServerLost(
                f"{method} {url} failed after {count_tries(lost.tries)}: {str(lost)[:SHOWN]}. Does the server run, and "
                "is its address right?"
            ) from None
        except ErrorStatus as error:
            raise self._refused(method, url, error.response) from None
        except RequestFailure as failure:
            raise EnvironmentFailure(f"{method} {url} was answered with {failure}") from None

    async def json(self, method: str, url: str, **options: Any) -> Any:
        """Return what the JSON of the answer says; see `send`. Raises EnvironmentFailure for an answer that is none."""
        answer = await self.send(method, url, **options)
        try:
            return loads(answer.content)
        except WireError as error:
            raise EnvironmentFailure(f"{method} {url} answered {answer.text[:SHOWN]!r}: {error}") from None

    def first_answer(
        self,
        urls: Sequence[str],
        path: str,
        read: Callable[[Any], T],
        problem: str,
        remedy: str,
        question: Mapping[str, Any] | None = None,
        timeout: float = CONNECT,
    ) -> T:
        """Return what `read` makes of the first answer that makes sense to a GET, or to a POST of `question`; waits for
        it, event loop or not. `timeout`: seconds of one try.

        Raises EnvironmentFailure with `problem`, what each server said, and `remedy` where none gives one.
        """
        method = "GET" if question is None else "POST"

        async def ask_each() -> T:
            problems = []
            self.hold()
            try:
                for url in urls:
                    try:
                        value = await self.json(
                            method, url + path, json=question, timeout=timeout, again=False, retries=0
                        )
                        return read(value)
                    except (WireError, RolloutFailure) as error:
                        problems.append(str(error) if url in str(error) else f"{url}: {error}")
            finally:
                await self.release()
            raise EnvironmentFailure(f"{problem}: {'; '.join(problems)}. {remedy}")

        loop = EventLoopThread("uirl-first-answer")
        try:
            return loop.run(ask_each())
        finally:
            loop.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _refused(self, method: str, url: str, answer: Response) -> Refused | EpisodeTimeout:
        status, problem = answer.status, _read_error(answer)
        remedy = ""
        if status in (401, 403):
            remedy = f" (the token comes from {self.token_env})" if self.token_env else " (token_env is not set)"
        message = f"{method} {url} was answered with {status} {answer.reason}: {problem['message']}{remedy}"
        if status == 504 and problem["kind"] == "timeout":
            return EpisodeTimeout(message)  # one call of one environment hung; the server itself is well
        refused = Refused(message)
        refused.status, refused.server_kind = status, problem["kind"]
        refused.retry_after = answer.retry_after
        return refused


def _read_error(answer: Response) -> dict[str, str]:
    """Return kind and message of an error answer: in the words of `uirl serve`, of FastAPI, or as it is."""
    try:
        value = loads(answer.content)
    except WireError:
        return {"kind": "", "message": repr(answer.text[:SHOWN])}
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return {"kind": str(error.get("kind", "")), "message": str(error.get("message", ""))[: 4 * SHOWN]}
    return {"kind": "", "message": repr(value)[:SHOWN]}
