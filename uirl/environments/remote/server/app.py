"""The server: all protocols over one set of sessions, who may ask what, and the process that runs them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from html import escape
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.requests import ClientDisconnect, HTTPConnection

from uirl.environments.base import BaseEnvironment
from uirl.environments.registry import create_environment
from uirl.environments.remote.server.native import Native, answer, describe_lease, may_grade
from uirl.environments.remote.server.openenv import OpenEnv
from uirl.environments.remote.server.sessions import Counters, Sessions
from uirl.environments.remote.server.settings import ServerSettings, Tokens, read_tokens
from uirl.environments.remote.server.ui_verifiers import PodNotFound, UIVerifiers
from uirl.errors import ContractError, EnvironmentFailure, EpisodeTimeout, RolloutFailure
from uirl.http.guard import Guard, Refusal, Rules, is_secret, token_of
from uirl.http.server import address_of, listening, server_config
from uirl.images import media_type
from uirl.runtime.assets import read_asset
from uirl.runtime.wire import WireError

GRACE = 5
"""Seconds that open requests get when the server is told to stop."""
SPARE_CONNECTIONS = 1024
"""Connections beside those of the sessions, where the process may have so many files: clients that wait for a session
keep theirs open."""
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
    rules = Rules(
        answer=_refused,
        admit=lambda connection: _admit(connection, tokens),
        body_limit=settings.body_limit,
        # with a token a proxy may stand before the server and call it by another name
        local_only=tokens.agent is None,
        sockets=True,
        on_refused=lambda: counters.add("uirl_requests_denied_total"),
    )
    app.add_middleware(Guard, rules=rules)
    for part in (About(sessions), Native(sessions), OpenEnv(sessions), verifiers):
        app.include_router(part.router())
    for error in (Refusal, RolloutFailure, ContractError, WireError, Exception):
        app.add_exception_handler(error, _failed)
    app.add_exception_handler(PodNotFound, lambda _, error: PlainTextResponse("Pod not found", 404))
    # the client went while it sent: nobody reads this
    app.add_exception_handler(ClientDisconnect, lambda _, error: Response(status_code=400))
    return app


def serve(
    settings: ServerSettings, environment: BaseEnvironment | None = None, announce: Callable[[str], None] = print
) -> None:
    """Run the server until the process is told to stop (SIGINT, SIGTERM); then close every session.

    `announce` is called with the address once the port answers. Raises ConfigError for a port that cannot be had.
    """
    app = create_app(settings, environment)
    with listening(settings.host, settings.port, "give another --port") as listener:
        server = uvicorn.Server(connection_config(app, settings))
        address = address_of(settings.host, listener.getsockname()[1])
        announce(f"serving {settings.environment} on {address} ({settings.sessions} sessions)")
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
        if not server.started:
            raise EnvironmentFailure("the server did not start; the lines above say why")


def connection_config(app: Any, settings: ServerSettings, **others: Any) -> uvicorn.Config:
    """Return how uvicorn serves such an application; `others`: options and deadlines other than usual."""
    usual: dict[str, Any] = {
        "max_connections": 8 * settings.sessions + SPARE_CONNECTIONS,
        "ws": "websockets-sansio",
        "ws_max_size": settings.body_limit,
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": GRACE,
        "headers": [("server", "uirl")],
    }
    return server_config(app, **{**usual, **others})


class About:
    """What is told of the server itself: its health, its numbers, and a page for people with every session's last
    picture. All of it is read-only."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        router.add_api_route("/health", self.health, methods=["GET"])
        router.add_api_route("/metrics", self.metrics, methods=["GET"])
        router.add_api_route("/view", self.page, methods=["GET"])
        router.add_api_route("/view/sessions", self.listing, methods=["GET"])
        router.add_api_route("/view/screens/{number}", self.screen, methods=["GET"])
        return router

    async def health(self) -> dict[str, str]:
        """Return whether the server answers; open to everybody, and says no more."""
        return {"status": "healthy"}

    async def metrics(self) -> Response:
        """Return numbers for Prometheus."""
        gauges = {
            "uirl_sessions_active": ("Sessions that hold an environment.", float(len(self.sessions.active))),
            "uirl_instances_warm": ("Environments that wait for a session.", float(self.sessions.warm)),
            "uirl_sessions_capacity": ("Sessions at a time.", float(self.sessions.settings.sessions)),
        }
        return Response(self.sessions.counters.text(gauges), media_type="text/plain; version=0.0.4")

    async def page(self) -> Response:
        """Return the page, in whose text `__NAME__` and `__NONCE__` stand for what each answer fills in."""
        nonce = secrets.token_urlsafe(12)
        page = read_asset(__file__, "live_view.html")
        page = page.replace("__NONCE__", nonce).replace("__NAME__", escape(self.sessions.settings.environment))
        policy = (
            f"default-src 'none'; img-src 'self'; connect-src 'self'; style-src 'nonce-{nonce}'; "
            f"script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(page, media_type="text/html", headers=headers)

    async def listing(self, request: Request) -> Response:
        """Return the sessions without their ids; what they earned for graders alone."""
        sessions = [describe_lease(lease, graded=may_grade(request)) for lease in self.sessions.active]
        for fields in sessions:
            fields.pop("session", None)
        return answer({"sessions": sessions, "capacity": self.sessions.settings.sessions})

    async def screen(self, number: int) -> Response:
        """Return the last picture of a session."""
        for lease in self.sessions.active:
            if lease.number == number and lease.picture is not None:
                data = lease.picture.data
                headers = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
                return Response(data, media_type=media_type(data), headers=headers)
        raise Refusal(404, "session", "no such session, or it shows no picture")


def _admit(connection: HTTPConnection, tokens: Tokens) -> Collection[str]:
    """Return the rights of who asks: everything but `/health` needs those of an agent. Raises a Refusal (401)."""
    # not connection.url, which older versions of Starlette make of the Host header: a client could name any path
    if connection.scope["path"] == "/health":
        return ()
    token = token_of(connection)
    if is_secret(token, tokens.grader):
        return ("agent", "grader")
    if tokens.agent is None or is_secret(token, tokens.agent):
        return ("agent",) if tokens.agent or tokens.grader else ("agent", "grader")
    missing = "this server wants a token: send the header 'Authorization: Bearer <token>'"
    # browsers then ask for it, which is how a person opens the live view
    asked = {"www-authenticate": 'Basic realm="uirl: any name, the token as password", charset="UTF-8"'}
    raise Refusal(401, "token", missing if token is None else "the server does not know this token", headers=asked)


def _refused(refusal: Refusal) -> Response:
    return answer(_body(refusal.kind, str(refusal)), refusal.status, refusal.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer a request that ended in an error, in one shape on every route of our own."""
    if isinstance(error, Refusal):
        return _refused(error)
    if isinstance(error, RolloutFailure):
        return answer(_body(error.kind, str(error)), 504 if isinstance(error, EpisodeTimeout) else 500)
    if isinstance(error, (WireError, ContractError)):
        kind, status = ("request", 400) if isinstance(error, WireError) else ("order", 409)
        return answer(_body(kind, str(error)), status)
    # the log has the traceback; strangers have no use for it
    return answer(_body("server", f"the server itself failed: {type(error).__name__}; its log says more"), 500)


def _body(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "message": message}}
