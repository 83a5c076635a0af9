"""What a client is told instead of an answer: a status, and the error body that OpenAI clients read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from uirl.errors import UirlError
from uirl.http.guard import Refusal

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class APIProblem(UirlError):
    """A request that gets no answer. `retry` tells the client's own retry policy what to do; None: it decides."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry: bool | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry = status, code, param, retry

    @classmethod
    def of(cls, refusal: Refusal, codes: Mapping[str, str]) -> Self:
        """Return what a refusal of the guard is to such clients; `codes`: of its kinds."""
        return cls(refusal.status, str(refusal), code=codes.get(refusal.kind, "refused"))

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry is None else {"x-should-retry": str(self.retry).lower()}
        return headers | ({"retry-after": "1"} if self.status == 429 else {})


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> APIProblem:
    """Build a 400 that names the field."""
    return APIProblem(400, f"{param}: {message}" if param else message, code=code, param=param)
