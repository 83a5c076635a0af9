"""What starts the processes of actors: on this machine, or anywhere (Ray)."""

from __future__ import annotations

from typing import Protocol

from uirl.peers.way import Way


class ActorProcess(Protocol):
    """One process that was started."""

    @property
    def pid(self) -> int | None:
        """Of what keeps the actor; None: it is on another machine, or not known."""
        ...

    async def ended(self) -> str:
        """Wait for the end of the process and say how it ended; cancelling it ends nothing."""
        ...

    def stop(self) -> None:
        """Ask it to end, with all it started; it has some seconds."""
        ...

    def kill(self) -> None:
        """End it and all it started, at once. Calling it twice is fine."""
        ...

    def last_words(self) -> str:
        """Return the last lines that it printed; empty: none, or they are shown elsewhere."""
        ...


class Launcher(Protocol):
    """Starts actors."""

    async def launch(self, way: Way, made: bytes | None = None) -> ActorProcess:
        """Start one actor, which dials the gate by itself and is handed `made`, the user objects of its job (`pack`).
        Raises ProcessLost where it cannot be started."""
        ...

    async def close(self) -> None:
        """Free what is shared between launches. Calling it twice is fine."""
        ...
