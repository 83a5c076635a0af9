"""Servers that the tests talk to over real sockets: in a thread here, or in a process of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from tests.patience import PATIENCE
from uirl.environments.base import BaseEnvironment
from uirl.environments.remote.server import app as server_app
from uirl.environments.remote.server.settings import ServerSettings


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen")


@contextlib.contextmanager
def running(app: Any, config: uvicorn.Config | None = None, **options: Any) -> Iterator[str]:
    """The address of an ASGI application that runs on a thread. `config`: of its server."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as door:
        door.bind(("127.0.0.1", 0))
        options = {"ws": "websockets-sansio", "log_level": "error", "timeout_graceful_shutdown": 2, **options}
        server = uvicorn.Server(config or uvicorn.Config(app, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]}, daemon=True)
        thread.start()
        try:
            until(lambda: server.started, "the start of the server")
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


class HandClock:
    """A clock that stands still until a test moves it: a slow machine lets no lease run out."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Served:
    """An environment on a server in this process."""

    url: str
    app: Any

    @property
    def sessions(self) -> Any:
        return self.app.state.sessions

    @property
    def active(self) -> int:
        """Sessions that hold an environment."""
        return len(self.sessions.active)

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass for leases and idle sessions, and for nothing else."""
        self.sessions.clock.now += seconds

    def http(self, token: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, verify=False)


@contextlib.contextmanager
def serving(
    environment: BaseEnvironment | str = "screen", *, deadlines: dict[str, float] | None = None, **settings: Any
) -> Iterator[Served]:
    """`environment` on a server; at the end no session may be left. `deadlines`: of `ProvenConnection`."""
    name = environment if isinstance(environment, str) else type(environment).__name__.lower()
    read = ServerSettings(name, port=0, **settings)
    app = server_app.create_app(read, None if isinstance(environment, str) else environment)
    app.state.sessions.clock = HandClock()
    config = server_app.connection_config(app, read, timeout_graceful_shutdown=2, **(deadlines or {}))
    with running(app, config) as url:
        yield Served(url, app)
    assert not app.state.sessions.active, "sessions leaked"


@contextlib.contextmanager
def serve_process(*arguments: str, env: dict[str, str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(address, process) of `uirl serve` as a person starts it."""
    command = [sys.executable, "-m", "uirl.cli.main", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("serving "), process.stderr.read() if process.stderr else ""
        yield line.split(" on ")[1].split()[0], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
