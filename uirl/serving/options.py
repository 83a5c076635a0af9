"""The options of `ModelEndpoint`."""

from __future__ import annotations

from pydantic import Field

from uirl.config.section import Count, Index, Positive, Section


class EndpointOptions(Section):
    """How an endpoint is reached, what it accepts and what it keeps."""

    model_name: str | None = None
    """What clients call the model; None: the model's own name."""
    host: str = "127.0.0.1"
    """Address to bind. Others than this machine's own need an `api_key`."""
    port: Index = 0
    """0 takes a free one."""
    api_key: str | None = Field(default=None, repr=False)
    """The operator's: it opens the model, every session's too, and opens sessions. Agents get the key of their session
    instead. None: nothing is asked, and only this machine is answered."""
    max_context: Count | None = None
    """Tokens of prompt and reply; None: what the model's positions allow."""
    max_body: Count = 64 << 20
    """Bytes of a request; more is a 413."""
    max_pending: Index = 1024
    """Calls on their way at a time; more are a 429."""
    max_sessions: Index = 4096
    """Open at a time; more are a 429."""
    max_tool_sets: Count = 64
    """Different `tools` whose templates are kept."""
    idle_seconds: Positive = 600.0
    """A session without a call for so long expires: its record is a failure."""
    any_model: bool = False
    """Answer whatever model a client names, also outside of sessions."""
    remote_sessions: bool = False
    """Let the operator open sessions over HTTP (`POST /sessions`), and graders finish them; needs an `api_key`, for
    whoever opens sessions gives rewards."""
    for_training: bool = True
    """Sessions refuse replies without log-probs."""
