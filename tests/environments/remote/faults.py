"""What goes wrong between machines: answers of the wrong kind, wires that are cut or go silent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.patience import PATIENCE


class Faulty:
    """An ASGI application that answers wrongly where `rule(method, path)` names a fault:

    '500', '503', 'hang', 'text' (200 with words), 'cut' (a picture that ends in the middle).
    """

    def __init__(self, app: Any, rule: Callable[[str, str], str | None] = lambda method, path: None) -> None:
        self.app, self.rule = app, rule
        self.asked: list[tuple[str, str]] = []

    @property
    def state(self) -> Any:
        return self.app.state

    def count(self, end: str) -> int:
        """How often a path that ends like this was asked for."""
        return sum(path.endswith(end) for _, path in self.asked)

    def calls(self, path: str) -> int:
        """How often this very path was asked for: a session's own count where the path names the session."""
        return sum(asked == path for _, asked in self.asked)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.asked.append((scope["method"], scope["path"]))
        fault = self.rule(scope["method"], scope["path"])
        if fault is None:
            await self.app(scope, receive, send)
        elif fault == "hang":
            while (await receive())["type"] != "http.disconnect":
                pass
        elif fault == "cut":
            await self._cut(scope, receive, send)
        else:
            status = 200 if fault == "text" else int(fault)
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Internal Server Error"})

    async def _cut(self, scope: Any, receive: Any, send: Any) -> None:
        parts: list[Any] = []

        async def keep(message: Any) -> None:
            parts.append(message)

        await self.app(scope, receive, keep)
        whole = b"".join(part.get("body", b"") for part in parts)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"image/png")]})
        await send({"type": "http.response.body", "body": whole[: len(whole) * 2 // 3]})


class Wire:
    """A TCP connection in between, on a thread: `cut` breaks it after what was just sent, `freeze` leaves the sockets
    open and lets nothing through any more."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._target = (address.hostname, address.port)
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._frozen = self._deaf = False
        self.sent = 0
        """Bytes that went through to the server."""
        self.lost = 0
        """Answers that were cut off."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def freeze(self) -> None:
        self._frozen = True

    def cut(self) -> None:
        """What is sent from now on still reaches the server; then the connection breaks before the answer comes."""
        self._deaf = True

    def mend(self) -> None:
        self._frozen = self._deaf = False

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._pairs.append((writer, there_writer))
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._up(reader, there_writer), self._down(there_reader, writer))
        for one in (writer, there_writer):
            one.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self._frozen:
                self.sent += len(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._deaf:
                self.lost += 1
                writer.transport.abort()
                return
            if not self._frozen:
                writer.write(data)
                await writer.drain()
        writer.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[Wire]:
        async def start() -> None:
            self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)

        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(start(), self._loop).result(PATIENCE)
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(PATIENCE)
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(PATIENCE)
            self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
