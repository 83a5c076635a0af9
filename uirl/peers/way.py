"""The way from an actor or an engine to its learner, and where it is itself.

Imports next to nothing: a process that only starts others needs it too.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field


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
