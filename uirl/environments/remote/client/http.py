"""HTTP to servers of environments: typed failures, and nothing done twice.

What may be repeated (a look, a heartbeat, a reset) is sent again after growing pauses where it got lost or the server
was busy. An act is sent again only where it never left this machine: one whose outcome is unknown is a failure of the
episode, because an action that is taken twice would be a lie in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from uirl.errors import ConfigError, EnvironmentFailure, EpisodeTimeout, RolloutFailure
from uirl.http.client import (
    CONNECT,
    SHOWN,
    ConnectionLost,
    ErrorStatus,
    HTTPClient,
    NoResponse,
    RequestFailure,
    Response,
    count_tries,
)
from uirl.runtime.event_loop import EventLoopThread
from uirl.runtime.wire import WireError, loads

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


class EnvironmentClient(HTTPClient):
    """Requests to any number of servers with one token; call them between `hold` and `release`.

    `token_env`: environment variable of the token; None: none. Requests raise ServerLost, NoAnswer, Refused,
    EpisodeTimeout where the server says that its environment hung, or EnvironmentFailure for an answer that is too
    large. Raises ConfigError where the variable is empty and where the package for HTTP is missing.
    """

    def __init__(self, token_env: str | None = None, *, retries: int = 3, backoff: float = 0.25) -> None:
        super().__init__(
            "client", token_env, retries=retries, backoff=backoff, max_pause=10.0, statuses=(429, 502, 503)
        )
        if not self.headers() and token_env is not None:
            raise ConfigError(
                f"the environment variable {token_env} holds no token; set it to the one that the servers know, or "
                "leave token_env out"
            )

    async def json(self, method: str, url: str, **options: Any) -> Any:
        """Return what the JSON of the answer says; see `send`. Raises EnvironmentFailure for an answer that is none."""
        answer = await self.send(method, url, **options)
        try:
            return loads(answer.content)
        except WireError as error:
            raise EnvironmentFailure(f"{method} {url} answered {self.shown(answer.text)}: {error}") from None

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

    def failure(self, request: str, failure: RequestFailure) -> RolloutFailure:
        """Return the failure of a request that was given up."""
        if isinstance(failure, NoResponse):
            return NoAnswer(f"{request}: {failure}")
        if isinstance(failure, ConnectionLost):
            return ServerLost(
                f"{request} failed after {count_tries(failure.tries)}: {failure}. Does the server run, and "
                "is its address right?"
            )
        if isinstance(failure, ErrorStatus):
            return self._refused(request, failure.response)
        return EnvironmentFailure(f"{request} was answered with {failure}")

    def _refused(self, request: str, answer: Response) -> Refused | EpisodeTimeout:
        kind, told = _read_error(answer)
        remedy = ""
        if answer.status in (401, 403):
            remedy = f" (the token comes from {self.key_env})" if self.key_env else " (token_env is not set)"
        message = f"{request} was answered with {answer.status} {answer.reason}: {self.without_key(told)}{remedy}"
        if answer.status == 504 and kind == "timeout":
            return EpisodeTimeout(message)  # one call of one environment hung; the server itself is well
        refused = Refused(message)
        refused.status, refused.server_kind, refused.retry_after = answer.status, kind, answer.retry_after
        return refused


def _read_error(answer: Response) -> tuple[str, str]:
    """Return kind and message of an error answer: in the words of `uirl serve`, of FastAPI, or as it is."""
    try:
        value = loads(answer.content)
    except WireError:
        return "", repr(answer.text[:SHOWN])
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return str(error.get("kind", "")), str(error.get("message", ""))[: 4 * SHOWN]
    return "", repr(value)[:SHOWN]
