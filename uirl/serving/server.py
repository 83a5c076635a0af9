"""The endpoint over HTTP: addresses, keys, bodies, errors. The only file that knows FastAPI."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from uvicorn import Server

from uirl.errors import ConfigError, EngineFailure, RolloutFailure
from uirl.http.guard import Guard, Refusal, Rules, is_secret, token_of
from uirl.http.server import listening, server_config
from uirl.runtime.limits import shown
from uirl.runtime.wire import WireModel, dumps
from uirl.serving.options import EndpointOptions
from uirl.serving.protocol.answers import writer_of
from uirl.serving.protocol.chat_requests import ChatCall, CompletionCall, read_chat_call, read_completion_call
from uirl.serving.protocol.fields import APIProblem, Text, parse, read_json
from uirl.serving.protocol.responses_requests import read_responses_call
from uirl.serving.rendering import beside_the_loop
from uirl.serving.service import ModelService
from uirl.serving.session import AgentSession, OpenSessions

T = TypeVar("T")

_CLIENT_GONE = 499
"""What nginx calls it; nobody is there to read it."""


MOST_CONNECTIONS = 16_384
"""At a time, where the process may have so many files; beyond, connections that have shown no key go first."""
_CODES = {
    "token": "invalid_api_key",
    "host": "wrong_host",
    "size": "body_too_large",
    "content type": "invalid_content_type",
}
"""Kind of a refusal of the guard -> the code of OpenAI's error."""


def build_app(service: ModelService, sessions: OpenSessions, options: EndpointOptions) -> FastAPI:
    """Build the web application of an endpoint."""
    routes = _Routes(service, sessions, options)
    app = FastAPI(title="uirl", docs_url=None, redoc_url=None, openapi_url=None)
    for method, path, handler in routes.table():
        app.add_api_route(path, handler, methods=[method])
    rules = Rules(
        answer=lambda refusal: _answer(APIProblem.of(refusal, _CODES)),
        admit=lambda connection: _admit(connection, sessions, options),
        body_limit=options.max_body,
        local_only=options.api_key is None,
        content_types=("application/json",),
    )
    app.add_middleware(Guard, rules=rules)
    for kind in (APIProblem, Refusal, RolloutFailure, HTTPException, Exception):
        app.add_exception_handler(kind, _failed)
    return app


def _admit(connection: HTTPConnection, sessions: OpenSessions, options: EndpointOptions) -> Collection[str]:
    """Return whose secret a request shows: an agent's, a grader's, or the operator's. Raises a Refusal (401).

    A secret opens the routes of its holder and no other: an agent's key grades nothing.
    """
    path = connection.scope["path"]
    if path == "/health":
        return ()
    parts = path.split("/")
    token = parts[2] if parts[1] == "sessions" and len(parts) > 3 else None
    if token is not None and parts[3] == "finish":
        secrets: list[str | None] = [sessions.grader_key(token)]
    elif options.api_key is None:
        return ("anybody",)
    else:
        session = None if token is None else sessions.active.get(token)
        secrets = [options.api_key, None if session is None else session.api_key]
    given = token_of(connection)
    if not is_secret(given, *secrets):
        reason = "is missing" if not given else "does not open this address"
        raise Refusal(401, "token", f"the API key {reason}; send it as 'Authorization: Bearer KEY'")
    return ("holder",)


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


class _Routes:
    """One method per address."""

    def __init__(self, service: ModelService, sessions: OpenSessions, options: EndpointOptions) -> None:
        self._service, self._sessions, self._options = service, sessions, options
        self._model_name = options.model_name or service.loaded.name

    def table(self) -> Iterator[tuple[str, str, Callable[..., Any]]]:
        """Return (method, path, handler) of every route; docs/endpoint.md says the same, and who may ask."""
        yield "GET", "/health", self.health
        for prefix in ("/v1", "/sessions/{token}/v1"):
            yield "POST", f"{prefix}/chat/completions", self.answers(read_chat_call)
            yield "POST", f"{prefix}/responses", self.answers(read_responses_call)
            yield "POST", f"{prefix}/completions", self.answers(read_completion_call)
            yield "GET", f"{prefix}/models", self.models
            yield "GET", f"{prefix}/models/{{name:path}}", self.model
        if self._options.remote_sessions:
            yield "POST", "/sessions", self.begin
            yield "POST", "/sessions/{token}/finish", self.finish

    def answers(self, read: Callable[[Any], ChatCall | CompletionCall]) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of the calls that `read` reads."""

        async def answered(request: Request) -> Response:
            session = self._session(request)
            call = await self._read(request, read)
            self._check_model(call.options.model, session)
            answer = await _unless_gone(request, self._service.answer(call, session))
            writer = writer_of(self._service.token_bytes, self._model_name, call, answer)
            if not call.options.stream:
                return Response(dumps(writer.body()), media_type="application/json")
            headers = {"cache-control": "no-cache"}
            return StreamingResponse(writer.events(), media_type="text/event-stream", headers=headers)

        return answered

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
        session = None if token is None else self._sessions.active.get(token)
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
        try:
            body = await request.body()
        except ClientDisconnect as error:
            raise _gone() from error
        return await beside_the_loop(len(body), lambda: read(read_json(body)))


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


def _answer(problem: APIProblem) -> Response:
    return JSONResponse(problem.body, problem.status, problem.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """Answer a request that ended in an error. Inside a session a second try of what the engine could not is in vain:
    the record has failed. After a mistake of ours the server logs where it happened."""
    if isinstance(error, APIProblem):
        return _answer(error)
    if isinstance(error, Refusal):
        return _answer(APIProblem.of(error, _CODES))
    if isinstance(error, RolloutFailure):
        retry = False if request.path_params.get("token") else None
        kind = error.kind if isinstance(error, EngineFailure) else "server"
        return _answer(APIProblem(500, f"{kind} failure: {error}", code="engine_failure", retry=retry))
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _answer(APIProblem(error.status_code, message, code="unknown_url"))
    return _answer(APIProblem(500, f"{type(error).__name__}: {error}", code="internal_error", retry=False))


class _QuietServer(Server):
    """A server that leaves the signals to the program it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: FastAPI, host: str, port: int) -> AsyncIterator[int]:
    """Yield the port on which `app` is served while the context lasts. Raises ConfigError where it cannot be bound."""
    # log_config None: how a program logs is its own affair
    config = server_config(
        app,
        max_connections=MOST_CONNECTIONS,
        log_config=None,
        log_level=None,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    server = _QuietServer(config)
    with listening(host, port) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                await asyncio.wait({task}, timeout=0.005)
                if task.done():
                    await task
                    raise ConfigError(f"the server on {host} ended before it began")
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task
