"""One life of an engine's process: from its start, in whatever way that is done, to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from uirl.errors import ContractError
from uirl.inference.weight_files import KeptWeights, Snapshot
from uirl.peers.peer import Peer
from uirl.runtime.endings import how_it_ended

_CODE = """
import sys
sys.path[:] = {path!r}
from uirl.inference.processes.host import main
main({connection}, {learner})
"""


class Life(Protocol):
    """A process that was started and answers as an `EngineHost` does."""

    @property
    def pid(self) -> int | None:
        """Of the process; None: it is gone, or on another machine."""
        ...

    @property
    def peer(self) -> Peer:
        """What asks it."""
        ...

    async def load(self, weights: KeptWeights, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Have it take weights over from where they are kept. Raises PeerLost where it is lost meanwhile."""
        ...

    async def end(self) -> str:
        """Kill what is left of it, and return how it ended."""
        ...


class Launch(Protocol):
    """Starts the process of one engine, again and again."""

    async def begin(self, name: str, incarnation: int) -> Life:
        """Start it for the time `incarnation`; return as soon as it can be told to load its model."""
        ...

    async def close(self) -> None:
        """Free what is shared between lives. Calling it twice is fine."""
        ...


class ChildProcesses:
    """Starts processes on this machine. `environment`: variables that they have besides those of this process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {})}

    async def begin(self, name: str, incarnation: int) -> ChildProcess:
        """Start one; it says nothing until it is told to load its model."""
        ours, theirs = socket.socketpair()
        code = _CODE.format(
            path=[os.path.abspath(p) for p in sys.path], connection=theirs.fileno(), learner=os.getpid()
        )
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is this process's affair
            )
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        return ChildProcess(process, Peer(reader, writer, {}, name=name))

    async def close(self) -> None:
        """Free nothing: each process has its own."""


class ChildProcess:
    """A process of this one, asked over a pair of sockets; weights go to it as files."""

    def __init__(self, process: subprocess.Popen[bytes], peer: Peer) -> None:
        self.peer = peer
        self._process: subprocess.Popen[bytes] | None = process

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def load(self, weights: KeptWeights, version: int, adapter: Mapping[str, Any] | None) -> None:
        if not isinstance(weights, Snapshot):
            raise ContractError(f"a process on this machine reads weights from files; got {type(weights).__name__}")
        await self.peer.call("load", str(weights.folder), version, adapter)

    async def end(self) -> str:
        process = self._process
        if process is None:
            return "it has ended"
        how = "it did not end by itself and was killed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            how = how_it_ended(await asyncio.to_thread(process.wait, 1.0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        self._process = None
        return how
