"""One session with an MCP server, held by one task on one thread: the SDK's task groups cannot change hands."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from uirl.errors import ConfigError, EnvironmentFailure
from uirl.runtime.event_loop import EventLoopThread

_CLOSING = 15.0
"""Seconds that a server gets to end: the SDK asks, terminates and kills within six."""


class Refused(Exception):
    """The server refused the arguments of a call."""


@dataclass(frozen=True, slots=True)
class MCPTarget:
    """Which server, and how it is reached."""

    command: tuple[str, ...]
    url: str | None
    env: dict[str, str]
    cwd: str | None
    headers: dict[str, str]
    connect_timeout: float

    @property
    def name(self) -> str:
        """How messages call it."""
        if self.url is None:
            return " ".join(self.command)
        parts = urlsplit(self.url)  # without what may be a secret: user, password, query
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class MCPConnection:
    """A session from `connect` to `close`. Every method may be called from any thread."""

    def __init__(self, target: MCPTarget) -> None:
        _refuse_missing_package()
        self._target = target
        self._thread = EventLoopThread("mcp-session")
        self._opened: Future[list[dict[str, Any]]] = Future()
        self._held: Future[None] | None = None
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._broken = False
        self._reason = "it was closed"
        self.listed: list[dict[str, Any]] = []
        """The tools as the server listed them, in the words of the protocol."""

    @property
    def ended(self) -> bool:
        """Whether the session is over, for whatever reason."""
        return self._held is None or self._held.done() or self._broken

    def connect(self) -> None:
        """Open the session; wait until the server listed its tools. Raises `EnvironmentFailure` where it does not."""
        self._held = self._thread.submit(self._hold())
        try:
            self.listed = self._opened.result()
        except Exception as error:  # the client's package raises what it likes, groups of exceptions too
            raise EnvironmentFailure(
                f"MCP server {self._target.name} did not answer: {_first_cause(error)}; does it start by hand, and "
                "speak MCP over stdio (a command) or streamable HTTP (a url)?"
            ) from error

    def call(self, name: str, arguments: dict[str, Any]) -> Future[dict[str, Any]]:
        """Return the result of a tool, in the words of the protocol. Cancelling the future cancels the call."""
        return self._submit("call_tool", name, arguments)

    def ask(self) -> Future[dict[str, Any]]:
        """Ask a question that every server can answer, what its tools are; the future is done with the answer."""
        return self._submit("list_tools")

    def close(self) -> None:
        """End session, process and thread. A second call does nothing."""
        session, self._held = self._held, None
        if session is not None:
            self._thread.submit(self._ask_to_stop()).result(_CLOSING)
            with suppress(Exception):  # how a session ends is told to those who wait for its answers
                session.result(_CLOSING)
        self._thread.close()

    async def _hold(self) -> None:
        self._stop = asyncio.Event()
        limit = asyncio.timeout(self._target.connect_timeout)
        try:
            async with limit, AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(await self._make_client(stack))
                listed = await _list_tools(self._client)
                limit.reschedule(None)
                self._opened.set_result(listed)
                await self._stop.wait()
        except BaseException as error:  # calls under way and later ones are told why the session ended
            self._reason = _first_cause(error)
            if limit.expired():
                self._reason = f"no answer within {self._target.connect_timeout:g} s"
            if not isinstance(error, Exception):
                raise
        finally:
            if not self._opened.done():
                self._opened.set_exception(EnvironmentFailure(self._reason))

    async def _ask_to_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def _make_client(self, stack: AsyncExitStack) -> Any:
        from mcp import Client, StdioServerParameters, stdio_client

        target = self._target
        if target.url is None:
            parameters = StdioServerParameters(
                command=target.command[0], args=list(target.command[1:]), env=target.env, cwd=target.cwd
            )
            # A notebook replaces sys.stderr by what no process can write to.
            return Client(stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr))
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        # A tool may be silent for long; its time limit is that of the call.
        timeout = httpx2.Timeout(target.connect_timeout, read=None)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=target.headers, timeout=timeout))
        return Client(streamable_http_client(target.url, http_client=http))

    def _submit(self, request: str, *arguments: Any) -> Future[dict[str, Any]]:
        if self.ended:
            failed: Future[dict[str, Any]] = Future()
            failed.set_exception(self._lost())
            return failed
        return self._thread.submit(self._answer(request, *arguments))

    async def _answer(self, request: str, *arguments: Any) -> dict[str, Any]:
        """Return the answer to a request, a method of the client, in the words of the protocol."""
        try:
            answer = await getattr(self._client, request)(*arguments)
        except Exception as error:  # the client's package raises what it likes
            raise self._translated(error) from error
        return _as_json(answer)

    def _translated(self, error: Exception) -> Exception:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST

        if isinstance(error, MCPError) and error.code == INVALID_PARAMS:
            return Refused(error.message)
        # An invalid request is one of a session that the server has forgotten, after a restart of its own.
        if isinstance(error, MCPError) and error.code in (CONNECTION_CLOSED, INVALID_REQUEST):
            assert self._stop is not None
            ended = error.code == CONNECTION_CLOSED
            self._reason = "the server ended or closed the connection" if ended else error.message
            self._broken = True
            self._stop.set()
            return self._lost()
        if isinstance(error, MCPError):
            return Refused(f"the server could not answer: {error.message}")  # it is there, and did not come to grips
        return EnvironmentFailure(f"MCP server {self._target.name}: {type(error).__name__}: {error}")

    def _lost(self) -> EnvironmentFailure:
        return EnvironmentFailure(f"the connection to MCP server {self._target.name} is lost: {self._reason}")


async def _list_tools(client: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        listed += map(_as_json, page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return listed


def _as_json(answer: Any) -> dict[str, Any]:
    result: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return result


def _first_cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if not isinstance(error, EnvironmentFailure) else str(error)


def _refuse_missing_package() -> None:
    try:
        from mcp import Client  # noqa: F401  (version 1 of the package has none)
    except ImportError as error:
        raise ConfigError(
            f"MCP tools need the package mcp in version 2 or later ({error}); pip install 'uirl[mcp]'"
        ) from error
