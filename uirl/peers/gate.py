"""The door of the learner's process: where actors and engines, here or on other machines, come in with the token of
the run."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from uirl.errors import ConfigError
from uirl.peers.greeting import NotAdmitted, greet
from uirl.peers.peer import Handler, Peer
from uirl.peers.pictures import SharedPictures

_LOG = logging.getLogger(__name__)
MOST_STRANGERS = 256
"""Connections that were not greeted yet; one more, and the oldest of them goes: who knows the token is in at once."""

About = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Visitor:
    """What the gate does with one process that dialled and knows the token."""

    name: str
    handlers: Mapping[str, Handler]
    arrived: Callable[[Peer], None]
    """Called once it is in."""


class Gate:
    """Listens at `host`:`port` (0: one that is free) while it is open.

    `admit` gets what a process says about itself and returns how it is served; it raises NotAdmitted for one that is
    not expected. `silence`: seconds without a word after which a process that is in counts as lost.
    """

    def __init__(
        self,
        admit: Callable[[About], Visitor],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        pictures: SharedPictures | None = None,
        silence: float | None = None,
    ) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.host, self.port = host, port
        self._admit, self._pictures, self._silence = admit, pictures, silence
        self._server: asyncio.Server | None = None
        self._strangers: dict[asyncio.Task[Any], None] = {}
        """The oldest first."""

    async def open(self) -> None:
        """Begin to listen; `port` is then the real one. Raises ConfigError where that is not possible."""
        if self._server is not None:
            return
        try:
            self._server = await asyncio.start_server(self._greet, self.host, self.port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for actors and engines at {self.host}:{self.port}: {error}; free the port, or choose "
                "another"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Admit nobody any more. Peers that are in stay. Calling it twice is fine."""
        if self._server is not None:
            self._server.close()
        for task in list(self._strangers):
            task.cancel()

    async def close(self) -> None:
        """Admit nobody any more, and wait until those are gone who were not in yet. Calling it twice is fine."""
        self.stop_listening()
        await asyncio.gather(*self._strangers, return_exceptions=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]  # another one may come before it has ended
            oldest.cancel()
        task = asyncio.current_task()
        assert task is not None
        self._strangers[task] = None
        visitors: list[Visitor] = []

        def admit(about: About) -> About:
            visitors.append(self._admit(about))
            if self._pictures is None:
                return {}
            return {"pictures": str(self._pictures.folder), "pictures_identity": self._pictures.identity()}

        try:
            await greet((reader, writer), self.token, admit)
        except NotAdmitted as error:
            _LOG.warning("at the gate: %s", error)
            return
        finally:
            self._strangers.pop(task, None)
        visitor = visitors[0]
        peer = Peer(reader, writer, visitor.handlers, pictures=self._pictures, name=visitor.name, silence=self._silence)
        visitor.arrived(peer)
