"""What a server of environments may do, and who may ask it: checked before a port opens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uirl.errors import ConfigError
from uirl.http.server import is_loopback


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One environment and the limits of its sessions. Raises ConfigError for values that do not fit."""

    environment: str
    """Name in the table of environments, or 'package.module:Class'."""
    options: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    """0: a free one, which the first line of the output names."""
    sessions: int = 16
    """At a time, over all protocols."""
    lease: float = 120.0
    """Seconds that a session of the native API lives without a call; a heartbeat is one."""
    idle: float = 900.0
    """Seconds without reset, step or observation after which a session of any protocol is closed."""
    step_timeout: float = 30.0
    reset_timeout: float = 120.0
    token_env: str | None = None
    """Environment variable with the token of agents; None: whoever reaches the port may act."""
    grader_token_env: str | None = None
    """Environment variable with the token that also sees rewards, progress and checks. None beside a `token_env`:
    nobody sees them. None without one: whoever reaches the port."""
    seed: int | None = None
    """Seed of session 1 where its protocol has no word for seeds; session n gets n - 1 more. None: drawn."""
    single: bool = False
    """Protocol S of ui-verifiers: one process is one session, which starts with it."""
    body_limit: int = 4 * 2**20
    """Bytes of a request, and of a message on a socket."""

    def __post_init__(self) -> None:
        for name in ("sessions", "body_limit"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"serve: {name} must be a positive int, got {value!r}")
        for name in ("lease", "idle", "step_timeout", "reset_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"serve: {name} must be positive seconds, got {getattr(self, name)!r}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"serve: port must be 0 to 65535, got {self.port!r}")
        if not is_loopback(self.host) and self.token_env is None:
            raise ConfigError(
                f"serve: {self.host or 'every address'} can be reached from other machines, and without a token "
                "anybody there could use the environment; give --token-env (and --grader-token-env), or serve on "
                "127.0.0.1 behind a tunnel"
            )
        read_tokens(self)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The secrets of a server; never shown."""

    agent: str | None = field(repr=False, default=None)
    grader: str | None = field(repr=False, default=None)


def read_tokens(settings: ServerSettings) -> Tokens:
    """Return the tokens that the environment variables hold. Raises ConfigError where one is missing or both are the
    same."""
    agent, grader = _read(settings.token_env), _read(settings.grader_token_env)
    if agent is not None and agent == grader:
        raise ConfigError(
            f"serve: {settings.token_env} and {settings.grader_token_env} hold the same token; an agent could then "
            "read its own grades. Give two."
        )
    return Tokens(agent, grader)


def _read(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ConfigError(f"serve: the environment variable {variable} is not set; expected a long random text")
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"serve: the token in {variable} must be printable ASCII without spaces")
    return token
