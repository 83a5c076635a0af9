"""Sessions over HTTP: what opens one and what finishes it."""

from __future__ import annotations

from uirl.runtime.wire import WireModel
from uirl.serving.protocol.wire import Text


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
