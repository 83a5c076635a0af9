"""An MCP server for the tests: `python mcp_server.py stdio [stay]` or `python mcp_server.py streamable-http PORT`."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import anyio
from mcp.server.mcpserver import Image, MCPServer
from pydantic import BaseModel

server = MCPServer("test", log_level="CRITICAL")
basket: list[str] = []
released: list[bool] = []


class Point(BaseModel):
    x: int
    name: str = "東"


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


@server.tool()
def put(item: str) -> list[str]:
    """Puts an item into the basket."""
    basket.append(item)
    return basket


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no luck")


@server.tool()
def point() -> Point:
    """A point."""
    return Point(x=3)


@server.tool(name="New Tool")
def new_tool() -> str:
    """Has a name that no policy can write."""
    return "new"


@server.tool(name="New_Tool")
def other_new_tool() -> str:
    """Has the name that the other one becomes."""
    return "other"


@server.tool()
def many(count: int) -> list[int]:
    """Numbers."""
    return list(range(count))


@server.tool()
def picture() -> list[Image | str]:
    """A picture and a word."""
    return [Image(data=b"\x89PNG!", format="png"), "hello"]


@server.tool()
async def slow(seconds: float) -> str:
    """Waits."""
    await anyio.sleep(seconds)
    return "done"


@server.tool()
async def wait() -> str:
    """Waits for `release`."""
    while not released:
        await anyio.sleep(0.01)
    return "done"


@server.tool()
def release() -> str:
    """Lets all who wait go on."""
    released.append(True)
    return "released"


@server.tool()
def child() -> int:
    """Process id of a child that stays."""
    return subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid


@server.tool()
def process() -> int:
    """Process id of the server."""
    return os.getpid()


@server.tool()
def secrets() -> str:
    """Names of the environment variables."""
    return " ".join(sorted(os.environ))


@server.tool()
def die() -> str:
    """Ends the server at once."""
    os._exit(3)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
        if sys.argv[2:] == ["stay"]:
            time.sleep(1000)  # against the rules: the client has closed the connection
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
