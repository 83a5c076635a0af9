"""Who is let in while others only stand in the way."""

from __future__ import annotations

import asyncio

from uirl.peers.gate import MOST_STRANGERS, Gate, Visitor
from uirl.peers.greeting import dial
from uirl.peers.peer import Peer


async def test_silent_strangers_keep_nobody_out_who_knows_the_token() -> None:
    arrived: asyncio.Queue[Peer] = asyncio.Queue()
    gate = Gate(lambda about: Visitor(about["name"], {}, arrived.put_nowait))
    await gate.open()
    strangers = [await asyncio.open_connection(gate.host, gate.port) for _ in range(MOST_STRANGERS + 40)]
    peers = []
    for name in ("actor-0", "actor-1"):
        (reader, writer), _ = await dial(gate.host, gate.port, gate.token, {"name": name})
        assert (await asyncio.wait_for(arrived.get(), 60)).name == name
        peers.append(Peer(reader, writer, {}))
        strangers += [await asyncio.open_connection(gate.host, gate.port) for _ in range(MOST_STRANGERS)]
    assert await asyncio.wait_for(strangers[0][0].read(-1), 60), "greeted, and then closed: it was the oldest"
    assert [peer.reason for peer in peers] == [None, None], "who is in stays in"
    assert len(gate._strangers) <= MOST_STRANGERS
    await gate.close()
    for _, writer in strangers:
        writer.close()
    for peer in peers:
        peer.close()
