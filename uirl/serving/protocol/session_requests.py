"""Sessions over HTTP: what opens one and what finishes it."""

from __future__ import annotations

from uirl.serving.protocol.wire import Text, WireModel


class SessionRequest(WireModel):
    """The JSON of POST /sessions."""

    task: Text = ""
    group_id: Text = ""
    seed: int | None = None
    """Of every draw of the policy."""


class FinishRequest(WireModel):
    """The JSON of POST /sessions/{token}/finish."""

    reward: float | None = None
    success: bool | None = None
