"""The reference servers of the Model Context Protocol, as npm has them, through our client."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from uirl.errors import EnvironmentFailure, EpisodeTimeout
from uirl.tools import MCPServer, ToolRegistry
from uirl.types import ToolCall, ToolResult

pytestmark = pytest.mark.clients

PROGRAMS = Path(__file__).parents[2] / ".venv-clients" / "node_modules" / ".bin"
TOOLS = {"everything": 13, "filesystem": 14, "memory": 9, "sequential-thinking": 1}


def server(kind: str, folder: Path, **options: Any) -> MCPServer:
    words = [str(PROGRAMS / f"mcp-server-{kind}"), *([str(folder)] if kind == "filesystem" else [])]
    return MCPServer(words, env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}, **options)


async def call(registry: ToolRegistry, name: str, **arguments: Any) -> ToolResult:
    return await registry.call(ToolCall(name, arguments))


def processes(kind: str) -> list[psutil.Process]:
    """The server's own process among our children: the one that is no shell around it."""
    named = f"mcp-server-{kind}"
    children = psutil.Process().children(recursive=True)
    return [child for child in children if named in " ".join(child.cmdline()) and "node" in child.name()]


@pytest.mark.parametrize("kind", TOOLS)
async def test_every_tool_of_a_reference_server_is_a_tool(kind: str, tmp_path: Path) -> None:
    with server(kind, tmp_path) as running:
        registry = ToolRegistry(running.tools())
        assert len(registry) == TOOLS[kind]
        for schema in registry.schemas():
            assert schema["function"]["description"]
            assert schema["function"]["parameters"]["type"] == "object"
        # a mistake of the policy is told to it, whatever the tool
        for name in registry.names:
            wrong = await call(registry, name, no_such_argument=1)
            required = registry[name].definition.parameters.get("required", [])
            assert not wrong.success or not required
    assert processes(kind) == []


async def test_everything(tmp_path: Path) -> None:
    with server("everything", tmp_path) as running:
        registry = ToolRegistry(running.tools())
        assert (await call(registry, "echo", message="h\N{PARROT}")).text == "Echo: h\N{PARROT}"
        assert "is 5" in (await call(registry, "get-sum", a=2, b=3)).text
        assert "image/png" in (await call(registry, "get-tiny-image")).text
        weather = await call(registry, "get-structured-content", location="Chicago")
        assert set(json.loads(weather.text)) == {"temperature", "conditions", "humidity"}
        refused = await call(registry, "get-structured-content", location="Atlantis")
        assert not refused.success
        assert "New York" in refused.text


async def test_files_and_what_is_outside_of_them(tmp_path: Path) -> None:
    with server("filesystem", tmp_path) as running:
        registry = ToolRegistry(running.tools())
        path = str(tmp_path / "note.txt")
        assert (await call(registry, "write_file", path=path, content="one\ntwo\n")).success
        assert (tmp_path / "note.txt").read_text() == "one\ntwo\n"
        edited = await call(registry, "edit_file", path=path, edits=[{"oldText": "two", "newText": "three"}])
        assert edited.success
        assert "three" in (await call(registry, "read_text_file", path=path)).text
        outside = await call(registry, "read_text_file", path="/etc/hostname")
        assert not outside.success
        assert "denied" in outside.text


async def test_a_graph_outlives_its_server(tmp_path: Path) -> None:
    entity = {"name": "Ada", "entityType": "person", "observations": ["counts"]}
    for round in range(2):
        with server("memory", tmp_path) as running:
            registry = ToolRegistry(running.tools())
            if round == 0:
                assert (await call(registry, "create_entities", entities=[entity])).success
            assert "counts" in (await call(registry, "search_nodes", query="Ada")).text


async def test_thoughts_in_sequence(tmp_path: Path) -> None:
    with server("sequential-thinking", tmp_path) as running:
        registry = ToolRegistry(running.tools())
        for number in (1, 2):
            step = {"thought": "so", "nextThoughtNeeded": number < 2, "thoughtNumber": number, "totalThoughts": 2}
            assert '"thoughtHistoryLength":' in (await call(registry, "sequentialthinking", **step)).text.replace(
                " ", ""
            )


async def test_a_server_that_is_killed_fails_the_episode_and_comes_back_with_the_next(tmp_path: Path) -> None:
    with server("everything", tmp_path) as running:
        registry = ToolRegistry(running.tools())
        assert (await call(registry, "echo", message="a")).success
        (process,) = processes("everything")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        with pytest.raises(EnvironmentFailure, match="MCP server"):
            await call(registry, "echo", message="b")
        assert running.lost
        registry.reset()
        assert (await call(registry, "echo", message="c")).text == "Echo: c"
        assert [again.pid for again in processes("everything")] != [process.pid]


async def test_a_server_that_hangs_is_given_up_and_works_when_it_wakes(tmp_path: Path) -> None:
    with server("everything", tmp_path, call_timeout=1.0) as running:
        registry = ToolRegistry(running.tools())
        (process,) = processes("everything")
        process.suspend()
        try:
            with pytest.raises(EpisodeTimeout, match="did not return within 1 s"):
                await call(registry, "echo", message="a")
        finally:
            process.resume()
    with server("everything", tmp_path) as running:
        assert (await call(ToolRegistry(running.tools()), "echo", message="b")).text == "Echo: b"


def test_a_server_that_says_nothing_is_given_up_at_the_start() -> None:
    with pytest.raises(EnvironmentFailure, match=r"no answer within 0\.5 s"):
        MCPServer(["node", "-e", "setInterval(() => {}, 1000)"], connect_timeout=0.5).start()


@pytest.fixture
def port() -> Iterator[int]:
    """The port of the reference server over streamable HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    environment = os.environ | {"PORT": str(number)}
    words = [str(PROGRAMS / "mcp-server-everything"), "streamableHttp"]
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if str(number) in line:
                break
        assert process.poll() is None, "the server ended at its start"
        yield number
    finally:
        process.kill()
        process.communicate()


async def test_over_streamable_http(port: int) -> None:
    with MCPServer(url=f"http://127.0.0.1:{port}/mcp") as running:
        registry = ToolRegistry(running.tools())
        assert len(registry) == TOOLS["everything"]
        assert (await call(registry, "echo", message="hi")).text == "Echo: hi"
