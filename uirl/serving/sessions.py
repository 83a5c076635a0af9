"""The open sessions of an endpoint: their addresses, their secrets, and how they end when nobody finishes them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import uuid
from collections.abc import Callable
from typing import Any

from uirl.errors import ContractError, EngineFailure, EpisodeTimeout, RolloutFailure, UirlError
from uirl.http.leases import Leases
from uirl.serving.options import EndpointOptions
from uirl.serving.problems import APIProblem
from uirl.serving.session import AgentSession
from uirl.types import Task, Trajectory

_log = logging.getLogger("uirl.endpoint")


class OpenSessions:
    """Sessions by the token in their address."""

    def __init__(
        self,
        options: EndpointOptions,
        release: Callable[[str], None],
        on_finished: Callable[[Trajectory], None] | None,
    ) -> None:
        """`release` frees a cache of the engine by its name; `on_finished` hears of every record."""
        self._options, self._release, self._on_finished = options, release, on_finished
        self.active: Leases[AgentSession] = Leases(options.max_sessions, self._why_overdue)
        """By the token in the address."""
        self._grading_secret = secrets.token_bytes(32)
        self.address: str | None = None
        """Where the server listens; None: it does not."""

    @property
    def url(self) -> str:
        """Where the server listens. Raises ContractError before it does."""
        if self.address is None:
            raise ContractError("the endpoint is not started; use 'async with endpoint:' or await endpoint.start()")
        return self.address

    def open(self, id: str | None, task: Task | str | None, **options: Any) -> AgentSession:
        """Open a new session; `options` are those of `AgentSession`. Raises a 429 where too many are open."""
        if self.active.full:
            raise APIProblem(
                429,
                f"{len(self.active)} sessions are open, which is the limit; finish some",
                code="too_many_sessions",
            )
        session = AgentSession(
            id or uuid.uuid4().hex,
            task if isinstance(task, Task) else Task(task or "agent"),
            self.url,
            for_training=self._options.for_training,
            **options,
        )
        session.on_finished(self._finished)
        return self.active.add(session.token, session)

    def grader_key(self, token: str) -> str:
        """Return the secret that finishes the session with that token in its address, and opens nothing else."""
        return hmac.new(self._grading_secret, token.encode(), hashlib.sha256).hexdigest()

    def end_all(self) -> None:
        """End every session as a failure."""
        for session in self.active:
            self._end(session, EngineFailure("the endpoint was closed before the session was finished"))

    def end_idle(self) -> None:
        """End, as failures, the sessions that nobody has used for `idle_seconds`."""
        for session, why in self.active.overdue():
            self._end(session, EpisodeTimeout(why))

    def _why_overdue(self, session: AgentSession) -> str | None:
        limit = self._options.idle_seconds
        return f"no call for {limit:g} s, and nobody finished the session" if session.idle_seconds > limit else None

    def _finished(self, session: AgentSession, record: Trajectory) -> None:
        self.active.end(session.token, record.stop_reason)
        for cache in session.cache_ids:
            self._release(cache)
        if self._on_finished is not None:
            self._on_finished(record)

    def _end(self, session: AgentSession, failure: RolloutFailure) -> None:
        """Finish a session that nobody waits for; what goes wrong is told in the log."""
        session.fail(failure)
        try:
            session.end()
        except UirlError as error:
            _log.error("session %s ended badly: %s", session.id, error)
