"""The endpoint over HTTP: addresses, keys, bodies, errors. The only file that knows FastAPI and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn import Config, Server

from uirl.errors import ConfigError, EngineFailure, RolloutFailure
from uirl.runtime.connections import PROVE, connection_class, connection_limit
from uirl.runtime.limits import shown
from uirl.serving.lengths import beside_the_loop
from uirl.serving.options import EndpointOptions
from uirl.serving.problems import APIProblem, bad_request
from uirl.serving.protocol.chat_answers import Writer
from uirl.serving.protocol.chat_requests import read_chat_call, read_completion_call
from uirl.serving.protocol.responses_answers import ResponsesWriter
from uirl.serving.protocol.responses_requests import read_responses_call
from uirl.serving.protocol.session_requests import FinishRequest, SessionRequest
from uirl.serving.protocol.wire import parse, read_json
from uirl.serving.service import ModelService
from uirl.serving.session import AgentSession
from uirl.serving.sessions import OpenSessions

T = TypeVar("T")

_CLIENT_GONE = 499
"""What nginx calls it; nobody is there to read it."""


MOST_CONNECTIONS = 16_384
"""At a time, where the process may have so many files; beyond, connections that have shown no key go first."""
ANYBODY, AGENT, GRADER, OPERATOR = "anybody", "agent", "grader", "operator"
"""Who a route is for. A secret opens the routes of its holder and no other: an agent's key grades nothing."""


def build_app(service: ModelService, sessions: OpenSessions, options: EndpointOptions) -> FastAPI:
    """Build the web application of an endpoint."""
    routes = _Routes(service, sessions, options)
    app = FastAPI(title="uirl", docs_url=None, redoc_url=None, openapi_url=None)
    for method, path, handler, who in routes.table():
        app.add_api_route(path, handler, methods=[method], dependencies=[Depends(routes.guard(who))])
    app.add_exception_handler(APIProblem, _problem)
    app.add_exception_handler(RolloutFailure, _failure)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(Exception, _mistake)
    return app


class _Routes:
    """One method per address."""

    def __init__(self, service: ModelService, sessions: OpenSessions, options: EndpointOptions) -> None:
        self._service, self._sessions, self._options = service, sessions, options
        self._model_name = options.model_name or service.loaded.name

    def table(self) -> Iterator[tuple[str, str, Callable[..., Any], str]]:
        """Return (method, path, handler, who may) of every route; docs/endpoint.md says the same."""
        yield "GET", "/health", self.health, ANYBODY
        for prefix, who in (("/v1", OPERATOR), ("/sessions/{token}/v1", AGENT)):
            yield "POST", f"{prefix}/chat/completions", self.chat, who
            yield "POST", f"{prefix}/responses", self.respond, who
            yield "POST", f"{prefix}/completions", self.complete, who
            yield "GET", f"{prefix}/models", self.models, who
            yield "GET", f"{prefix}/models/{{name:path}}", self.model, who
        if self._options.remote_sessions:
            yield "POST", "/sessions", self.begin, OPERATOR
            yield "POST", "/sessions/{token}/finish", self.finish, GRADER

    def guard(self, who: str) -> Callable[[Request], Awaitable[None]]:
        """Return a dependency that raises a 401 for a missing or wrong key, and a 403 where a web page may be
        asking."""

        async def check(request: Request) -> None:
            if who != ANYBODY:
                _check_key(request, self._keys(who, request.path_params.get("token", "")))
                request.scope.get(PROVE, lambda: None)()

        return check

    def _keys(self, who: str, token: str) -> list[str] | None:
        """Return the secrets that open a route for `who`; None: none is asked for."""
        if who == GRADER:
            return [self._sessions.grader_key(token)]
        operator = self._options.api_key
        if operator is None:
            return None
        session = self._sessions.get(token) if who == AGENT else None
        return [operator] if session is None else [operator, session.api_key]

    async def chat(self, request: Request) -> Response:
        session = self._session(request)
        call = await self._read(request, read_chat_call)
        self._check_model(call.options.model, session)
        answer = await _unless_gone(request, self._service.chat(call, session))
        return _written(Writer(self._service.token_bytes, self._model_name, call.options, answer, chat=True))

    async def respond(self, request: Request) -> Response:
        session = self._session(request)
        call = await self._read(request, read_responses_call)
        self._check_model(call.chat.options.model, session)
        answer = await _unless_gone(request, self._service.chat(call.chat, session))
        return _written(ResponsesWriter(self._service.token_bytes, self._model_name, call, answer))

    async def complete(self, request: Request) -> Response:
        session = self._session(request)
        call = await self._read(request, read_completion_call)
        self._check_model(call.options.model, session)
        answer = await _unless_gone(request, self._service.complete(call, session))
        return _written(Writer(self._service.token_bytes, self._model_name, call.options, answer, chat=False))

    async def models(self, request: Request) -> dict[str, Any]:
        self._session(request)
        return {"object": "list", "data": [self._model()]}

    async def model(self, request: Request, name: str) -> dict[str, Any]:
        self._check_model(name, self._session(request))
        return self._model()

    async def health(self) -> dict[str, Any]:
        return {"status": "ok", "model": self._model_name, "policy_version": self._service.engine.policy_version}

    async def begin(self, request: Request) -> dict[str, Any]:
        """Open a session for an agent on another machine."""
        wanted = await self._read(request, lambda value: parse(SessionRequest, value))
        session = self._sessions.open(None, wanted.task or None, group_id=wanted.group_id, sampling_seed=wanted.seed)
        # the address by which the caller found us, not the one we are bound to
        url = str(request.base_url).rstrip("/") + urlsplit(session.base_url).path
        finish = url.removesuffix("v1") + "finish"
        agent = {"base_url": url, "api_key": session.api_key}
        return {"id": session.id, **agent, "finish_url": finish, "grader_key": self._sessions.grader_key(session.token)}

    async def finish(self, request: Request) -> dict[str, Any]:
        """Close a session, with what its agent scored."""
        score = await self._read(request, lambda value: parse(FinishRequest, value))
        session = self._session(request)  # only now: while the body came, somebody else may have finished it
        assert session is not None
        record = session.finish(score.reward, score.success)
        failure = None if record.failure is None else {"kind": record.failure.kind, "message": record.failure.message}
        return {"id": record.id, "turns": len(record), "stop_reason": record.stop_reason, "failure": failure}

    def _model(self) -> dict[str, Any]:
        return {"id": self._model_name, "object": "model", "created": 0, "owned_by": "uirl"}

    def _session(self, request: Request) -> AgentSession | None:
        """Return the session of the address; None: the address has none. Raises a 404 where it is over or never was."""
        token = request.path_params.get("token")
        session = None if token is None else self._sessions.get(token)
        if token is not None and session is None:
            raise APIProblem(404, "this session is over or never was", code="session_over", retry=False)
        return session

    def _check_model(self, name: str, session: AgentSession | None) -> None:
        """Check the name of the model: an agent in a session may use any, others must mean the one that is here."""
        if session is None and not self._options.any_model and name != self._model_name:
            raise APIProblem(
                404,
                f"there is no model {shown(name)} here; this is {self._model_name!r}",
                code="model_not_found",
                param="model",
            )

    async def _read(self, request: Request, read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the JSON of the body; beside the event loop where that takes long."""
        body = await self._body(request)
        return await beside_the_loop(len(body), lambda: read(read_json(body)))

    async def _body(self, request: Request) -> bytearray:
        """Return the body. Raises a 413 as soon as it is too long."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            # pages may send other types to a foreign address without asking
            raise bad_request("expected the content type application/json", code="invalid_content_type")
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._options.max_body:
                    most = self._options.max_body
                    raise APIProblem(413, f"the body is longer than {most} bytes", code="body_too_large")
        except ClientDisconnect as error:
            raise _gone() from error
        return body


def _check_key(request: Request, keys: list[str] | None) -> None:
    if keys is None:
        # without a key, the address is the protection: a page elsewhere must not reach it under a name of its own
        host = _host_of(request)
        if not is_loopback(host):
            raise APIProblem(403, f"this server answers on this machine alone, not as {host!r}", code="wrong_host")
        return
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    # every key is compared, so that the time tells nothing of which one came close
    matches = [hmac.compare_digest(credentials.encode(), key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        reason = "is missing" if not credentials else "does not open this address"
        raise APIProblem(401, f"the API key {reason}; send it as 'Authorization: Bearer KEY'", code="invalid_api_key")


def _written(writer: Writer | ResponsesWriter) -> Response:
    if not writer.streams:
        return JSONResponse(writer.body().write())
    return StreamingResponse(writer.events(), media_type="text/event-stream", headers={"cache-control": "no-cache"})


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """Return what `work` returns; it is cancelled, and nothing is recorded, where the client hangs up first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _gone()
        return await task
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _gone() -> APIProblem:
    return APIProblem(_CLIENT_GONE, "the client hung up", code="client_gone")


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIProblem)
    return JSONResponse(error.body, error.status, error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    """Answer for an engine that could not. Inside a session a second try is in vain: the record has failed."""
    retry = False if request.path_params.get("token") else None
    kind = error.kind if isinstance(error, EngineFailure) else "server"
    return await _problem(request, APIProblem(500, f"{kind} failure: {error}", code="engine_failure", retry=retry))


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return await _problem(request, APIProblem(error.status_code, message, code="unknown_url"))


async def _mistake(request: Request, error: Exception) -> Response:
    """Answer after a mistake of ours; the server logs where it happened."""
    message = f"{type(error).__name__}: {error}"
    return await _problem(request, APIProblem(500, message, code="internal_error", retry=False))


class _QuietServer(Server):
    """A server that leaves the signals to the program it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: FastAPI, host: str, port: int) -> AsyncIterator[int]:
    """Yield the port on which `app` is served while the context lasts. Raises ConfigError where it cannot be bound."""
    listening = _listen(host, port)
    server = _QuietServer(
        # log_config None: how a program logs is its own affair
        Config(
            app,
            http=connection_class(max_connections=connection_limit(MOST_CONNECTIONS)),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            await asyncio.wait({task}, timeout=0.005)
            if task.done():
                await task
                raise ConfigError(f"the server on {host} ended before it began")
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error}; choose another port, or 0 for a free one"
        ) from error
    return listening


def _host_of(request: Request) -> str:
    """Return the name by which the client calls this server, without the port."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine and nobody else's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
