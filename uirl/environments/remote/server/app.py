"""The server: all protocols over one set of sessions, and the process that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from uirl.environments.base import BaseEnvironment
from uirl.environments.registry import create_environment
from uirl.environments.remote.server.access import HEADER_LIMIT, Guard
from uirl.environments.remote.server.counters import Counters
from uirl.environments.remote.server.health import Health
from uirl.environments.remote.server.live_view import LiveView
from uirl.environments.remote.server.native import Native
from uirl.environments.remote.server.openenv import OpenEnv
from uirl.environments.remote.server.problems import Refusal, body, describe
from uirl.environments.remote.server.sessions import Sessions
from uirl.environments.remote.server.settings import ServerSettings, read_tokens
from uirl.environments.remote.server.ui_verifiers import PodNotFound, UIVerifiers
from uirl.errors import ConfigError, ContractError, EnvironmentFailure, RolloutFailure
from uirl.runtime.connections import connection_class, connection_limit
from uirl.runtime.wire import WireError, dumps

GRACE = 5
"""Seconds that open requests get when the server is told to stop."""
SPARE_CONNECTIONS = 1024
"""Connections beside those of the sessions, where the process may have so many files: clients that wait for a session
keep theirs open."""
BACKLOG = 512
"""Connections that wait to be accepted."""
KEEP_ALIVE = 75
"""Seconds that an unused connection stays open: longer than clients keep one, so that none closes under a request."""


def create_app(settings: ServerSettings, environment: BaseEnvironment | None = None) -> FastAPI:
    """Return the ASGI application, its sessions in `app.state.sessions`.

    `environment` None: the one that the settings name.
    """
    if environment is None:
        environment = create_environment(settings.environment, settings.options)
    tokens, counters = read_tokens(settings), Counters()
    sessions = Sessions(environment, settings, counters)
    verifiers = UIVerifiers(sessions)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reaper = asyncio.create_task(sessions.keep_reaping())
        try:
            if settings.single:
                await verifiers.start_single()
            yield
        finally:
            reaper.cancel()
            await sessions.close_all()

    # no pages of documentation: they would load scripts from elsewhere
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.sessions = sessions
    app.add_middleware(
        Guard,
        tokens=tokens,
        counters=counters,
        body_limit=settings.body_limit,
        # with a token a proxy may stand before the server and call it by another name
        local_names_only=tokens.agent is None,
    )
    for part in (Health(sessions), Native(sessions), OpenEnv(sessions), LiveView(sessions), verifiers):
        app.include_router(part.router())
    for error in (Refusal, RolloutFailure, ContractError, WireError):
        app.add_exception_handler(error, _refuse)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(PodNotFound, _pod_not_found)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _internal_error)
    return app


def serve(
    settings: ServerSettings, environment: BaseEnvironment | None = None, announce: Callable[[str], None] = print
) -> None:
    """Run the server until the process is told to stop (SIGINT, SIGTERM); then close every session.

    `announce` is called with the address once the port answers. Raises ConfigError for a port that cannot be had.
    """
    app = create_app(settings, environment)
    with _listening(settings) as listener:
        config = uvicorn.Config(app, **connection_options(settings), access_log=False, log_level="warning")
        server = uvicorn.Server(config)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{listener.getsockname()[1]}"
        announce(f"serving {settings.environment} on {address} ({settings.sessions} sessions)")
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        if not server.started:
            raise EnvironmentFailure("the server did not start; the lines above say why")


def connection_options(settings: ServerSettings, **limits: float) -> dict[str, Any]:
    """Return how uvicorn treats the connections of such a server; `limits`: others than usual (`ProvenConnection`)."""
    usual = {"max_connections": connection_limit(8 * settings.sessions + SPARE_CONNECTIONS)}
    return {
        "http": connection_class(**{**usual, **limits}),
        "h11_max_incomplete_event_size": HEADER_LIMIT,
        "ws": "websockets-sansio",
        "ws_max_size": settings.body_limit,
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": GRACE,
        "server_header": False,
        "headers": [("server", "uirl")],
    }


@contextlib.contextmanager
def _listening(settings: ServerSettings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # said to be TCP in so many words: asyncio otherwise leaves Nagle's algorithm on, and every answer waits 40 ms
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host.strip("[]"), settings.port))
            listener.listen(BACKLOG)
        except OSError as error:
            where, why = f"{settings.host}:{settings.port}", error.strerror or error
            raise ConfigError(f"serve: cannot listen on {where}: {why}; give another --port") from error
        yield listener


async def _refuse(request: Request, error: Exception) -> Response:
    status, headers, content = describe(error)
    return Response(dumps(content), status, headers, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    if error.status_code == 413:
        return Response(dumps(body("size", str(error.detail))), 413, media_type="application/json")
    return await http_exception_handler(request, HTTPException(error.status_code, error.detail, error.headers))


async def _pod_not_found(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Pod not found", 404)


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # the client went while it sent: nobody reads this


async def _internal_error(request: Request, error: Exception) -> Response:
    # the log has the traceback; strangers have no use for it
    content = body("server", f"the server itself failed: {type(error).__name__}; its log says more")
    return Response(dumps(content), 500, media_type="application/json")
