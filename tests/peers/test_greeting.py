"""Before a word is believed: tokens, versions, strangers, silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.patience import PATIENCE
from uirl.peers import greeting
from uirl.peers.greeting import NotAdmitted, dial, greet


@asynccontextmanager
async def listening(token: str = "secret", **options: Any) -> AsyncIterator[tuple[int, list[Any]]]:
    """A port whose callers are greeted, and what became of each."""
    outcomes: list[Any] = []

    def admit(about: dict[str, Any]) -> dict[str, Any]:
        if about.get("actor") == "twice":
            raise NotAdmitted("actor 'twice' is here already")
        return {"welcome": about["actor"]}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            outcomes.append(await greet((reader, writer), token, admit, **options))
        except NotAdmitted as error:
            outcomes.append(str(error))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], outcomes
    finally:
        server.close()


async def heard(outcomes: list[Any]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not outcomes:
            await asyncio.sleep(0.01)
    return outcomes[0]


async def test_both_tell_about_themselves() -> None:
    async with listening() as (port, outcomes):
        (_, writer), said = await dial("127.0.0.1", port, "secret", {"actor": "a1", "slots": 4})
        assert said == {"welcome": "a1"}
        assert await heard(outcomes) == {"actor": "a1", "slots": 4}
        writer.close()


async def test_a_wrong_token_is_refused_on_both_sides_and_never_said() -> None:
    async with listening() as (port, outcomes):
        with pytest.raises(NotAdmitted, match="the token is not that of this run"):
            await dial("127.0.0.1", port, "guess", {"actor": "a1"})
        assert "127.0.0.1" in await heard(outcomes)
        assert "secret" not in str(outcomes)


async def test_a_process_that_was_not_admitted_hears_why() -> None:
    async with listening() as (port, outcomes):
        with pytest.raises(NotAdmitted, match="'twice' is here already"):
            await dial("127.0.0.1", port, "secret", {"actor": "twice"})
        await heard(outcomes)


async def test_a_gate_that_does_not_know_the_token_is_not_believed() -> None:
    # an actor would play for whoever listens there
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"version": 1, "nonce": "00"}).encode() + b"\n")
        await reader.readline()
        writer.write(json.dumps({"about": "{}", "proof": "f" * 64}).encode() + b"\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    with pytest.raises(NotAdmitted, match="does not know the token"):
        await dial("127.0.0.1", server.sockets[0].getsockname()[1], "secret", {})
    server.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n", b"[1]\n", b'{"nonce": 1}\n', b"x" * 200_000, b"\xff\xfe\n"])
async def test_a_stranger_is_refused(said: bytes) -> None:
    async with listening() as (port, outcomes):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert "refused" in await heard(outcomes)
        writer.close()


async def test_silence_has_an_end() -> None:
    async with listening(timeout=0.05) as (port, outcomes):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert "said nothing for 0.05 s" in await heard(outcomes)
        writer.close()
    with pytest.raises(OSError):
        await dial("127.0.0.1", port, "secret", {})


async def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as (port, outcomes):
        say = greeting._say
        monkeypatch.setattr(
            greeting, "_say", lambda writer, words: say(writer, {**words, "version": 9} if "proof" in words else words)
        )
        with pytest.raises(NotAdmitted, match="speaks version 9, expected 2"):
            await dial("127.0.0.1", port, "secret", {"actor": "a1"})
        await heard(outcomes)
