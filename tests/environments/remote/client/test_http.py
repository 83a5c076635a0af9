"""What is sent again and what never is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from tests.environments.remote.faults import Faulty, Wire
from tests.environments.remote.running import running
from uirl.environments.remote.client.base import EnvironmentClient, Refused, ServerLost
from uirl.errors import ConfigError, EnvironmentFailure


@pytest.fixture
def server() -> Iterator[tuple[str, Faulty]]:
    app = FastAPI()
    app.add_api_route("/thing", lambda: {"n": 1}, methods=["GET", "POST"])
    faulty = Faulty(app)
    with running(faulty) as url:
        yield url, faulty


async def sent(url: str, *, again: bool, timeout: float = 30.0, retries: int = 2) -> Any:
    client = EnvironmentClient(retries=retries, backoff=0.01)
    client.hold()
    try:
        return await client.json("POST", f"{url}/thing", json={}, timeout=timeout, again=again)
    finally:
        await client.release()


def failing(times: int, fault: str) -> Any:
    left = iter(range(times))
    return lambda method, path: fault if next(left, None) is not None else None


@pytest.mark.parametrize("fault", ["500", "503"])
async def test_an_act_is_sent_once(server: tuple[str, Faulty], fault: str) -> None:
    url, faulty = server
    faulty.rule = failing(1, fault)
    with pytest.raises(Refused, match=fault):
        await sent(url, again=False)
    assert len(faulty.asked) == 1


async def test_an_act_that_got_lost_on_the_way_back_is_sent_once(server: tuple[str, Faulty]) -> None:
    url, faulty = server
    with Wire(url).running() as wire:
        wire.cut()
        with pytest.raises(ServerLost):
            await sent(wire.url, again=False)
        assert len(faulty.asked) == 1
        with pytest.raises(ServerLost, match="after 3 tries"):
            await sent(wire.url, again=True)
        assert len(faulty.asked) == 4


async def test_an_answer_that_is_no_json(server: tuple[str, Faulty]) -> None:
    url, faulty = server
    faulty.rule = lambda method, path: "text"
    with pytest.raises(EnvironmentFailure, match="answered 'Internal Server Error': the text is not JSON"):
        await sent(url, again=True)


async def test_a_server_is_waited_for_as_long_as_it_asks() -> None:
    app = FastAPI()
    asked: list[float] = []

    @app.post("/thing")
    async def thing() -> Any:
        from fastapi.responses import JSONResponse

        asked.append(time.monotonic())
        error = {"error": {"kind": "capacity", "message": "full"}}
        return {"n": 1} if len(asked) > 1 else JSONResponse(error, 503, {"retry-after": "0.5"})

    with running(app) as url:
        assert await sent(url, again=True) == {"n": 1}
    assert asked[1] - asked[0] >= 0.5


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
