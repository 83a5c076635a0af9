"""The tools that some tasks need beside the phone: servers of tools by name, run on this side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from uirl.environments.mobile_world.actions import ACTIONS
from uirl.errors import ConfigError
from uirl.tools import MCPServer, Tool, ToolRegistry

_FIELDS = ("command", "url", "env", "cwd", "headers", "prefix", "connect_timeout", "call_timeout", "token_env")


class ToolServers:
    """Servers of tools by the name that tasks know them under (`MCP-<name>`; upper and lower case are the same).

    Each is an `MCPServer`, the arguments of one as a mapping, or tools and functions. A mapping may name the
    environment variable of a bearer token (`token_env`), so that no token stands in a config.
    """

    def __init__(self, servers: Mapping[str, Any]) -> None:
        if not isinstance(servers, Mapping):
            raise ConfigError(f"mobile_world: mcp maps names to servers of tools, got {servers!r:.80}")
        self._sources = {str(name).lower(): _source(name, value) for name, value in servers.items()}

    @property
    def names(self) -> frozenset[str]:
        """The names of the servers, in lower case."""
        return frozenset(self._sources)

    def registry(self, names: Iterable[str]) -> ToolRegistry:
        """Return new instances of the tools of these servers. Connects where that was not done, and blocks until then.

        Raises EnvironmentFailure where a server does not answer, ConfigError for two tools of one name and for a tool
        with the name of an action.
        """
        registry = ToolRegistry()
        for name in names:
            source = self._sources[name]
            tools = source.start().tools() if isinstance(source, MCPServer) else source
            for tool in tools:
                registered = registry.register(tool.spawn() if isinstance(tool, Tool) else tool)
                if registered.name in ACTIONS:
                    raise ConfigError(
                        f"mcp.{name} has a tool {registered.name!r}, which is an action of the phone; give that server "
                        "a prefix"
                    )
        return registry


def _source(name: Any, value: Any) -> MCPServer | list[Any]:
    if isinstance(value, MCPServer):
        return value
    if isinstance(value, (list, tuple, ToolRegistry)):
        return list(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"mobile_world: mcp.{name} is {value!r:.80}; expected a mapping with url or command")
    options = dict(value)
    unknown = sorted(set(options) - set(_FIELDS))
    if unknown:
        raise ConfigError(f"mobile_world: mcp.{name} has no option {unknown[0]!r}; expected {', '.join(_FIELDS)}")
    variable = options.pop("token_env", None)
    if variable is not None:
        token = os.environ.get(str(variable), "").strip()
        if not token:
            raise ConfigError(f"mobile_world: mcp.{name} takes its token from {variable}, which is empty")
        options["headers"] = {**options.get("headers", {}), "authorization": f"Bearer {token}"}
    return MCPServer(**options)
