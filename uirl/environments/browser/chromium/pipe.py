"""The two pipes to a browser that was started with `--remote-debugging-pipe`: messages that end with a zero byte."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import Callable
from typing import IO, NamedTuple

CAPACITY = 1 << 20
"""Bytes of a pipe, where the system gives as many: a picture comes in few pieces."""
LONGEST_MESSAGE = 1 << 26
"""Bytes. A page decides how long the answer to a question about it is; the largest pictures take some ten million. Of a
longer message the beginning alone is kept."""
ENDLESS = 1 << 28
"""Bytes of one message after which the browser is ended."""


class PipeEnds(NamedTuple):
    """Our ends."""

    answers: IO[bytes]
    """What the browser writes."""
    calls: IO[bytes]
    """What the browser reads."""


class Wire(asyncio.Protocol):
    """Messages in and out of a pair of pipes, in order."""

    def __init__(self, on_message: Callable[[bytes, int], None], on_end: Callable[[str], None]) -> None:
        """Set the callbacks.

        `on_message` gets each message, without its zero byte and cut at `LONGEST_MESSAGE`, and its length; `on_end`
        gets the reason when either pipe is gone.
        """
        self._on_message = on_message
        self._on_end = on_end
        self._parts: list[bytes] = []  # of a message whose end has not come
        self._held = 0
        self._transports: list[asyncio.BaseTransport] = []
        self._calls: asyncio.WriteTransport | None = None

    async def connect(self, ends: PipeEnds) -> None:
        """Begin to read; the files are closed with `abort`."""
        loop = asyncio.get_running_loop()
        for end in ends:
            with contextlib.suppress(OSError):  # the user's share of such memory is used up: a small one does as well
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, CAPACITY)
        self._calls, _ = await loop.connect_write_pipe(lambda: self, ends.calls)
        reading, _ = await loop.connect_read_pipe(lambda: self, ends.answers)
        self._transports = [self._calls, reading]
        if any(transport.is_closing() for transport in self._transports):
            self.connection_lost(None)

    def send(self, message: bytes) -> None:
        """Write a message, now or when the browser has read what was written before."""
        assert self._calls is not None
        self._calls.write(message + b"\0")

    def abort(self) -> None:
        """Close both pipes; what was not written yet is dropped."""
        for transport in self._transports:
            if transport.is_closing():  # asyncio would end it a second time, and raise in its event loop
                continue
            transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()

    def data_received(self, data: bytes) -> None:
        *ended, rest = data.split(b"\0")
        for part in ended:
            self._take(part)
            message, length = b"".join(self._parts), self._held
            self._parts.clear()
            self._held = 0
            self._on_message(message, length)
        if rest:
            self._take(rest)

    def _take(self, part: bytes) -> None:
        room = LONGEST_MESSAGE - self._held
        if room > 0:
            self._parts.append(part[:room])
        self._held += len(part)
        if self._held > ENDLESS:
            self._on_end(f"the browser sent more than {ENDLESS} bytes in one message, and is ended")

    def connection_lost(self, error: Exception | None) -> None:
        # While they are connected, `connect` tells of it: whoever hears of the end closes the files, and the event loop
        # would go on to watch their descriptors, which the next browser's pipes get.
        if self._transports:
            self._on_end("the browser ended")
