"""What the instances of an environment of phones know together, and what one of them plays."""

from __future__ import annotations

from dataclasses import dataclass, field

from uirl.environments.mobile_world.server import PhoneServer, PhoneTask
from uirl.environments.remote.client.servers import Server
from uirl.images import Screenshot
from uirl.tools import ToolRegistry


@dataclass(slots=True)
class ServerState:
    """What all instances know of the servers."""

    tasks: list[PhoneTask] | None = None
    prepared: set[Server] = field(default_factory=set)
    """Servers that have their suite and their device."""


@dataclass(slots=True)
class Episode:
    """One task on one phone."""

    phone: PhoneServer
    task: PhoneTask
    tools: ToolRegistry
    goal: str = ""
    begun: bool = False
    """The task may be set up, and is to be torn down."""
    screenshot: Screenshot | None = None
    """The screen as the policy last saw it, in full size."""
