"""Why a request got no answer: one shape on every route of our own, `{"error": {"kind", "message"}}`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from uirl.errors import ContractError, EpisodeTimeout, RolloutFailure, without_addresses
from uirl.runtime.wire import WireError


class Refusal(Exception):
    """A request that is refused, with the status that says why."""

    status = 400
    kind = "request"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(without_addresses(message))
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}


class NoToken(Refusal):
    status = 401
    kind = "token"

    @property
    def headers(self) -> dict[str, str]:
        # Browsers then ask for it, which is how a person opens the live view.
        return {"www-authenticate": 'Basic realm="uirl: any name, the token as password", charset="UTF-8"'}


class NotAllowed(Refusal):
    status = 403
    kind = "rights"


class NoSession(Refusal):
    """There is no such session, or there is none any more."""

    status = 404
    kind = "session"


class SessionOver(NoSession):
    """A session that was closed by the server: `kind` is 'lease'."""

    status = 410
    kind = "lease"


class OutOfTurn(Refusal):
    """A call that does not fit what came before: a step that was taken already."""

    status = 409
    kind = "order"


class TooLarge(Refusal):
    status = 413
    kind = "size"


class HeadersTooLarge(TooLarge):
    status = 431


class Full(Refusal):
    """All sessions are taken."""

    status = 503
    kind = "capacity"

    def __init__(self, active: int, capacity: int, retry_after: float) -> None:
        super().__init__(
            f"all {capacity} sessions are taken ({active} active); try again later, or start servers with more "
            "(--sessions)",
            retry_after=retry_after,
        )
        self.active, self.capacity = active, capacity


def describe(error: Exception) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    """Return status, headers and body of the answer to a request that ended in `error`."""
    if isinstance(error, Refusal):
        return error.status, error.headers, body(error.kind, str(error))
    if isinstance(error, RolloutFailure):
        return 504 if isinstance(error, EpisodeTimeout) else 500, {}, body(error.kind, str(error))
    if isinstance(error, WireError):
        return 400, {}, body("request", str(error))
    if isinstance(error, ContractError):
        return 409, {}, body("order", str(error))
    raise error


def body(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an answer that is an error."""
    return {"error": {"kind": kind, "message": message}}
