"""How two processes find out that they belong to the same run, before either believes a word of the other.

Each proves that it knows the token without saying it: an HMAC over what the other made up. Until then everything is a
line of JSON with a limit, since the port may be open to a network.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

from uirl.errors import UirlError
from uirl.runtime.limits import InputError, Limits, read_json
from uirl.runtime.time_limits import TimedOut, within

VERSION = 2
"""Of what is said here and between peers."""
GREETING_SECONDS = 20.0
_LINE = 64 * 1024
_LIMITS = Limits(size=_LINE, items=1000, depth=8)
_IDLE, _INTERVAL, _PROBES = 30, 10, 6

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
About = Mapping[str, Any]


class NotAdmitted(UirlError):
    """The two processes do not belong together, or cannot talk."""


async def dial(
    host: str, port: int, token: str, about: About, *, timeout: float = GREETING_SECONDS
) -> tuple[Streams, dict[str, Any]]:
    """Connect to the gate at `host` and tell it `about` this process; return the streams and what the gate said.

    Raises NotAdmitted where the gate does not know the token, refuses, or does not answer in time, and OSError where
    nobody listens there.
    """
    place = f"{host}:{port}"
    try:
        reader, writer = await within(asyncio.open_connection(host, port), timeout)
    except TimedOut:
        raise NotAdmitted(f"{place} did not accept a connection within {timeout:g} s: is a firewall between?") from None
    try:
        _keep_alive(writer)
        mine = secrets.token_hex(16)
        hello = await within(_hear(reader, place), timeout)
        text = json.dumps(dict(about))
        proof = _proof(token, "dial", str(hello.get("nonce")), mine, text)
        _say(writer, {"version": VERSION, "nonce": mine, "about": text, "proof": proof})
        answer = await within(_hear(reader, place), timeout)
        if "refused" in answer:
            raise NotAdmitted(f"{place} refused this process: {answer['refused']}")
        text = str(answer.get("about"))
        if not _same(str(answer.get("proof")), _proof(token, "accept", mine, text)):
            raise NotAdmitted(f"{place} does not know the token of this run: is another program listening there?")
        return (reader, writer), json.loads(text)
    except TimedOut:
        writer.transport.abort()
        raise NotAdmitted(f"{place} did not greet within {timeout:g} s: is it busy, or another program?") from None
    except BaseException:
        writer.transport.abort()
        raise


async def greet(
    streams: Streams, token: str, admit: Callable[[dict[str, Any]], About], *, timeout: float = GREETING_SECONDS
) -> dict[str, Any]:
    """Greet a process that dialled; return what it says about itself.

    `admit` gets that and returns what it is told in turn; a NotAdmitted of `admit` is told as well. Raises NotAdmitted,
    with the connection closed, where it does not know the token or does not answer in time.
    """
    reader, writer = streams
    address = writer.get_extra_info("peername")
    place = "{}:{}".format(*address[:2]) if isinstance(address, tuple) else "a process on this machine"
    try:
        _keep_alive(writer)
        mine = secrets.token_hex(16)
        _say(writer, {"version": VERSION, "nonce": mine})
        hello = await within(_hear(reader, place), timeout)
        theirs, text = str(hello.get("nonce")), str(hello.get("about"))
        if not _same(str(hello.get("proof")), _proof(token, "dial", mine, theirs, text)):
            raise NotAdmitted("the token is not that of this run")
        if hello.get("version") != VERSION:
            raise NotAdmitted(
                f"it speaks version {hello.get('version')!r}, expected {VERSION}: update the older of the two"
            )
        about = read_json(text, _LIMITS, "what a process says about itself")
        answer = json.dumps(dict(admit(about)))
        _say(writer, {"about": answer, "proof": _proof(token, "accept", theirs, answer)})
        return dict(about)
    except TimedOut:
        writer.transport.abort()
        raise NotAdmitted(f"{place} connected and said nothing for {timeout:g} s") from None
    except (NotAdmitted, InputError) as error:
        _say(writer, {"refused": str(error)})
        writer.close()
        raise NotAdmitted(f"{place} was refused: {error}") from error
    except BaseException:
        writer.transport.abort()
        raise


def _proof(token: str, *parts: str) -> str:
    said = json.dumps(parts).encode()
    return hmac.new(token.encode(), said, hashlib.sha256).hexdigest()


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())


def _say(writer: asyncio.StreamWriter, words: Mapping[str, Any]) -> None:
    writer.write(json.dumps(words).encode() + b"\n")


async def _hear(reader: asyncio.StreamReader, place: str) -> dict[str, Any]:
    """Read one line. No more than one is under way, so that nothing of what follows is taken with it."""
    try:
        line = await reader.readuntil(b"\n")
        words = read_json(line, _LIMITS, f"the greeting of {place}")
    except (asyncio.IncompleteReadError, ConnectionError):
        raise NotAdmitted(f"{place} closed the connection before it was greeted") from None
    except (asyncio.LimitOverrunError, InputError) as error:
        raise NotAdmitted(f"{place} does not greet as uirl does: {error}") from None
    if not isinstance(words, dict):
        raise NotAdmitted(f"{place} does not greet as uirl does: got {type(words).__name__}")
    return words


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the kernel notice a machine that is gone, also while nothing is said for hours."""
    connection = writer.get_extra_info("socket")
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _IDLE), ("TCP_KEEPINTVL", _INTERVAL), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
