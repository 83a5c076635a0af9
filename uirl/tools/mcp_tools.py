"""The tools of an MCP server (Model Context Protocol) as tools of ours: over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
import shlex
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from uirl.errors import ConfigError, ContractError, EnvironmentFailure
from uirl.tools.base import Tool, ToolError
from uirl.tools.definition import ToolDefinition, callable_name
from uirl.tools.mcp_connection import MCPConnection, MCPTarget, Refused
from uirl.tools.results import structured_value


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
        self._target = MCPTarget(words, url, dict(env or {}), cwd, dict(headers or {}), connect_timeout)
        self.prefix, self.call_timeout = prefix, call_timeout
        self.incarnation = 0
        """How often it was connected."""
        self._connection: MCPConnection | None = None
        self._lock = threading.Lock()
        # A server that is not closed ends with the interpreter; the list lets it go with the connection of the day.
        self._open: list[MCPConnection] = []
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
            connection = MCPConnection(self._target)
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
        future = self._connected().call(name, dict(arguments))
        result: dict[str, Any] = await asyncio.wrap_future(future)
        return result

    async def answers(self) -> bool:
        """Return whether the server answers within `connect_timeout` seconds what its tools are."""
        try:
            async with asyncio.timeout(self._target.connect_timeout):
                await asyncio.wrap_future(self._connected().ask())
        except Refused:  # an answer, too
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

    def _connected(self) -> MCPConnection:
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
        except Refused as error:
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


def _close_all(connections: list[MCPConnection]) -> None:
    while connections:
        connections.pop().close()
