"""The tools of an MCP server (Model Context Protocol) as tools of ours: over stdio or streamable HTTP.

A session is held by one task on one thread: the SDK's task groups cannot change hands.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from uirl.errors import ConfigError, ContractError, EnvironmentFailure
from uirl.runtime.event_loop import EventLoopThread
from uirl.tools.base import Tool, ToolError
from uirl.tools.definition import ToolDefinition, callable_name

_CLOSING = 15.0
"""Seconds that a server gets to end: the SDK asks, terminates and kills within six."""


class MCPServer:
    """A connection to an MCP server, shared by all episodes: `with MCPServer([...]) as server: server.tools()`.

    Works in `with`, in `async with`, or by `start` and `close`. The session lives on a thread of its own, so the tools
    can be called from any event loop. Where the connection is lost, the calls under way and the episodes that had begun
    fail; the next episode's `reset` connects again. What the server keeps (files, a cart) is shared by all episodes
    unless the server separates them.
    """

    def __init__(
        self,
        command: Sequence[str] | str | None = None,
        *,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        connect_timeout: float = 30.0,
        call_timeout: float = 60.0,
    ) -> None:
        """Name the server: either `command` (started and spoken to over stdio) or `url` (streamable HTTP).

        Args:
            command: Program and arguments, as a list or one line.
            url: For example http://localhost:8000/mcp.
            env: Further variables for `command`; of ours it inherits only PATH, HOME and the like.
            cwd: Working folder of `command`; None: ours.
            headers: Sent with every request to `url`, for example an authorization.
            prefix: Put before the names of the tools, where two servers use the same ones.
            connect_timeout: Seconds until the server has listed its tools.
            call_timeout: Seconds of one call; then the policy is told, or, where the server answers nothing else
                either, the episode is not evidence.
        """
        if (command is None) == (url is None):
            raise ConfigError(f"MCPServer got command={command!r} and url={url!r}; expected one of the two")
        words = tuple(shlex.split(command) if isinstance(command, str) else command or ())
        if url is None and not words:
            raise ConfigError("MCPServer got an empty command; expected a program and its arguments")
        self._target = _Target(words, url, dict(env or {}), cwd, dict(headers or {}), connect_timeout)
        self.prefix, self.call_timeout = prefix, call_timeout
        self.incarnation = 0
        """How often it was connected."""
        self._connection: _Connection | None = None
        self._lock = threading.Lock()
        # A server that is not closed ends with the interpreter; the list lets it go with the connection of the day.
        self._open: list[_Connection] = []
        weakref.finalize(self, _close_all, self._open)

    @property
    def name(self) -> str:
        """How messages call it: the url or the command."""
        return self._target.name

    @property
    def lost(self) -> bool:
        """Whether the connection broke: calls fail until the next `start`."""
        return self._connection is not None and self._connection.ended

    def start(self) -> MCPServer:
        """Connect, or connect again where the connection was lost; block until the server has listed its tools.

        Raises `EnvironmentFailure` where the server does not answer, ConfigError where the `mcp` package is missing.
        """
        with self._lock:
            if self._connection is not None and not self.lost:
                return self
            _close_all(self._open)
            connection = _Connection(self._target)
            self._open.append(connection)
            try:
                connection.connect()
            except BaseException:
                _close_all(self._open)
                raise
            self._connection = connection
            self.incarnation += 1
        return self

    def close(self) -> None:
        """End the session and, with stdio, the server's process and its children. A second call does nothing."""
        with self._lock:
            self._connection = None
            _close_all(self._open)

    def tools(self) -> list[MCPTool]:
        """Return what the server offered when it was connected.

        Raises ContractError before `start`, or for a schema that is none.
        """
        connection = self._connected()
        tools: list[MCPTool] = []
        # names that need no change come first: another's change must not take them
        taken = {name for listed in connection.listed if callable_name(name := self.prefix + listed["name"]) == name}
        for listed in connection.listed:
            name = self.prefix + listed["name"]
            if name not in taken:
                name = callable_name(name, taken)
                taken.add(name)
            try:
                definition = ToolDefinition(name, listed.get("description") or "", listed["inputSchema"])
            except ConfigError as error:
                raise ContractError(f"MCP server {self.name} lists a tool that cannot be used: {error}") from error
            tools.append(MCPTool(self, listed["name"], definition))
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's result (`content`, `structuredContent`, `isError`), from any event loop.

        Raises `EnvironmentFailure` where the connection is lost.
        """
        future = self._connected().ask("call_tool", name, dict(arguments))
        result: dict[str, Any] = await asyncio.wrap_future(future)
        return result

    async def answers(self) -> bool:
        """Return whether the server answers within `connect_timeout` seconds what its tools are."""
        try:
            async with asyncio.timeout(self._target.connect_timeout):
                await asyncio.wrap_future(self._connected().ask("list_tools"))
        except _Refused:  # an answer, too
            return True
        except (EnvironmentFailure, TimeoutError):
            return False
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> MCPServer:
        return self  # parallel episodes share the connection

    def __enter__(self) -> MCPServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> MCPServer:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _connected(self) -> _Connection:
        if self._connection is None:
            raise ContractError(f"MCP server {self.name} is not connected; use `with MCPServer(...)`, or call start()")
        return self._connection


class MCPTool(Tool):
    """One tool of an MCP server. `spawn` shares the connection, and `close` leaves it to the server."""

    def __init__(self, server: MCPServer, remote_name: str, definition: ToolDefinition) -> None:
        self.server, self.remote_name, self.definition = server, remote_name, definition
        self.name, self.description = definition.name, definition.description
        self.timeout = server.call_timeout
        self._incarnation = server.incarnation

    async def execute(self, **arguments: Any) -> Any:
        """Return the text of the result (a picture as a note), else its structured content.

        Raises `ToolError` for a result that the server marks as an error and for arguments that it refuses,
        `EnvironmentFailure` for a connection that is lost or was made anew since the episode began.
        """
        if self._incarnation != self.server.incarnation:
            raise EnvironmentFailure(
                f"MCP server {self.server.name} was connected anew during the episode; what it kept may be gone"
            )
        try:
            result = await self.server.call(self.remote_name, arguments)
        except _Refused as error:
            raise ToolError(str(error)) from None
        content = [text_of(block) for block in result.get("content") or ()]
        if result.get("isError"):
            raise ToolError("\n".join(content))
        return "\n".join(content) if content else structured_value(result.get("structuredContent"))

    async def is_well(self) -> bool:
        """Return whether the server answers another question."""
        return await self.server.answers()

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode; connect again where the connection was lost, and block until then."""
        if self.server.lost:
            self.server.start()
        self._incarnation = self.server.incarnation

    def spawn(self) -> MCPTool:
        """Return the same tool over the same connection."""
        return MCPTool(self.server, self.remote_name, self.definition)


def text_of(block: Mapping[str, Any]) -> str:
    """Return a content block as text: what is no text becomes a note of its kind and size, since a result is text."""
    kind = block.get("type")
    if kind == "text":
        return str(block["text"])
    if kind in ("image", "audio"):
        size = len(block["data"]) * 3 // 4 - block["data"][-2:].count("=")
        return f"[{kind}: {block.get('mimeType', 'of unknown type')}, {size} bytes, not shown]"
    if kind == "resource":
        resource = block["resource"]
        return str(resource["text"]) if "text" in resource else f"[resource: {resource.get('uri')}, not shown]"
    if kind == "resource_link":
        return f"[link: {block.get('uri')}]"
    return f"[content of type {kind!r}, not shown]"


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()


def structured_value(structured: Any) -> Any:
    """Return the structured content of an MCP result: servers wrap what is no object as {'result': value}."""
    alone = isinstance(structured, Mapping) and structured.keys() == {"result"}
    return structured["result"] if alone else structured


# -- the session -----------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """The server refused the arguments of a call."""


@dataclass(frozen=True, slots=True)
class _Target:
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


class _Connection:
    """A session from `connect` to `close`. Every method may be called from any thread."""

    def __init__(self, target: _Target) -> None:
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

    def ask(self, request: str, *arguments: Any) -> Future[dict[str, Any]]:
        """Return the answer to a request, a method of the client, in the words of the protocol. Cancelling the future
        cancels the request."""
        if self.ended:
            failed: Future[dict[str, Any]] = Future()
            failed.set_exception(self._lost())
            return failed
        return self._thread.submit(self._answer(request, *arguments))

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

    async def _answer(self, request: str, *arguments: Any) -> dict[str, Any]:
        try:
            answer = await getattr(self._client, request)(*arguments)
        except Exception as error:  # the client's package raises what it likes
            raise self._translated(error) from error
        return _as_json(answer)

    def _translated(self, error: Exception) -> Exception:
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST

        if isinstance(error, MCPError) and error.code == INVALID_PARAMS:
            return _Refused(error.message)
        # An invalid request is one of a session that the server has forgotten, after a restart of its own.
        if isinstance(error, MCPError) and error.code in (CONNECTION_CLOSED, INVALID_REQUEST):
            assert self._stop is not None
            ended = error.code == CONNECTION_CLOSED
            self._reason = "the server ended or closed the connection" if ended else error.message
            self._broken = True
            self._stop.set()
            return self._lost()
        if isinstance(error, MCPError):
            return _Refused(f"the server could not answer: {error.message}")  # it is there, and did not come to grips
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
