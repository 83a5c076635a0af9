"""The process of `uirl view`: a port, and a place behind training in the queue for the processor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn

from uirl.errors import ConfigError
from uirl.http.server import address_of, is_loopback, listening, server_config
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.runs import Runs

GRACE = 2
"""Seconds that open requests get when the viewer is told to stop."""
MOST_CONNECTIONS = 1024
HEADER_SECONDS = 10.0
"""Seconds in which a request must say what it asks for."""
NICE = 10
"""How far the viewer stands behind a training run on the same machine."""
SHORTEST_TOKEN = 16


def serve(
    paths: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8123,
    token: str | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Show the runs under `paths` until the process is told to stop (SIGINT, SIGTERM).

    `announce` is called with the address once the port answers. Raises ConfigError for a port that cannot be had, and
    for an address that others reach without a token.
    """
    if not is_loopback(host) and token is None:
        raise ConfigError(f"others can reach {host}: give a token of {SHORTEST_TOKEN} characters or more, as --token")
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the token has {len(token)} characters, expected {SHORTEST_TOKEN} or more: it can be guessed"
        )
    with contextlib.suppress(OSError):
        os.nice(NICE)
    runs = Runs(paths)
    with listening(host, port, "give another --port") as listener:
        bound = int(listener.getsockname()[1])
        config = config_of(create_app(runs, Access(host, bound, token)))
        query = "" if token is None else "/?token=..."
        announce(f"viewing {len(runs.all())} runs on {address_of(host, bound)}{query}")
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config, runs).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Lets reads end when it is told to stop: one that takes for ever cannot be cut off."""

    def __init__(self, config: uvicorn.Config, runs: Runs) -> None:
        super().__init__(config)
        self._runs = runs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Hear a signal."""
        self._runs.end()
        super().handle_exit(sig, frame)


def config_of(app: Any) -> uvicorn.Config:
    """Return how the application is served."""
    return server_config(
        app, max_connections=MOST_CONNECTIONS, header_seconds=HEADER_SECONDS, timeout_graceful_shutdown=GRACE
    )
