"""The client of environments: its token, its proxy, and the first answer of several servers. What it sends again is in
tests/http/test_client.py, for all clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from tests.environments.remote.faults import Faulty
from tests.environments.remote.running import running
from uirl.environments.remote.client.base import EnvironmentClient
from uirl.errors import ConfigError, EnvironmentFailure


@pytest.fixture
def server() -> Iterator[tuple[str, Faulty]]:
    app = FastAPI()
    app.add_api_route("/thing", lambda: {"n": 1}, methods=["GET", "POST"])
    faulty = Faulty(app)
    with running(faulty) as url:
        yield url, faulty


def test_a_token_that_is_named_and_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENV_TOKEN", " ")
    with pytest.raises(ConfigError, match="ENV_TOKEN holds no token"):
        EnvironmentClient("ENV_TOKEN")


async def test_both_ways_to_ask_take_the_proxy_of_the_environment(
    server: tuple[str, Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines.append(head.decode().splitlines()[0])
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n{"n":7}')
        await writer.drain()
        writer.close()

    def asked(url: str) -> int:
        number: int = client.first_answer([url], "/thing", lambda said: said["n"], "nothing there", "Start it.")
        return number

    proxy = await asyncio.start_server(answer, "127.0.0.1", 0)
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    client = EnvironmentClient()
    client.hold()
    async with proxy:
        far = "http://envs.example:8000"
        assert await client.json("GET", f"{far}/thing", timeout=30.0, again=True) == {"n": 7}
        assert await asyncio.to_thread(asked, far) == 7
        assert lines == [f"GET {far}/thing HTTP/1.1"] * 2
        # not between two processes of one machine
        assert await client.json("GET", f"{server[0]}/thing", timeout=30.0, again=True) == {"n": 1}
        assert await asyncio.to_thread(asked, server[0]) == 1
        assert len(lines) == 2
    await client.release()


def test_the_first_answer_that_makes_sense(server: tuple[str, Faulty]) -> None:
    def read(said: Any) -> Any:
        if said["n"] != 1:
            raise EnvironmentFailure("odd")
        return said

    url, faulty = server
    client = EnvironmentClient()
    urls = ["http://127.0.0.1:1", url]
    assert client.first_answer(urls, "/thing", read, "nobody knows", "Start one.") == {"n": 1}
    faulty.rule = lambda method, path: "500"
    with pytest.raises(
        EnvironmentFailure, match=r"nobody knows: GET http://127\.0\.0\.1:1/thing .*no connection.*; .* 500 .*Start one"
    ):
        client.first_answer(urls, "/thing", read, "nobody knows", "Start one.")
    faulty.rule = lambda method, path: "text"
    with pytest.raises(EnvironmentFailure, match=r"answered .*: the text is not JSON"):
        client.first_answer(urls, "/thing", read, "nobody knows", "Start one.")
