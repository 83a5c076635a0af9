"""MCP tools against a real server, over stdio and over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.patience import PATIENCE
from tests.threads import left_since
from tests.tools.python_programs import wait_for
from uirl.errors import ConfigError, ContractError, EnvironmentFailure, EpisodeTimeout
from uirl.tools import MCPServer, ToolRegistry
from uirl.tools.mcp_tools import text_of
from uirl.types import ToolCall, ToolResult

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))
STDIO = [sys.executable, SCRIPT, "stdio"]


class HTTPServer:
    """A server process on a free port, which the test can kill and start again."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, "streamable-http", str(self.port)], stderr=subprocess.DEVNULL
        )
        wait_for(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, "the server did not start"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def stdio() -> Iterator[MCPServer]:
    with MCPServer(STDIO) as server:
        yield server


@pytest.fixture(scope="module")
def http() -> Iterator[MCPServer]:
    process = HTTPServer()
    try:
        with MCPServer(url=process.url) as server:
            yield server
    finally:
        process.stop()


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest) -> MCPServer:
    made: MCPServer = request.getfixturevalue(request.param)
    return made


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def ask(registry: ToolRegistry, name: str, **arguments: Any) -> ToolResult:
    return await registry.call(ToolCall(name, arguments))


async def test_the_tools_of_a_server_are_tools(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    assert registry.names[:3] == ("add", "echo", "put")
    assert registry.describe().startswith("- add(a: integer, b: integer (optional)): Adds two numbers.\n- echo(")
    got = await ask(registry, "add", a=40, b=2)
    assert (got.success, got.result) == (True, "42")
    assert (await ask(registry, "echo", text="ü 東 🙂 \n\t\"'")).result == "ü 東 🙂 \n\t\"'"
    assert (await ask(registry, "echo", text="x" * 200_000)).result.endswith("... (cut, 192000 more characters)")


async def test_the_policys_mistakes_are_told(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    got = await ask(registry, "add", a="x")
    assert (got.success, got.result) == (False, "argument 'a': got \"x\" (string), expected integer")
    got = await ask(registry, "fail")
    assert not got.success
    assert "fail" in got.result


async def test_structured_content_and_pictures(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    assert '"x": 3' in (await ask(registry, "point")).result
    assert "東" in (await ask(registry, "point")).result
    assert (await ask(registry, "picture")).result == "[image: image/png, 5 bytes, not shown]\nhello"


async def test_a_name_that_no_policy_can_write_becomes_one_that_it_can(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    assert {"add", "New_Tool", "New_Tool_2"} <= set(registry.names)
    assert (await ask(registry, "New_Tool")).result == "other"
    assert (await ask(registry, "New_Tool_2")).result == "new"


async def test_a_list_arrives_as_its_items_also_where_it_has_none(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    assert (await ask(registry, "many", count=2)).result == "0\n1"
    assert (await ask(registry, "many", count=0)).result == []


async def test_sixteen_episodes_share_one_connection(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    episodes = [registry.spawn() for _ in range(16)]
    for episode in episodes:
        episode.reset(0)
    # Sixteen calls wait for one that comes after them: where calls queue, none ever ends.
    waiting = [asyncio.ensure_future(ask(episode, "wait")) for episode in episodes]
    answers = await asyncio.gather(*(ask(episode, "add", a=i) for i, episode in enumerate(episodes)))
    await ask(registry, "release")
    assert [answer.result for answer in answers] == [str(i + 1) for i in range(16)]
    assert {answer.result for answer in await asyncio.gather(*waiting)} == {"done"}


def test_calls_from_any_thread_and_loop(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    results = []

    def elsewhere(i: int) -> None:
        results.append(asyncio.run(ask(registry, "add", a=i)).result)

    threads = [threading.Thread(target=elsewhere, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["1", "2", "3", "4"]
    assert registry.execute_tool("add", a=1) == (True, "2")
    asyncio.run(registry.close())
    assert registry.execute_tool("add", a=1) == (True, "2"), "closing a registry leaves the shared server alone"
    asyncio.run(registry.close())


async def test_a_slow_tool_is_cut_off_and_the_connection_stays(server: MCPServer) -> None:
    registry = ToolRegistry(server.tools())
    registry["slow"].timeout = 0.1
    late = await ask(registry, "slow", seconds=30)
    assert (late.success, late.result) == (False, "the call did not return within 0.1 s")
    assert (await ask(registry, "add", a=1)).result == "2"
    assert not server.lost


async def test_a_server_that_answers_nothing_else_either_is_a_failure(
    server: MCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ToolRegistry(server.tools())
    registry["slow"].timeout = 0.1

    async def silent(self: MCPServer) -> bool:
        return False

    assert await server.answers()
    monkeypatch.setattr(MCPServer, "answers", silent)
    with pytest.raises(EpisodeTimeout, match=r"within 0\.1 s, and what it depends on does not answer"):
        await ask(registry, "slow", seconds=30)


async def test_a_server_that_dies_fails_the_episodes_and_not_the_run() -> None:
    with MCPServer(STDIO) as server:
        registry = ToolRegistry(server.tools())
        before = registry.spawn()
        waiting = asyncio.ensure_future(ask(before, "slow", seconds=30))
        await ask(before, "put", item="apple")
        with pytest.raises(EnvironmentFailure, match=r"connection to MCP server .* is lost: the server ended"):
            await ask(registry, "die")
        assert server.lost
        with pytest.raises(EnvironmentFailure, match="is lost"):
            await waiting
        with pytest.raises(EnvironmentFailure, match="is lost"):
            await ask(registry, "add", a=1)

        registry.reset(1)
        assert (await ask(registry, "put", item="pear")).result == "pear"
        with pytest.raises(EnvironmentFailure, match="connected anew during the episode"):
            await ask(before, "put", item="plum")
        before.reset(1)
        assert (await ask(before, "put", item="fig")).result == "pear\nfig"


async def test_an_http_server_that_dies_and_comes_back() -> None:
    process = HTTPServer()
    try:
        async with MCPServer(url=process.url, connect_timeout=PATIENCE) as server:
            registry = ToolRegistry(server.tools())
            waiting = asyncio.ensure_future(ask(registry.spawn(), "slow", seconds=30))
            await ask(registry, "add", a=1)
            process.stop()
            for call in (ask(registry, "add", a=1), waiting):
                with pytest.raises(EnvironmentFailure, match="is lost"):
                    await call
            with pytest.raises(EnvironmentFailure, match="did not answer: ConnectError"):
                registry.reset(1)
            process.start()
            registry.reset(1)
            assert (await ask(registry, "add", a=1)).result == "2"
    finally:
        process.stop()


class Forgetful(BaseHTTPRequestHandler):
    """A server of the older protocol, with sessions, that is restarted after every listing of its tools."""

    protocol_version = "HTTP/1.1"
    sessions: ClassVar[list[str]] = []
    calls: ClassVar[int] = 0

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            return self.answer(202)
        if request["method"] == "initialize":
            self.sessions.append(f"session-{len(self.sessions)}")
            information = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            return self.answer(200, request, information | {"serverInfo": {"name": "old", "version": "1"}})
        if request["method"] == "tools/list":
            return self.answer(200, request, {"tools": [{"name": "hi", "inputSchema": {"type": "object"}}]})
        if request["method"] == "tools/call":
            type(self).calls += 1
            if self.calls % 2:  # the session was of the process before
                return self.answer(404)
            return self.answer(200, request, {"content": [], "structuredContent": {"said": {"to": None}}})
        return self.answer(404)

    def answer(self, status: int, request: Any = None, result: Any = None) -> None:
        body = (
            b"" if request is None else json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.sessions:
            self.send_header("Mcp-Session-Id", self.sessions[-1])
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_DELETE = lambda self: self.answer(405)

    def log_message(self, *_: Any) -> None: ...


async def test_a_session_that_the_server_forgot_is_made_again() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as old:
        threading.Thread(target=old.serve_forever, daemon=True).start()
        with MCPServer(url=f"http://127.0.0.1:{old.server_port}/mcp") as server:
            registry = ToolRegistry(server.tools())
            with pytest.raises(EnvironmentFailure, match="is lost: Session terminated"):
                await ask(registry, "hi")
            registry.reset(1)
            assert (await ask(registry, "hi")).result == {"said": {"to": None}}, "structured content, whole"
        old.shutdown()
    assert len(Forgetful.sessions) == 2


async def test_a_server_has_its_own_names_and_variables_and_close_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    threads = set(threading.enumerate())
    async with MCPServer(STDIO, env={"FOR_THE_SERVER": "1"}, prefix="shop_") as server:
        registry = ToolRegistry(server.tools())
        names = (await ask(registry, "shop_secrets")).result.split()
        assert "FOR_THE_SERVER" in names
        assert "SECRET_TOKEN" not in names
        pids = [int((await ask(registry, name)).result) for name in ("shop_process", "shop_child")]
        assert all(alive(pid) for pid in pids)
        waiting = asyncio.ensure_future(ask(registry, "shop_slow", seconds=30))
        await ask(registry, "shop_add", a=1)
    with pytest.raises(EnvironmentFailure):
        await waiting
    assert not alive(pids[0])
    os.kill(pids[1], 9)  # its own, and not of the protocol
    assert {thread for thread in threading.enumerate() if thread.name == "mcp-session"} <= threads
    with pytest.raises(EnvironmentFailure, match="is not connected"):
        await ask(registry, "shop_add", a=1)
    server.close()


def test_a_server_that_is_not_closed_ends_with_the_interpreter() -> None:
    program = (
        "import sys; from uirl.tools import MCPServer, ToolRegistry\n"
        f"registry = ToolRegistry(MCPServer({[*STDIO, 'stay']!r}).start().tools())\n"
        "print(registry.execute_tool('process')[1])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert wait_for(lambda: not alive(int(done.stdout)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ["no-such-program"]}, "FileNotFoundError"),
        ({"command": f"{sys.executable} -c pass"}, "Connection closed"),
        (
            {"command": [sys.executable, "-c", "import sys; sys.stdin.read()"], "connect_timeout": 0.3},
            r"no answer within 0\.3 s",
        ),
        ({"url": "http://user:secret@127.0.0.1:9/mcp?key=secret"}, r"server http://127\.0\.0\.1:9/mcp did not answer"),
    ],
)
def test_a_server_that_cannot_be_reached(options: dict[str, Any], words: str) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(EnvironmentFailure, match=words) as caught:
        MCPServer(**options).start()
    assert "secret" not in str(caught.value)
    assert not left_since(threads)


def test_misuse_is_told() -> None:
    for options in ({}, {"command": "x", "url": "y"}):
        with pytest.raises(ConfigError, match="expected one of the two"):
            MCPServer(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="empty command"):
        MCPServer(" ")
    with pytest.raises(ContractError, match=r"is not connected; use `with MCPServer"):
        MCPServer(STDIO).tools()


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'uirl\[mcp\]'"):
        MCPServer(STDIO).start()


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": "a"}, "a"),
        ({"type": "image", "data": "iVBORw==", "mimeType": "image/png"}, "[image: image/png, 4 bytes, not shown]"),
        ({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}, "[audio: audio/wav, 3 bytes, not shown]"),
        ({"type": "resource", "resource": {"uri": "f:///a", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": {"uri": "f:///a", "blob": "AAAA"}}, "[resource: f:///a, not shown]"),
        ({"type": "resource_link", "uri": "f:///a"}, "[link: f:///a]"),
        ({"type": "hologram"}, "[content of type 'hologram', not shown]"),
    ],
)
def test_every_kind_of_content_becomes_text(block: dict[str, Any], text: str) -> None:
    assert text_of(block) == text
