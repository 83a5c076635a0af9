"""The way from an actor or an engine to its learner, how a child is told it, and where it is itself.

Imports next to nothing: a process that only starts others needs it too.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Way:
    """Where the learner's gate is, and as whom to go there."""

    host: str
    port: int
    name: str
    """Of the actor or the engine."""
    incarnation: int
    """How often it was started."""
    token: str = field(repr=False)


def write_errand(way: Way, made: bytes | None) -> int:
    """Return a descriptor, for a child of this process, of a file without a name: `way`, and user objects (`pack`).

    Other users see what stands in the arguments and on the disk, and everybody's children what stands in the
    environment; the pickle of `pack` is believed because nobody else can have written it.
    """
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(asdict(way)).encode() + b"\n" + (made or b""))
        file.flush()
        file.seek(0)
        return os.dup(file.fileno())


def read_errand(descriptor: int) -> tuple[Way, bytes | None]:
    """Return what `write_errand` wrote, and close the descriptor."""
    with open(descriptor, "rb") as file:
        way = Way(**json.loads(file.readline()))
        return way, file.read() or None


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor or an engine works that Ray has started: the process of Ray's."""

    host: str
    pid: int

    @classmethod
    def here(cls) -> Place:
        """Return that of this process."""
        return cls(socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"Ray process {self.pid} of {self.host}"
